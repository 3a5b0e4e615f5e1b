"""Fits the time model to a stored decode benchmark: per format, t = fixed + bytes / rate.

Least squares in relative error over the shapes that the benchmark calls `main`: head_dim 128, four query heads per KV
head, a consecutive page table. Shapes that it calls `held out` judge the fit.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kvplan.recommend.timemodel import Speed, pair_key

Rows = dict[str, list[tuple[float, float]]]
"""Format to (bytes, seconds)."""


def fit(report: dict[str, Any], source: str) -> dict[str, Speed]:
    """Fixed time and share of the read roof of every format with two shapes of different sizes.

    Args:
        report: a `kvplan.decode_bench/1` file.
        source: where the report lies, for the reader.
    """
    roof = report["roof"]["bytes_per_second"]
    judges = _points(report, "held out")
    found = {}
    for key, points in _points(report, "main").items():
        if len({nbytes for nbytes, _ in points}) < 2:
            continue
        fixed, slope = _line(points)
        errors = [abs((fixed + slope * n) / t - 1) for n, t in judges.get(key, [])]
        held_out = max(errors, default=None)
        found[key] = Speed(
            fixed_seconds=fixed, roof_share=1 / (slope * roof), source=source, worst_held_out_error=held_out
        )
    return found


def _points(report: dict[str, Any], use: str) -> Rows:
    found: Rows = {}
    for row in report["rows"]:
        if row["use"] == use and row["seconds"]:
            found.setdefault(pair_key(row["k"], row["v"]), []).append((row["bytes"], row["seconds"]))
    return found


def _line(points: Iterable[tuple[float, float]]) -> tuple[float, float]:
    """(a, b) that make the sum of ((a + b * bytes) / seconds - 1)^2 least, a not negative."""
    pairs = [(1 / t, n / t) for n, t in points]
    uu, uw, ww = (sum(x * y for x, y in found) for found in _products(pairs))
    u, w = (sum(column) for column in zip(*pairs, strict=True))
    determinant = uu * ww - uw * uw
    fixed = (u * ww - w * uw) / determinant
    return (fixed, (w * uu - u * uw) / determinant) if fixed > 0 else (0.0, w / ww)


def _products(pairs: list[tuple[float, float]]) -> tuple[list[tuple[float, float]], ...]:
    return [(u, u) for u, _ in pairs], pairs, [(w, w) for _, w in pairs]
