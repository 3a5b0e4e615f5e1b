"""What a cache format costs in quality, end to end: a model's own forward pass with the quantised cache inside."""
