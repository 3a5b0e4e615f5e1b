"""Predicted beside measured times of one machine, and what a machine said of a recommendation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, groupby

CLOSE = 0.25
"""A prediction this near the measured time counts as met."""
APART = 1.05
"""Formats whose measured times differ by more than this have an order."""


@dataclass(frozen=True)
class Row:
    """One format in one layer group, predicted and measured: decode attention of one layer."""

    format: str
    layer_group: str
    layers: int
    """Layers of the group."""
    passed: bool
    predicted_seconds: float | None
    measured_seconds: float | None
    off: float | None
    """Prediction over measurement, less 1."""
    bytes_equal: bool | None
    note: str


@dataclass(frozen=True)
class Comparison:
    """What rows of one run say of the time model, each format as `format (layer group)`."""

    wide: tuple[str, ...]
    """Predictions more than 25% off."""
    swapped: tuple[tuple[str, str], ...]
    """(faster, slower) of one layer group, predicted in the other order; times within 5% have no order."""
    unpredicted: tuple[str, ...]
    """Measured, and the model knows no time."""

    @property
    def holds(self) -> bool:
        return not (self.wide or self.swapped or self.unpredicted)


@dataclass(frozen=True)
class Verified:
    """What the machine says: confirmed, changed (then the runner-up is right), or not decided."""

    verdict: str
    reason: str
    device: str
    context: int
    batch: int
    rows: tuple[Row, ...]
    comparison: Comparison


def compare(rows: Sequence[Row]) -> Comparison:
    """Held to the measured times: each prediction, and the order of every pair in a layer group."""
    measured = [r for r in rows if r.measured_seconds is not None]
    wide = tuple(_name(r) for r in measured if r.off is not None and abs(r.off) > CLOSE)
    unpredicted = tuple(_name(r) for r in measured if r.off is None)
    pairs: list[tuple[str, str]] = []
    for _, of_group in groupby((r for r in measured if r.off is not None), key=lambda r: r.layer_group):
        by_time = sorted(of_group, key=lambda r: r.measured_seconds or 0.0)
        pairs += [(_name(a), _name(b)) for a, b in combinations(by_time, 2) if _swapped(a, b)]
    return Comparison(wide, tuple(pairs), unpredicted)


def _swapped(fast: Row, slow: Row) -> bool:
    assert fast.measured_seconds and slow.measured_seconds and fast.predicted_seconds and slow.predicted_seconds
    apart = slow.measured_seconds > APART * fast.measured_seconds
    return apart and slow.predicted_seconds < fast.predicted_seconds


def _name(row: Row) -> str:
    return f"{row.format} ({row.layer_group})"


def row_lines(rows: Sequence[Row]) -> Iterator[str]:
    """One line for each row."""
    for r in rows:
        predicted = "not predicted" if r.predicted_seconds is None else f"{r.predicted_seconds * 1e6:.1f} us predicted"
        measured = "not measured" if r.measured_seconds is None else f"{r.measured_seconds * 1e6:.1f} us measured"
        off = "" if r.off is None else f" ({r.off:+.0%})"
        verdict = "green" if r.passed else "RED"
        yield f"{r.format}, {r.layers} layers {r.layer_group}: {verdict}, {predicted}, {measured}{off}{r.note}"


def comparison_lines(found: Comparison) -> Iterator[str]:
    """What holds and what does not."""
    yield f"more than {CLOSE:.0%} off: {', '.join(found.wide) or 'none'}"
    yield f"in the wrong order: {'; '.join(f'{a} before {b}' for a, b in found.swapped) or 'none'}"
    if found.unpredicted:
        yield f"measured but not predicted: {', '.join(found.unpredicted)}"


def lines(found: Verified) -> list[str]:
    """The whole answer for readers."""
    head = f"Verified on {found.device}, {found.batch} x {found.context:,} tokens, one layer: {found.verdict}"
    told = [*row_lines(found.rows), *comparison_lines(found.comparison), found.reason]
    return ["", head, *(f" - {text}" for text in told)]
