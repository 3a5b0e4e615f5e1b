"""What engines' own projects have published of the speed of a cache format: kvplan has no time model of their kernels.

Figures are quoted with their thread or post; none of them was measured here.
"""

from __future__ import annotations

from collections.abc import Iterator

from kvplan.plan import Resolved
from kvplan.plan.engine import capability_of

_TURBOQUANT = (
    "published: TurboQuant reached 66 to 80% of bf16 throughput on H100, latency +10 to 68% (vLLM blog, 2026-05-11)"
)
FACTS = {
    ("vllm", "fp8 latent"): (
        "published: fp8 latents through FlashMLA lost a little everywhere on Kimi-K2.5, so calibrate (vLLM blog, "
        "2026-04-22); fp8 was off by default for DeepSeek-V3.2 (vllm-project/vllm#27121)"
    ),
    ("vllm", "fp8 FlashAttention 3"): (
        "published: FlashAttention 3 decodes an fp8 cache in 54% of bf16's time per token of context; scale 1.0 kept "
        "94 to 98% of long-context accuracy (vLLM blog, 2026-04-22)"
    ),
    ("vllm", "int8_per_token_head"): (
        "published: int8 per token and head served 10% more tokens than fp16 by one count (vllm-project/vllm#38378), "
        "7% fewer by another (#40633): bytes halve, latency hardly moves"
    ),
    ("vllm", "fp8_per_token_head"): (
        "published: fp8 per token and head served 15% fewer tokens than fp16 (vllm-project/vllm#38378, GPU not stated)"
    ),
    ("vllm", "int4_per_token_head"): (
        "published: 4 bits per token and head served 652 tokens a second, fp16 749 (vllm-project/vllm#40633): 3.8x "
        "fewer bytes, no gain in speed"
    ),
    ("vllm", "nvfp4"): (
        "published: outside SM100 nvfp4 decodes 1.5 to 1.7 times slower than fp8 (vllm-project/vllm#50416)"
    ),
    **{("vllm", f"turboquant_{kind}"): _TURBOQUANT for kind in ("k8v4", "4bit_nc", "k3v4_nc", "3bit_nc")},
    **{("mlx", bits): "mlx_lm.server turns batching off with --kv-bits: one request at a time" for bits in "2348"},
}


LATENT_SLOWER = (1.5, 2.0)
"""Time of kvplan's fused decode of fp8_ds_mla divided by that of 16 bit on the H200: DeepSeek-V2-Lite at 64 x 4,096
tokens, DeepSeek-V3 at 16 x 32,768 (docs/results/validate_deepseek-*_h200.json)."""


def own_latent(resolved: Resolved) -> Iterator[str]:
    """What was measured of kvplan's own kernels for a quantised latent."""
    if resolved.engine is None and resolved.request.latent == "fp8_ds_mla":
        low, high = LATENT_SLOWER
        yield (
            f"measured: kvplan's decode of fp8_ds_mla takes {low:g} to {high:g} times as long as 16 bit on an H200, "
            "though it reads 1.76x fewer bytes: it is for room, not for speed"
        )


def published(resolved: Resolved) -> Iterator[str]:
    """What is published of the formats of a choice."""
    chosen = resolved.engine
    for option in dict.fromkeys(chosen.formats.values() if chosen else ()):
        assert chosen is not None
        text = FACTS.get((chosen.engine.name, _case(option, resolved)))
        if text:
            yield text


def _case(option: str, resolved: Resolved) -> str:
    """vLLM's fp8 is another kernel for a latent, and FlashAttention 3's only on Hopper."""
    if option != "fp8":
        return option
    if resolved.request.latent:
        return "fp8 latent"
    capability = capability_of(resolved.device)
    return "fp8 FlashAttention 3" if capability and capability[0] == 9 else option
