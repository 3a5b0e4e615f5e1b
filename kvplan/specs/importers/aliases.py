"""Second names of model types."""

from __future__ import annotations

ALIASES: dict[str, str] = {
    "aya_vision": "cohere2",
    "chatglm4": "chatglm",
    "cohere2_vision": "cohere2",
    "deepseek_vl_v2": "deepseek_v2",
    "hunyuan_moe": "hunyuan",
    "inkling_mm_model": "inkling_text",
    "kimi_k25": "kimi_k2",
    "kimi_k3": "kimi_linear",
    "kimi_vl": "deepseek_v3",
    "llava": "llama",
    "mistral3": "mistral",
    "mllama": "mllama_text_model",
    "paligemma": "gemma",
    "phi3_v": "phi3",
    "refinedweb": "falcon",
    "refinedwebmodel": "falcon",
    "step3": "step3_text",
    "step3_vl": "step3_text",
}
"""Other names of a model type: of a model with a vision part, or of older files."""
