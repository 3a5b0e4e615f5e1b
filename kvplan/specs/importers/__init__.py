"""Readers of other people's model files: config.json, GGUF headers, the Hugging Face hub. Each gives an `Imported`."""
