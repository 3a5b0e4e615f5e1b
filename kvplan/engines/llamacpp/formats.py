"""The cache types of llama.cpp: one option for K and one for V, each of the ggml types below."""

from __future__ import annotations

from kvplan.engines.shared.types import EngineFormat

TYPES = "llama.cpp b11434, common/arg.cpp:304-314"
PLAIN_TYPES = ("f32", "f16", "bf16")
_NEEDS = "as V, flash attention; blocks of 32 that divide the head dimension"


def _type(option: str, spelling: str, nbytes: int) -> EngineFormat:
    return EngineFormat(
        option=option, k=spelling, v=spelling, latent=spelling, index=spelling, nbytes=nbytes, source=TYPES,
        needs="" if option in PLAIN_TYPES else _NEEDS,
    )  # fmt: skip


FORMATS = (
    _type("f16", "fp16", 512),
    _type("bf16", "bf16", 512),
    _type("f32", "fp32", 1024),
    _type("q8_0", "q8_0", 272),
    _type("q5_1", "q5_1", 192),
    _type("q5_0", "q5_0", 176),
    _type("q4_1", "q4_1", 160),
    _type("q4_0", "q4_0", 144),
    _type("iq4_nl", "iq4_nl", 144),
)
"""The first is the default, whatever the model's own dtype."""


def spelling_of(option: str) -> str:
    """The spelling of a cache type."""
    return next(f.k for f in FORMATS if f.option == option)
