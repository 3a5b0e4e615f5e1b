"""Formats side by side as rows, and the formula of a plan in one line."""

from __future__ import annotations

from kvplan.breakdown import leaves
from kvplan.plan import Plan
from kvplan.recommend.offers import FormatRow
from kvplan.units import format_bytes

HEADINGS = ("format", "cache", "tokens", "error", "ms", "requests", "fits")
SORTS = ("", "cache", "tokens", "error", "ms")
"""What the table can be sorted by; empty: as listed."""


def format_cells(row: FormatRow) -> list[str]:
    """One line of the table; a format that is refused has its reason elsewhere."""
    plan = row.plan
    if plan is None or plan.kv is None:
        return [row.name, *"-----", "refused"]
    room = plan.capacity
    fits = "-" if plan.verdict is None else "yes" if plan.verdict.fits else "no"
    return [
        row.name,
        format_bytes(plan.kv.allocated_bytes),
        _count(room.tokens if room else None),
        "-" if row.kl is None else f"{row.kl:.5f}",
        "-" if row.seconds is None else f"{row.seconds * 1e3:.2f}",
        _count(room.requests if room else None),
        fits,
    ]


def sorted_rows(rows: list[FormatRow], by: str) -> list[FormatRow]:
    """Fewest bytes, most tokens, least error or least time first; what has no such figure comes last."""
    if by == "cache":
        return sorted(rows, key=lambda r: (r.plan is None, r.plan.kv.allocated_bytes if r.plan and r.plan.kv else 0))
    if by == "tokens":
        return sorted(rows, key=lambda r: -((r.plan.capacity.tokens or 0) if r.plan and r.plan.capacity else -1))
    if by == "error":
        return sorted(rows, key=lambda r: (r.kl is None, r.kl or 0.0))
    if by == "ms":
        return sorted(rows, key=lambda r: (r.seconds is None, r.seconds or 0.0))
    return rows


def formula_line(plan: Plan) -> str:
    """The logical bytes of a plan: each product in words, then the sum."""
    tree = plan.breakdown.logical or plan.breakdown.growth
    products = [leaf for leaf in leaves(tree) if leaf.nbytes]
    words = " + ".join(f"{leaf.label}: {leaf.formula}" for leaf in products) or "no cache"
    allocated = f"; allocated {format_bytes(plan.kv.allocated_bytes)}" if plan.kv else ""
    return f"{words} = {format_bytes(tree.nbytes)}{allocated}"


def _count(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"
