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


def logical_terms(group: CacheGroup, tokens: int, sequences: int) -> dict[str, tuple[Product, ...]]:
    """What the mathematics needs, by kind; a kind without bytes has no terms."""
    if not group.layers:
        return {}
    terms = {
        "payload": _row_terms(group, "payload", tokens, sequences),
        "metadata": _row_terms(group, "metadata", tokens, sequences),
        "residual": _residual_terms(group, tokens, sequences),
        "state": _state_terms(group, sequences),
    }
    return {kind: made for kind, made in terms.items() if made}


def packed_rows(group: CacheGroup, tokens: int) -> int:
    """Rows of one sequence that need a page: the most that any tensor has packed."""
    rows = group.law.rows(tokens)
    return max((t.split(rows)[0] for t in group.layout.tensors), default=0)


def allocated_terms(group: CacheGroup, tokens: int, sequences: int, page_size: int) -> tuple[Product, ...]:
    """What kvplan's own allocator takes: whole pages per sequence, residuals at capacity, states."""
    packed = packed_rows(group, tokens)
    pages = Factor(
        f"pages of {page_size:,} tokens",
        cdiv(packed, page_size),
        f"ceil({packed:,} packed rows / page_size {page_size:,}); rows = {group.law.explain(tokens)}",
    )
    terms = [
        _product("pages", group, sequences, pages, _fixed(group, "page", group.layout.page_bytes(page_size))),
        _product("residual capacity", group, sequences, _fixed(group, "residual")),
        _product("states", group, sequences, _fixed(group, "state")),
    ]
    return tuple(t for t in terms if t.nbytes)


def free_residual_terms(group: CacheGroup, tokens: int, sequences: int) -> tuple[Product, ...]:
    """Residual capacity that no recent row fills yet."""
    rows = group.law.rows(tokens)
    recent = {t.role: t.split(rows)[1] for t in group.layout.tensors}
    terms = []
    for plane in group.layout.scoped("residual"):
        for f in plane.fields:
            free = Factor("free rows", plane.capacity - recent[f.tensor], f"{plane.capacity:,} rows held ready")
            heads = Factor("kv heads", plane.heads(group.layout.heads), group.origin.heads)
            terms.append(_product(f"{f.tensor} residual not filled", group, sequences, heads, free, _width(group, f)))
    return tuple(t for t in terms if t.nbytes)


def constant_terms(group: CacheGroup) -> tuple[Product, ...]:
    """Static scales and codebooks: once per layer, whatever the context and batch."""
    term = _product("static scales", group, 1, _fixed(group, "layer"))
    return (term,) if term.nbytes else ()


def growth_unit(group: CacheGroup) -> int:
    """The least number of further tokens that adds a whole number of groups and rows; 1 where nothing grows."""
    return group.layout.page_multiple * group.law.tokens_per_row if group.law.grows else 1


def growth_terms(group: CacheGroup, tokens: int) -> tuple[Product, ...]:
    """What every further `tokens` tokens of a sequence add beyond all windows; a multiple of `growth_unit`."""
    if not group.law.grows or not group.layers:
        return ()
    terms: list[Product] = []
    for role in ("payload", "metadata"):
        parts = [(f, p, tokens // group.law.tokens_per_row) for p, f in _page_fields(group, role)]
        terms += _merged(group, role, parts, 1, f"{tokens:,} further tokens")
    return tuple(terms)


def settled_at(group: CacheGroup) -> int:
    """A length from which on the group's bytes are exactly `fixed + growth`: windows full, residuals regular."""
    recents = [t.recent for t in group.layout.tensors if t.recent]
    unit = lcm(growth_unit(group), *(r * group.law.tokens_per_row for r in recents))
    return align_up(max(group.law.full_at, unit), unit)


def _page_fields(group: CacheGroup, role: str) -> Iterable[tuple[Plane, Field]]:
    return ((p, f) for p in group.layout.scoped("page") for f in p.fields if f.role == role)


def _row_terms(group: CacheGroup, role: str, tokens: int, sequences: int) -> tuple[Product, ...]:
    """Payload or metadata of the packed rows."""
    rows = group.law.rows(tokens)
    packed = {t.role: t.split(rows)[0] for t in group.layout.tensors}
    parts = [(f, p, packed[f.tensor]) for p, f in _page_fields(group, role) if packed[f.tensor]]
    held_back = ", without the residual's" if any(packed[f.tensor] != rows for f, _, _ in parts) else ""
    return tuple(_merged(group, role, parts, sequences, group.law.explain(tokens) + held_back))


def _residual_terms(group: CacheGroup, tokens: int, sequences: int) -> tuple[Product, ...]:
    """Rows that wait unquantised, exactly."""
    rows = group.law.rows(tokens)
    recent = {t.role: t.split(rows)[1] for t in group.layout.tensors}
    parts = [(f, p, recent[f.tensor]) for p in group.layout.scoped("residual") for f in p.fields if recent[f.tensor]]
    laws = {f"{t.role}: {t.recent:,} recent, flush {t.flush}" for t in group.layout.tensors if t.recent}
    why = f"of {rows:,} rows; {'; '.join(sorted(laws))}"
    return tuple(_merged(group, "residual", parts, sequences, why))


def _state_terms(group: CacheGroup, sequences: int) -> tuple[Product, ...]:
    terms = []
    for plane in group.layout.scoped("state"):
        for f in plane.fields:
            elements = Factor("elements", f.items, group.origin.width)
            width = Factor("bytes", f.unit_bytes // f.items, f.storage)
            terms.append(_product(f"{f.tensor} state", group, sequences, elements, width))
    return tuple(terms)


def _merged(
    group: CacheGroup, role: str, parts: Iterable[tuple[Field, Plane, int]], sequences: int, why: str
) -> Iterable[Product]:
    """One product for all fields with the same heads, rows and tokens per unit, so that K and V share a line."""
    together: dict[tuple[int, int, int], list[Field]] = {}
    for field, plane, rows in parts:
        together.setdefault((plane.heads(group.layout.heads), rows, field.tokens), []).append(field)
    for (heads, rows, per), fields in together.items():
        units = Factor(_row_name(group), rows, why)
        if per != 1:
            units = Factor(f"groups of {per:,} tokens", rows // per, f"{rows:,} / {per:,}; {why}")
        width = Factor("bytes", sum(f.unit_bytes for f in fields), f"{group.origin.width}: {_widths(fields)}")
        whole_row = group.layout.heads > 1 and heads == 1
        why_heads = f"one row for all {group.layout.heads} kv heads" if whole_row else group.origin.heads
        yield _product(_label(role, fields), group, sequences, Factor("kv heads", heads, why_heads), units, width)


def _width(group: CacheGroup, field: Field) -> Factor:
    return Factor("bytes", field.unit_bytes, f"{group.origin.width}: {_widths([field])}")


def _widths(fields: list[Field]) -> str:
    """`k codes 128 x bf16 + v codes 128 x bf16`."""
    return " + ".join(f"{f.tensor} {f.name} {f.items:,} x {f.storage}" for f in fields)


def _fixed(group: CacheGroup, scope: str, nbytes: int | None = None) -> Factor:
    """The bytes of one layer's planes of a scope, with what lies in them."""
    planes = group.layout.scoped(scope)
    capacity = "".join(f", {p.capacity:,} rows" for p in planes[:1] if p.capacity)
    inside = "; ".join(
        f"{_widths(list(p.fields))}" + (f" per {p.tokens:,} tokens" if p.tokens > 1 else "") for p in planes
    )
    heads = f", {group.layout.heads} kv heads" if group.layout.tensors else ""
    value = group.layout.fixed_bytes(scope) if nbytes is None else nbytes
    return Factor("bytes", value, f"{inside}{heads}{capacity}; {group.origin.width}, {group.origin.heads}")


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


def _product(label: str, group: CacheGroup, sequences: int, *factors: Factor) -> Product:
    layers = Factor("layers", group.layers, group.origin.layers)
    named = (layers, Factor("sequences", sequences, group.origin.sequences), *factors)
    return Product(label, named, "exact", group.source)
