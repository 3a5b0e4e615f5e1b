"""Likely causes of a difference between a log and kvplan, in words, the likeliest first."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

from kvplan.reconcile.result import Compared
from kvplan.reconcile.types import StartUp

_DRAFTS = ("num_speculative_tokens", "num_spec_tokens", "speculative_algorithm", "speculative_num_draft_tokens")
_ROUNDING = Decimal("0.002")


def causes_of(start: StartUp, plain: Sequence[Compared], supposed: str, tried: int, versions: int) -> tuple[str, ...]:
    """Why figures of the log's plain reading differ.

    Args:
        plain: figures by the log's plain reading.
        supposed: with which supposition all figures agree; empty: with none.
        tried: how many readings were asked.
        versions: how many versions kvplan covers.
    """
    off = [c for c in plain if not c.agrees]
    if not off and not supposed:
        return ()
    made = []
    if supposed:
        worst = f": {_named(off[0])} by {_signed(off[0])}" if off else ""
        made.append(
            f"By the log's own words {len(off)} of {len(plain)} figures differ{worst}; all agree if {supposed}."
        )
        return tuple(made)
    made += _ranks(start, off)
    made += _fewer_layers(off)
    if any(start.option(name) not in (None, "None", "0") for name in _DRAFTS) or start.all("draft_ssm"):
        made.append("The engine speculates: a draft model or prediction layers hold a cache that this plan lacks.")
    if start.version is None and versions > 1:
        made.append("The log does not name the engine's version; kvplan asked the rules of all that it covers.")
    made.append(f"None of {tried} readings of what the log leaves open makes all figures agree.")
    return tuple(made)


def _ranks(start: StartUp, off: Sequence[Compared]) -> list[str]:
    """vLLM takes the least memory of all ranks, and a log may lack the line of the rank that decides."""
    fewer = next((c for c in off if c.printed.name in ("tokens", "max_tokens") and c.printed.value < c.low), None)
    available = start.least("available")
    if start.engine != "vllm" or fewer is None or available is None or not fewer.low:
        return []
    pool = available.value * fewer.printed.value * 2 / (fewer.low + fewer.high)
    return [
        f"Another rank, whose line the log lacks, had less memory: {fewer.printed.value:,} tokens are about "
        f"{pool:.2f} GiB, and the least that is printed is {available.value} GiB."
    ]


def _fewer_layers(off: Sequence[Compared]) -> list[str]:
    """All sizes off by one factor: other layers, heads or bytes per element than the spec's."""
    sizes = [c for c in off if c.printed.unit in ("GiB", "MiB") and c.low and c.low == c.high]
    if not sizes:
        return []
    ratios = [c.printed.value / c.low for c in sizes]
    if max(ratios) - min(ratios) > _ROUNDING * max(ratios):
        return []
    text = "all printed sizes are" if len(sizes) > 1 else f"{_named(sizes[0])} is"
    return [f"By one factor {text} {ratios[0]:.3f} of what the spec gives: other layers, heads, copies or bytes per "
            "element than the spec's."]  # fmt: skip


def _named(c: Compared) -> str:
    return c.text + (f" of {c.printed.of}" if c.printed.of else "")


def _signed(c: Compared) -> str:
    return f"{c.residual:+,.6g} {c.printed.unit}".strip()
