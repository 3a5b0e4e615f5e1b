"""How an engine comes to its pool: the needs of `needs.py`, low and high, put through the engine's own rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

from kvplan.breakdown import Product
from kvplan.engines.shared.memory import GpuMemory, MemoryNeed, PoolRule, Started
from kvplan.plan.answers import Budget
from kvplan.plan.engine import capability_of
from kvplan.plan.needs import activations, framework, graphs

if TYPE_CHECKING:
    from kvplan.plan.resolve import Resolved

_OURS = {"activations": "activations", "cuda graphs": "graphs", "framework": "framework"}


def engine_budget(resolved: Resolved, weights: Sequence[Product]) -> Budget:
    """The budget of one rank.

    Args:
        weights: of one rank, of the model and of a draft.
    """
    chosen, device = resolved.engine, resolved.device
    assert chosen is not None and device is not None
    rule, total = chosen.engine.pool, device.memory_bytes
    needs = (_weights(weights), *_others(resolved, total))
    vocabulary = resolved.spec.vocab_size or 0
    low, high = pool_range(rule, needs, total, resolved.share, vocabulary, chosen.version, chosen.options)
    return Budget(
        share=float(resolved.share),
        share_name=rule.share_name,
        vocab_size=vocabulary,
        needs=needs,
        pool_low_bytes=low,
        pool_high_bytes=high,
        rule=rule.text,
        source=rule.source,
    )


def pool_range(
    rule: PoolRule,
    needs: tuple[MemoryNeed, ...],
    total: int,
    share: Fraction,
    vocab_size: int,
    version: str,
    options: Mapping[str, object],
) -> tuple[int, int]:
    """(low, high) bytes of the pool: by the engine's rule with every need at its high and at its low end."""
    low, high = (
        rule.pool(_memory(needs, end, total, share, vocab_size, version, options))
        for end in ("high_bytes", "low_bytes")
    )
    return low, high


def _weights(weights: Sequence[Product]) -> MemoryNeed:
    nbytes = sum(w.nbytes for w in weights)
    source = "; ".join(w.source for w in weights)
    return MemoryNeed(name="weights", low_bytes=nbytes, high_bytes=nbytes, basis=weights[0].basis, source=source)


def _others(resolved: Resolved, total: int) -> tuple[MemoryNeed, ...]:
    """Everything but weights: measured by a start-up log, or estimated."""
    chosen = resolved.engine
    assert chosen is not None
    if resolved.request.calibration:
        from kvplan.plan.calibration import calibrated

        return (calibrated(resolved),)
    context = resolved.request.context or resolved.spec.max_context
    requests, tokens = chosen.engine.pool.busiest(
        Started(
            version=chosen.version,
            options=chosen.options,
            total=total,
            capability=capability_of(resolved.device),
            context=context,
        )
    )
    tp, pp = resolved.sharding.tp, resolved.sharding.pp
    return activations(resolved.spec, tp, requests, tokens), graphs(), framework(tp * pp)


def _memory(
    needs: tuple[MemoryNeed, ...],
    end: str,
    total: int,
    share: Fraction,
    vocab_size: int,
    version: str,
    options: Mapping[str, object],
) -> GpuMemory:
    """One end of the range; a measured residual stands for all three needs beside weights."""
    given = {need.name: int(getattr(need, end)) for need in needs}
    ours = {field: given.get(name, 0) for name, field in _OURS.items()}
    ours["activations"] += given.get("measured residual", 0)
    return GpuMemory(
        total=total,
        share=share,
        weights=given["weights"],
        vocab_size=vocab_size,
        version=version,
        options=options,
        **ours,
    )
