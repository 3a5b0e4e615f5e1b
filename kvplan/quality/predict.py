"""KL of a pair that was not run, from the runs of its parts. No torch."""

from __future__ import annotations

from collections.abc import Sequence

from kvplan.formats.grammar import PLAIN, parse_any
from kvplan.loss import together
from kvplan.quality.report import Figures, FormatQuality, QualityReport


def predicted_kl(report: QualityReport, k: str, v: str) -> float | None:
    """Mean KL of K in one format and V in another, from both alone; None where one was never run alone."""
    parts = alone(report, "k", k), alone(report, "v", v)
    return None if parts[0] is None or parts[1] is None else together(parts[0], parts[1])


def part_of(formats: Sequence[FormatQuality], role: str, spelling: str) -> Figures | None:
    """Figures of one tensor alone in this format, from whichever of these has them."""
    for f in formats:
        found = f.k_only if role == "k" else f.v_only
        if getattr(f, role) == spelling and found is not None:
            return found
    return None


def alone(report: QualityReport, role: str, spelling: str) -> float | None:
    """Mean KL with only this tensor stored, 0 for 16 and 32 bit; None where it was not run."""
    if spelling in PLAIN:
        return 0.0
    found = part_of(report.formats, role, parse_any(spelling).spelling)
    return None if found is None else found.kl_mean


def spearman(a: Sequence[float], b: Sequence[float]) -> float:
    """Rank correlation of two lists without ties, -1 to 1."""
    n = len(a)
    ranks = [{x: i for i, x in enumerate(sorted(values))} for values in (a, b)]
    squares = sum((ranks[0][x] - ranks[1][y]) ** 2 for x, y in zip(a, b, strict=True))
    return 1 - 6 * squares / (n * (n * n - 1))
