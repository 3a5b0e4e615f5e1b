"""Architectures that llama.cpp treats apart, under the names of config.json and of GGUF headers.

Source: llama.cpp b11434, src/models/*.cpp (swa_type), src/llama-arch.cpp:1162-1179, src/llama-model.cpp:2361-2895.
"""

from __future__ import annotations

from kvplan.specs.model import ModelSpec

ROLLBACK = frozenset({
    "kimik3", "qwen35", "qwen35moe", "qwen4exp", "deepseek4", "deepseekv4", "glm5next", "nemotronh", "nemotronhmoe",
    "lfm2", "lfm2moe", "bailingmoe3",
})  # fmt: skip
"""Whose states can be rolled back by n_rs_seq snapshots; for every other the option is clamped to 0."""
WINDOWED = frozenset({
    "afmoe", "cohere2", "cohere2moe", "cohere2vision", "deepseek4", "deepseekv4", "dots3note", "exaone4", "exaone45",
    "exaonemoe", "gemma2", "gemma3", "gemma3n", "gemma4", "gemma4unified", "gptoss", "graniteswa", "laguna", "lfm2",
    "lfm2moe", "llama4", "maple", "mellum", "mimo2", "mimov2", "mimov2flash", "museglimmer", "olmo2", "olmo3", "plamo3",
    "smallthinker", "spark25", "step35", "step3p5", "step3p7",
})  # fmt: skip
"""With a cache of their own for layers with a window or chunks."""
UNWINDOWED = frozenset({
    "llama", "mistral", "mistral3", "ministral", "ministral3", "mixtral", "phi3", "phi3small", "phi4mm", "phimoe",
    "qwen2", "qwen2moe", "qwen2vl", "qwen25vl", "qwen3", "qwen3moe", "starcoder2",
})  # fmt: skip
"""Whose windows llama.cpp does not use: every layer keeps every token."""
POOLED_INDEX = {"glm5next": 3, "qwen4exp": 2}
"""Whose index cache keeps rows of every token, so many keys wide: key, gate and pooled key; key and pooled key."""
EXPANDED = frozenset({"minicpm3", "plm"})
"""Whose latents are kept as K and V of every head (their graphs have no latent attention)."""
NO_FLASH_ATTENTION = frozenset({"grok", "grok1"})
ABORTS_UNLESS_EVEN = frozenset({"kimilinear"})
"""Abort at start (assertion ggml_can_repeat) where the slots do not divide the tokens of a batch; measured."""


def family(spec: ModelSpec) -> str:
    """The architecture's name without case, `_`, `-`, `.` and the part that only marks a text model; empty: unknown."""
    if spec.model_type is None:
        return ""
    plain = spec.model_type.lower()
    for mark in "_-.":
        plain = plain.replace(mark, "")
    return plain.removesuffix("text") or plain
