"""Fits the time model to stored benchmarks: per format, t = fixed + bytes / rate, for latents also + operations / rate.

Least squares in relative error over the shapes that the benchmark calls `main`: head_dim 128, four query heads per KV
head, a consecutive page table. Shapes that it calls `held out` judge the fit. Its `short` shape says how little a cache
may cost that does not fill the GPU (of latents it is fitted, too), and one shape gives the share of each other head_dim
that was timed.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

from kvplan.recommend.timemodel import HEAD_DIM, Short, Speed, latent_key, pair_key

Point = tuple[float, float, float]
"""Bytes read, operations (0 where they have no part in the model), seconds."""


def fit(report: dict[str, Any], source: str) -> dict[str, Speed]:
    """Fixed time and share of the read roof of every format with two shapes of different sizes.

    Args:
        report: a `kvplan.decode_bench/1` or `kvplan.latent_bench/1` file.
        source: where the report lies, for the reader.
    """
    roof = report["roof"]["bytes_per_second"]
    judges, short = _points(report, "held out"), _points(report, "short")
    found = {}
    for key, points in _points(report, "main").items():
        if any(flops for _, flops, _ in points):
            points += short.get(key, [])
        if len({nbytes for nbytes, _, _ in points}) < 2:
            continue
        fixed, per_byte, per_operation = _plane(points)
        errors = [abs((fixed + per_byte * n + per_operation * f) / t - 1) for n, f, t in judges.get(key, [])]
        found[key] = Speed(
            fixed_seconds=fixed,
            roof_share=1 / (per_byte * roof),
            source=source,
            worst_held_out_error=max(errors, default=None),
            flops_per_second=1 / per_operation if per_operation else None,
            share_by_head_dim=_other_head_dims(report, key, fixed, roof),
            short=_short(short.get(key, []), min(n for n, _, _ in points)),
        )
    return found


def _short(points: list[Point], least_fitted: float) -> Short | None:
    """The shape that does not fill the GPU; none for latents, which would need one for each number of query heads."""
    if not points or any(flops for _, flops, _ in points):
        return None
    nbytes, _, seconds = min(points)
    return Short(nbytes, seconds, least_fitted)


def _other_head_dims(report: dict[str, Any], key: str, fixed: float, roof: float) -> dict[str, float]:
    """Share of the roof of each other head_dim, from its one shape and the fixed time."""
    return {
        str(row["dim"]): row["bytes"] / ((row["seconds"] - fixed) * roof)
        for row in report["rows"]
        if row.get("dim", HEAD_DIM) != HEAD_DIM and row["seconds"] and _key(row) == key
    }


def _points(report: dict[str, Any], use: str) -> dict[str, list[Point]]:
    found: dict[str, list[Point]] = {}
    for row in report["rows"]:
        if row["use"] == use and row["seconds"]:
            found.setdefault(_key(row), []).append((row["bytes"], row.get("flops", 0), row["seconds"]))
    return found


def _key(row: dict[str, Any]) -> str:
    return latent_key(row["latent"]) if "latent" in row else pair_key(row["k"], row["v"])


def _plane(points: Sequence[Point]) -> Point:
    """(a, b, c), a and c not negative and b positive, that make the sum of ((a + b bytes + c flops) / t - 1)^2 least.

    The best of the solutions with any of a and c left out: a positive one among them is the constrained least.
    """
    columns = [(1 / t, n / t, f / t) for n, f, t in points]
    best: tuple[float, Point] | None = None
    for used in ((1, *rest) for size in (2, 1, 0) for rest in combinations((0, 2), size)):
        solved = _least_squares([[row[i] for i in used] for row in columns])
        if solved is None or min(solved) <= 0:
            continue
        full = dict(zip(used, solved, strict=True))
        answer = (full.get(0, 0.0), full[1], full.get(2, 0.0))
        error = sum((sum(x * y for x, y in zip(answer, row, strict=True)) - 1) ** 2 for row in columns)
        if best is None or error < best[0]:
            best = error, answer
    assert best is not None, "bytes alone always have a positive rate"
    return best[1]


def _least_squares(rows: list[list[float]]) -> list[float] | None:
    """x that makes the sum of (row . x - 1)^2 least, by Gram-Schmidt; None where the columns depend on each other."""
    basis: list[list[float]] = []
    triangle: list[list[float]] = []
    for column in (list(c) for c in zip(*rows, strict=True)):
        left, parts = column, []
        for q in basis:
            part = sum(x * y for x, y in zip(q, left, strict=True))
            left = [x - part * y for x, y in zip(left, q, strict=True)]
            parts.append(part)
        norm = sum(x * x for x in left) ** 0.5
        if norm <= 1e-9 * sum(x * x for x in column) ** 0.5 or not norm:
            return None
        basis.append([x / norm for x in left])
        triangle.append([*parts, norm])
    answer: list[float] = []
    for i in reversed(range(len(basis))):
        # Row i of the triangle holds what column j > i has of basis vector i.
        known = sum(triangle[j][i] * answer[len(basis) - 1 - j] for j in range(i + 1, len(basis)))
        answer.append((sum(basis[i]) - known) / triangle[i][i])
    return answer[::-1]
