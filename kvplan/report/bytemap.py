"""Where each byte of a layout lies, in words."""

from __future__ import annotations

from kvplan.formats.layout import Layout, Plane

_UNIT = {
    "page": "slot of {0} token(s)",
    "residual": "row",
    "layer": "head or layer",
    "state": "sequence",
}
"""What one item of a plane is, by scope."""


def byte_map(layout: Layout, tokens: int) -> list[tuple[str, str, str, str]]:
    """(plane, scope, bytes of what, map) of every plane of one head; pages of `tokens` tokens."""
    rows = []
    for plane in layout.planes:
        what = f"page of {tokens} tokens" if plane.pack == "page" else _UNIT[plane.scope].format(plane.tokens)
        scope = f"{plane.scope}, {plane.capacity} rows" if plane.capacity else plane.scope
        rows.append((plane.name, scope, what, field_map(plane, tokens)))
    return rows


def field_map(plane: Plane, tokens: int) -> str:
    """Fields of a slot with their byte ranges, ends included; of a page for `pack=page`."""
    parts, at = [], 0
    for f in plane.fields:
        units = tokens // f.tokens if plane.pack == "page" else 1
        size = units * f.unit_bytes
        parts.append(f"{at}-{at + size - 1} {f.tensor} {f.name} ({units * f.items} {f.storage})")
        at += size
    whole = plane.page_bytes(tokens, 1) if plane.pack == "page" else plane.slot_bytes
    return "; ".join([*parts, *([f"{at}-{whole - 1} unused"] if whole > at else [])])


def map_lines(layout: Layout, tokens: int) -> list[str]:
    """One line for each plane: its scope, then its bytes."""
    return [f"{plane}, {what}: {where}" for plane, _, what, where in byte_map(layout, tokens)]
