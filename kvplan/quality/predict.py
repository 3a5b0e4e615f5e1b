"""KL of a pair that was not run, from the runs of its parts: the contributions of K and V add.

On SmolLM2-135M the sum lies within 15% of the measured KL, below 4 bits up to 18% under it. No torch.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvplan.formats.grammar import PLAIN, parse_any
from kvplan.quality.report import Figures, FormatQuality, QualityReport


def predicted_kl(report: QualityReport, k: str, v: str) -> float | None:
    """Mean KL of K in one format and V in another: the sum of both alone; None where one was never run alone.

    16 and 32 bit count as 0.
    """
    parts = [_alone(report, role, parse_any(spelling).spelling) for role, spelling in (("k", k), ("v", v))]
    return None if parts[0] is None or parts[1] is None else parts[0] + parts[1]


def part_of(formats: Sequence[FormatQuality], role: str, spelling: str) -> Figures | None:
    """Figures of one tensor alone in this format, from whichever of these has them."""
    for f in formats:
        found = f.k_only if role == "k" else f.v_only
        if getattr(f, role) == spelling and found is not None:
            return found
    return None


def _alone(report: QualityReport, role: str, spelling: str) -> float | None:
    if spelling in PLAIN:
        return 0.0
    found = part_of(report.formats, role, spelling)
    return None if found is None else found.kl_mean


def spearman(a: Sequence[float], b: Sequence[float]) -> float:
    """Rank correlation of two lists without ties, -1 to 1."""
    n = len(a)
    ranks = [{x: i for i, x in enumerate(sorted(values))} for values in (a, b)]
    squares = sum((ranks[0][x] - ranks[1][y]) ** 2 for x, y in zip(a, b, strict=True))
    return 1 - 6 * squares / (n * (n * n - 1))
