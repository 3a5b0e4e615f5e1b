"""A GPU's memory as a stacked bar: words and fill patterns, so that no meaning hangs on a colour."""

from __future__ import annotations

from dataclasses import dataclass

from kvplan.plan import Plan
from kvplan.plan.shares import FREE, OUTSIDE, Share, memory_shares
from kvplan.units import format_bytes

# Name: (pattern, a colour that can be read on light and on dark).
_LOOKS = {
    "weights": ("#", "#6366f1"),
    "draft weights": ("h", "#818cf8"),
    "activations": ("a", "#a855f7"),
    "cuda graphs": ("g", "#c026d3"),
    "framework": ("f", "#db2777"),
    "kv payload": ("█", "#0891b2"),
    "metadata": ("▓", "#16a34a"),
    "residual": ("▒", "#65a30d"),
    "state": ("s", "#0d9488"),
    "padding": ("/", "#ca8a04"),
    "reserved": ("=", "#ea580c"),
    "constants": ("c", "#78716c"),
    "draft cache": ("d", "#0284c7"),
    FREE: ("·", "#888888"),
    OUTSIDE: ("-", "#888888"),
}
_OTHER = ("+", "#7c3aed")


@dataclass(frozen=True, slots=True)
class Segment:
    """One piece of the bar: what it is, how it is drawn, how wide."""

    name: str
    size: str
    pattern: str
    colour: str
    cells: int
    basis: str


def segments(plan: Plan, width: int) -> list[Segment]:
    """The pieces of a plan's memory over `width` cells; no piece that exists vanishes."""
    shares = memory_shares(plan).shares
    cells = _cells(shares, max(width, len(shares)))
    return [
        Segment(share.name, format_bytes(share.nbytes), *_LOOKS.get(share.name, _OTHER), n, share.basis)
        for share, n in zip(shares, cells, strict=True)
    ]


def memory_line(plan: Plan) -> str:
    """Whose memory the bar is, and how much is missing."""
    memory = memory_shares(plan)
    if plan.device is None:
        return f"cache of one rank: {format_bytes(memory.total_bytes)}; no GPU chosen"
    missing = f"; {format_bytes(memory.missing_bytes)} too much" if memory.missing_bytes else ""
    high = ", at the high end of ranges" if plan.capacity and plan.capacity.budget else ""
    return f"{plan.device.name}: {format_bytes(memory.total_bytes)}{missing}{high}"


def _cells(shares: tuple[Share, ...], width: int) -> list[int]:
    """Widths that add up to `width`, at least one each; the widest give way."""
    whole = sum(share.nbytes for share in shares)
    if not whole:
        return []
    cells = [max(1, share.nbytes * width // whole) for share in shares]
    while sum(cells) != width:
        widest = max(range(len(cells)), key=cells.__getitem__)
        cells[widest] += 1 if sum(cells) < width else -1
    return cells
