"""The terms of a cache group: products of named factors, derived from its planes and its row law.

All of one rank, all layers of the group, `sequences` sequences of `tokens` tokens each. Nothing is rounded here but
pages, and no width is stated here: bytes come from the layout's fields and planes.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import lcm

from kvplan.breakdown import Factor, Product
from kvplan.formats.layout import Field, Plane
from kvplan.memory.groups import CacheGroup
from kvplan.units import align_up, cdiv

LOGICAL_KINDS = ("payload", "metadata", "residual", "state")
RESIDUAL_CAPACITY = "residual capacity"


def logical_terms(group: CacheGroup, tokens: int, sequences: int) -> dict[str, tuple[Product, ...]]:
    """What the mathematics needs, by kind; a kind without bytes has no terms."""
    rows = group.law.rows(tokens)
    terms = {
        "payload": _row_terms(group, "payload", rows, sequences),
        "metadata": _row_terms(group, "metadata", rows, sequences),
        "residual": _residual_terms(group, rows, sequences),
        "state": _state_terms(group, sequences),
    }
    return {kind: made for kind, made in terms.items() if made}


def packed_rows(group: CacheGroup, tokens: int) -> int:
    """Rows of one sequence that need a page: the most that any tensor has packed."""
    rows = group.law.rows(tokens)
    return max((t.split(rows)[0] for t in group.layout.tensors), default=0)


def allocated_terms(group: CacheGroup, tokens: int, sequences: int, page_size: int) -> tuple[Product, ...]:
    """What kvplan's own allocator takes: whole pages per sequence, residuals at capacity, states."""
    pages = cdiv(packed_rows(group, tokens), page_size)
    page_bytes = group.layout.page_bytes(page_size)
    terms = [
        _product("pages", group, sequences, (f"pages of {page_size:,} tokens", pages), ("bytes", page_bytes)),
        _product(RESIDUAL_CAPACITY, group, sequences, ("bytes", group.layout.fixed_bytes("residual"))),
        _product("states", group, sequences, ("bytes", group.layout.fixed_bytes("state"))),
    ]
    return tuple(t for t in terms if t.nbytes)


def constant_terms(group: CacheGroup) -> tuple[Product, ...]:
    """Static scales and codebooks: once per layer, whatever the context and batch."""
    term = _product("static scales", group, 1, ("bytes", group.layout.fixed_bytes("layer")))
    return (term,) if term.nbytes else ()


def growth_unit(group: CacheGroup) -> int:
    """The least number of further tokens that adds a whole number of groups and rows; 1 where nothing grows."""
    return lcm(*(p.tokens for p in group.layout.scoped("page")), 1) * group.law.stride if group.law.grows else 1


def growth_terms(group: CacheGroup, tokens: int) -> tuple[Product, ...]:
    """What every further `tokens` tokens of a sequence add beyond all windows; a multiple of `growth_unit`."""
    if not group.law.grows:
        return ()
    terms: list[Product] = []
    for role in ("payload", "metadata"):
        parts = [(f, p, tokens // group.law.stride) for p, f in _page_fields(group, role)]
        terms += _merged(group, role, parts, 1)
    return tuple(terms)


def settled_at(group: CacheGroup) -> int:
    """A length from which on the group's bytes are exactly `fixed + growth`: windows full, residuals regular."""
    recents = [t.recent for t in group.layout.tensors if t.recent]
    unit = lcm(growth_unit(group), *(r * group.law.stride for r in recents))
    return align_up(max(group.law.full_at, unit), unit)


def _page_fields(group: CacheGroup, role: str) -> Iterable[tuple[Plane, Field]]:
    return ((p, f) for p in group.layout.scoped("page") for f in p.fields if f.role == role)


def _row_terms(group: CacheGroup, role: str, rows: int, sequences: int) -> tuple[Product, ...]:
    """Payload or metadata of the packed rows."""
    packed = {t.role: t.split(rows)[0] for t in group.layout.tensors}
    parts = [(f, p, packed[f.tensor]) for p, f in _page_fields(group, role) if packed[f.tensor]]
    return tuple(_merged(group, role, parts, sequences))


def _residual_terms(group: CacheGroup, rows: int, sequences: int) -> tuple[Product, ...]:
    """Rows that wait unquantised, exactly."""
    recent = {t.role: t.split(rows)[1] for t in group.layout.tensors}
    parts = [(f, p, recent[f.tensor]) for p in group.layout.scoped("residual") for f in p.fields if recent[f.tensor]]
    return tuple(_merged(group, "residual", parts, sequences))


def _state_terms(group: CacheGroup, sequences: int) -> tuple[Product, ...]:
    terms = []
    for plane in group.layout.scoped("state"):
        for f in plane.fields:
            width = f.unit_bytes // f.items
            terms.append(_product(f"{f.tensor} state", group, sequences, ("elements", f.items), ("bytes", width)))
    return tuple(terms)


def _merged(
    group: CacheGroup, role: str, parts: Iterable[tuple[Field, Plane, int]], sequences: int
) -> Iterable[Product]:
    """One product for all fields with the same heads, rows and tokens per unit, so that K and V share a line."""
    together: dict[tuple[int, int, int], list[Field]] = {}
    for field, plane, rows in parts:
        together.setdefault((plane.heads(group.layout.heads), rows, field.tokens), []).append(field)
    for (heads, rows, per), fields in together.items():
        units = (_row_name(group), rows) if per == 1 else (f"groups of {per:,} tokens", rows // per)
        width = sum(f.unit_bytes for f in fields)
        label = _label(role, fields)
        yield _product(label, group, sequences, ("kv heads", heads), units, ("bytes", width))


def _row_name(group: CacheGroup) -> str:
    if group.law.law == "encoder":
        return "encoder tokens"
    return "tokens" if group.law.stride == 1 else f"rows of {group.law.stride:,} tokens"


def _label(role: str, fields: list[Field]) -> str:
    tensors = " + ".join(dict.fromkeys(f.tensor.upper() if len(f.tensor) == 1 else f.tensor for f in fields))
    if role == "metadata":
        return tensors + " " + " and ".join(dict.fromkeys(f"{f.name}s" for f in fields))
    plain = all(f.storage in ("fp16", "bf16", "fp32") for f in fields)
    return f"{tensors} {'recent rows' if role == 'residual' else 'rows' if plain else 'codes'}"


def _product(label: str, group: CacheGroup, sequences: int, *factors: tuple[str, int]) -> Product:
    named = (("layers", group.layers), ("sequences", sequences), *factors)
    return Product(label, tuple(Factor(name, value) for name, value in named), "exact", group.source)
