"""What a GPU holds beside the cache: weights, activation peak, CUDA graphs, framework, each as a range with its basis.

Fitted to pools that vLLM itself measured (`MEASURED`), which show one thing: on a large card the peak of the start-up
run is the sampler's, a copy of max_num_seqs x vocabulary logits some ten times over, whatever the context. A smaller
card, or a longer batch of prompt tokens, meets the peak of the layers instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from kvplan.engines.shared.memory import MemoryNeed
from kvplan.units import GIB, MIB, format_bytes

if TYPE_CHECKING:
    from kvplan.specs.model import ModelSpec


@dataclass(frozen=True)
class MeasuredPeak:
    """One start of a server: activation peak in GiB as its log gives it, requests at once, vocabulary."""

    model: str
    tp: int
    peak_gib: Fraction
    max_num_seqs: int
    vocab_size: int


def _peak(model: str, tp: int, peak: str, vocab_size: int) -> MeasuredPeak:
    return MeasuredPeak(model, tp, Fraction(peak), 1024, vocab_size)


MEASURED = (
    _peak("llama-3.1-8b", 1, "4.76", 128_256),
    _peak("llama-3.3-70b", 1, "4.84", 128_256),
    _peak("llama-3.3-70b", 2, "4.84", 128_256),
    _peak("qwen3-0.6b", 1, "5.56", 151_936),
    _peak("qwen3-32b", 1, "5.64", 151_936),
    _peak("qwen3-32b", 2, "5.65", 151_936),
    _peak("gpt-oss-20b", 1, "7.38", 201_088),
    _peak("gpt-oss-120b", 1, "6.99", 201_088),
)
"""vLLM (0.11 class) on one or two H100 of 79.18 GiB, max_num_seqs 1,024, utilisation 0.9: the peak it prints, or 0.9 x
79.18 - weights - non-torch - pool. Source: llm-d-planner, docs/empirical-vllm-memory-results.md."""

LAYER_BYTES_PER_HIDDEN = 27
"""Activation bytes of one prompt token per hidden channel in 16 bit: 6 x hidden + 6 x intermediate bytes with an
intermediate of 3.5 x hidden. Two starts of Llama-3.1-8B (vllm-project/vllm#10517) differ by 9,000 tokens and 0.92 GiB:
109,760 bytes a token against 27 x 4,096 = 110,592."""


def sampler_bytes(measured: Sequence[MeasuredPeak] = MEASURED) -> Fraction:
    """Bytes per request and vocabulary entry at the peak of the sampler: the mean of the measured starts."""
    each = [m.peak_gib * GIB / (m.max_num_seqs * m.vocab_size) for m in measured]
    return sum(each, Fraction(0)) / len(each)


def activations(
    spec: ModelSpec, tp: int, max_num_seqs: int, max_batched_tokens: int, per_entry: Fraction | None = None
) -> MemoryNeed:
    """The activation peak of one rank: the sampler's or the layers', whichever is more, within 15% and half a GiB.

    Args:
        per_entry: bytes per request and vocabulary entry; default `sampler_bytes()`.
    """
    rate = sampler_bytes() if per_entry is None else per_entry
    sampler = int(rate * max_num_seqs * (spec.vocab_size or 0))
    layers = LAYER_BYTES_PER_HIDDEN * (spec.hidden_size or 0) * max_batched_tokens // tp
    peak = max(sampler, layers)
    slack = max(3 * peak // 20, GIB // 2)
    which = (
        f"sampler: {max_num_seqs:,} requests x {spec.vocab_size or 0:,} vocabulary x {float(rate):.1f} bytes"
        if sampler >= layers
        else f"layers: {max_batched_tokens:,} tokens x {LAYER_BYTES_PER_HIDDEN} x hidden {spec.hidden_size:,} / tp {tp}"
    )
    missing = "" if spec.vocab_size and spec.hidden_size else "; the spec states no vocabulary or hidden size"
    source = f"{which} = {format_bytes(peak)}, +- 15% or 0.5 GiB{missing}"
    high = peak + slack if not missing else peak + 6 * GIB
    return MemoryNeed(
        name="activations", low_bytes=max(peak - slack, 0), high_bytes=high, basis="estimate", source=source
    )


def graphs() -> MemoryNeed:
    """Captured CUDA graphs: public logs print 0.49 (1.5B model) to 1.65 GiB (35B model)."""
    return MemoryNeed(
        name="cuda graphs",
        low_bytes=GIB // 4,
        high_bytes=7 * GIB // 4,
        basis="estimate",
        source="0.49 to 1.65 GiB printed by vLLM 0.11 to 0.18 and later",
    )


def framework(ranks: int) -> MemoryNeed:
    """CUDA context, libraries and, between several ranks, communication buffers."""
    low, high = (96 * MIB, 400 * MIB) if ranks == 1 else (384 * MIB, 1100 * MIB)
    return MemoryNeed(
        name="framework",
        low_bytes=low,
        high_bytes=high,
        basis="estimate",
        source="0.13 to 0.35 GiB printed for one rank, 0.55 GiB for two",
    )
