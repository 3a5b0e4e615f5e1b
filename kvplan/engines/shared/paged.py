"""The cache of an engine that takes whole pages for each sequence: what most engines share, and what they override."""

from __future__ import annotations

from kvplan.breakdown import Factor, Product
from kvplan.engines.shared.types import Case, EngineCache
from kvplan.memory.groups import CacheGroup
from kvplan.memory.parts import Part
from kvplan.memory.terms import packed_rows
from kvplan.units import cdiv


def engine_product(label: str, group: CacheGroup, sequences: int, *factors: Factor, source: str) -> Product:
    """Bytes of all layers of a group by an engine's rule: layers x sequences x the factors."""
    layers = Factor("layers", group.layers, group.origin.layers)
    named = (layers, Factor("sequences", sequences, group.origin.sequences), *factors)
    return Product(label, named, "engine rule", source)


def bytes_factor(group: CacheGroup, tokens: int) -> Factor:
    """Bytes of `tokens` tokens of one layer, all heads of the rank, from the layout's planes."""
    return Factor("bytes", group.layout.page_bytes(tokens), f"{group.origin.width}, {group.origin.heads}")


def state_bytes(group: CacheGroup) -> Factor:
    """Bytes of one layer's states of one sequence, from the layout's planes."""
    return Factor("bytes", group.layout.fixed_bytes("state"), group.origin.width)


def some(*terms: Product) -> tuple[Product, ...]:
    """The products that are not zero."""
    return tuple(t for t in terms if t.nbytes)


class PagedCache(EngineCache):
    """Whole pages of every growing group for each sequence, one copy of every state.

    Override `rows` where the engine keeps other rows than the mathematics needs, `state_part` where it keeps more
    copies, and `extra_parts` for what belongs to no group.
    """

    def __init__(self, case: Case, page_size: int, source: str) -> None:
        self.case, self.page_size, self.source = case, page_size, source
        for group in case.groups:
            group.layout.check_page_size(page_size)

    def rows(self, group: CacheGroup, context: int) -> int:
        """Rows of one sequence for which a group holds pages; default: those that the mathematics needs."""
        return packed_rows(group, context)

    def parts(self, context: int, sequences: int) -> tuple[Part, ...]:
        """One part per group; see `EngineCache`."""
        made = [
            self.state_part(g, sequences) if g.role == "state" else self.paged_part(g, context, sequences)
            for g in self.case.groups
        ]
        return (*made, *self.extra_parts(context, sequences))

    def paged_part(self, group: CacheGroup, context: int, sequences: int) -> Part:
        """Pages for the rows that the engine keeps; rows beyond the mathematics' own are named padding."""
        assert self.page_size is not None
        page, rows, needed = self.page_size, self.rows(group, context), packed_rows(group, context)
        pages = Factor(f"pages of {page:,} tokens", cdiv(rows, page), f"ceil({rows:,} rows / {page:,})")
        taken = engine_product("pages", group, sequences, pages, bytes_factor(group, page), source=self.source)
        unit = group.layout.page_multiple
        beyond = Factor(f"rows of {unit:,} tokens" if unit > 1 else "rows", max(rows - needed, 0) // unit)
        extra = engine_product(
            "rows that attention no longer reads", group, sequences, beyond, bytes_factor(group, unit),
            source=self.source,
        )  # fmt: skip
        return Part(group.name, some(taken), padding=some(extra))

    def shared_bytes(self, tokens: int) -> int:
        """Whole pages of a prefix in the groups that keep every row; windows and states are each request's own."""
        assert self.page_size is not None
        pages = tokens // self.page_size
        growing = (g for g in self.case.groups if g.law.grows and g.law.stride == 1)
        return pages * sum(g.layers * g.layout.page_bytes(self.page_size) for g in growing)

    def state_part(self, group: CacheGroup, sequences: int) -> Part:
        """One copy of every state per sequence."""
        return Part(
            group.name, some(engine_product("states", group, sequences, state_bytes(group), source=self.source))
        )

    def extra_parts(self, context: int, sequences: int) -> tuple[Part, ...]:
        """Parts that belong to no group; default: none."""
        return ()
