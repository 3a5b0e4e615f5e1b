"""What an allocator takes for a cache, in parts: bytes taken, of it kept for later, and what it spares.

kvplan's own allocator is `own_parts`; engines make the same parts by their own rules (`kvplan.engines`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from kvplan.breakdown import Product, Sum
from kvplan.memory.groups import CacheGroup
from kvplan.memory.terms import allocated_terms, free_residual_terms

NAMED_DIFFERENCES = ("reserved", "saves", "padding")
"""What lies between logical and allocated bytes, as far as it has a name."""


@dataclass(frozen=True, slots=True)
class Part:
    """One cache group's share of an allocation, or something that belongs to no group (a null block, a spare page).

    Padding is the difference `allocated - reserved - logical + saves`, never stated: `padding` only names pieces of it.

    Attributes:
        name: the cache group's name, or what else it is.
        allocated: bytes that the allocator takes.
        reserved: of them, whole units for tokens or sequences that the request does not contain.
        saves: bytes that the mathematics has and the engine does not store.
        padding: named pieces of the padding; the rest of it is page rounding.
    """

    name: str
    allocated: tuple[Product, ...]
    reserved: tuple[Product, ...] = ()
    saves: tuple[Product, ...] = ()
    padding: tuple[Product, ...] = ()


@dataclass(frozen=True)
class EngineFigure:
    """A number or text that an engine itself reports, such as num_gpu_blocks or a log line."""

    name: str
    value: int | float | str
    source: str = ""

    # Read by pydantic where a plan is loaded.
    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}


def total(terms: Sequence[Product]) -> int:
    """Bytes of several products."""
    return sum(t.nbytes for t in terms)


def parts_tree(parts: Sequence[Part], kind: str) -> Sum:
    """`allocated`, `reserved`, `saves` or `padding` of all parts, by part."""
    return Sum(kind, tuple(Sum(part.name, getattr(part, kind)) for part in parts))


def own_parts(groups: Sequence[CacheGroup], context: int, sequences: int, page_size: int) -> tuple[Part, ...]:
    """kvplan's own allocator: whole pages per sequence, residuals at capacity, states."""
    return tuple(
        Part(
            g.name,
            allocated_terms(g, context, sequences, page_size),
            free_residual_terms(g, context, sequences),
        )
        for g in groups
    )
