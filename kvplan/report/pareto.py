"""Formats as points of bytes against predicted error, drawn with characters: no meaning hangs on a colour."""

from __future__ import annotations

from math import log10

from kvplan.recommend.offers import FormatRow, undominated
from kvplan.units import format_bytes

LEAST_ERROR = 1e-5
"""Where the axis of errors begins: an unquantised cache has none."""


def pareto_lines(rows: list[FormatRow], width: int, height: int) -> list[str]:
    """A plot of `width` x `height` characters at most: cache bytes to the right, error (logarithmic) upwards.

    Points are letters; capitals are the Pareto set. Under the plot each letter has its name.
    """
    points = [(r, r.plan.kv.allocated_bytes, r.kl) for r in rows if r.plan and r.plan.kv and r.kl is not None]
    if not points:
        return ["no format here has an established error"]
    best = {row.name for row in undominated(rows)}
    points.sort(key=lambda p: (p[1], p[2]))
    letters = [_letter(i, row.name in best) for i, (row, _, _) in enumerate(points)]
    names = _legend(letters, [row.name for row, _, _ in points], width)
    across, up = max(width - 9, 10), max(height - len(names) - 3, 4)
    most = max(b for _, b, _ in points) or 1
    top = log10(max(LEAST_ERROR * 10, *(kl for _, _, kl in points)))
    low = log10(LEAST_ERROR)
    canvas = [[" "] * across for _ in range(up)]
    for letter, (_, nbytes, kl) in zip(letters, points, strict=True):
        column = min(nbytes * (across - 1) // most, across - 1)
        share = (log10(max(kl, LEAST_ERROR)) - low) / (top - low)
        line = canvas[up - 1 - round(share * (up - 1))]
        # Points on top of each other: the next free place to the right, then to the left.
        free = [c for c in (*range(column, across), *range(column, -1, -1)) if line[c] == " "]
        line[free[0] if free else column] = letter
    marks = {0: f"{10**top:8.1e}", up - 1: f"<{LEAST_ERROR:7.0e}"}
    lines = [f"{marks.get(i, ''):>8}|{''.join(row).rstrip()}" for i, row in enumerate(canvas)]
    right = format_bytes(most)
    lines.append(" " * 8 + "+" + "-" * across)
    lines.append(" " * 9 + f"0{'cache bytes':^{max(across - len(right) - 1, 0)}}{right}")
    return ["predicted error (KL); capitals: Pareto set of bytes and error", *lines, *names]


def _letter(at: int, best: bool) -> str:
    letter = chr(ord("a") + at % 26)
    return letter.upper() if best else letter


def _legend(letters: list[str], names: list[str], width: int) -> list[str]:
    lines = [""]
    for letter, name in zip(letters, names, strict=True):
        word = f"{letter} {name}  "
        if len(lines[-1]) + len(word) > width and lines[-1]:
            lines.append("")
        lines[-1] += word
    return [line.rstrip() for line in lines]
