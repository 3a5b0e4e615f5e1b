"""The byte figures of a plan, summed from terms: the `kv` table of the machine-readable plan.

One rank (the one that holds most), the whole batch, every sequence at `context` tokens. All integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from math import lcm
from typing import Any, ClassVar

from kvplan.breakdown import Sum
from kvplan.memory.groups import CacheGroup
from kvplan.memory.parts import Part, own_parts, total
from kvplan.memory.sharding import Sharding
from kvplan.memory.terms import (
    LOGICAL_KINDS,
    constant_terms,
    growth_terms,
    growth_unit,
    logical_terms,
    settled_at,
)

DEFAULT_PAGE_SIZE = 128


@dataclass(frozen=True)
class Ratio:
    """An exact fraction in lowest terms."""

    numerator: int
    denominator: int

    # Read by pydantic where a plan is loaded; this module does not import it.
    __pydantic_config__: ClassVar[Any] = {"extra": "forbid", "strict": True}

    @classmethod
    def of(cls, value: Fraction) -> Ratio:
        return cls(value.numerator, value.denominator)

    @classmethod
    def quotient(cls, above: int, below: int) -> Ratio:
        return cls.of(Fraction(above, below))

    @property
    def value(self) -> float:
        return self.numerator / self.denominator


@dataclass(frozen=True, kw_only=True)
class Figures:
    """The byte fields that a plan and each of its groups share."""

    payload_bytes: int
    """Codes or values of rows that exist, not the residual."""
    metadata_bytes: int
    """Scales and zeros that grow with rows."""
    residual_bytes: int
    """Unquantised rows of a quantised tensor, exact at this length."""
    state_bytes: int
    """Recurrent, convolution and ring rows, one copy per sequence."""
    logical_bytes: int
    """payload + metadata + residual + state."""
    reserved_bytes: int
    """Whole units kept for tokens that the request does not contain: residual capacity beyond the residual."""
    allocated_bytes: int
    """What the allocator takes: pages x page_bytes + residual capacity + states."""
    padding_bytes: int
    """allocated - reserved - logical + engine_saves; never negative."""
    engine_saves_bytes: int
    """What an engine does not store although the mathematics has it; 0 without an engine."""
    constant_bytes: int
    """Static scales and codebooks, in none of the sums above. An allocator really takes allocated + constant."""
    replicated_bytes: int
    """Sum of all ranks' logical bytes minus the logical bytes of one rank that holds everything."""
    bytes_per_token: Ratio
    """Logical slope beyond all windows, per sequence and rank."""
    fixed_bytes_per_sequence: int
    """Logical bytes of a sequence beyond its slope: full windows, states, the constant part of residuals."""


SUMMED = tuple(f.name for f in fields(Figures) if f.name != "bytes_per_token")
"""Fields of a plan that are the sums over its groups, all but the fraction."""


@dataclass(frozen=True, kw_only=True)
class _GroupHead:
    name: str
    role: str
    layers: int
    formats: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class GroupFigures(Figures, _GroupHead):
    """One layer group: name, role (kv, latent, index, cross, state), layers, formats, and its bytes."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid", "strict": True}


@dataclass(frozen=True, kw_only=True)
class _At:
    context: int
    batch: int


@dataclass(frozen=True, kw_only=True)
class KvFigures(Figures, _At):
    """The whole cache of one rank at `context` tokens and `batch` sequences."""

    by_group: tuple[GroupFigures, ...]

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid", "strict": True}


def default_page_size(groups: Sequence[CacheGroup]) -> int:
    """The least multiple of 128 tokens that every group's layout allows."""
    return lcm(DEFAULT_PAGE_SIZE, *(g.layout.page_multiple for g in groups))


def check_page_size(groups: Sequence[CacheGroup], page_size: int) -> int:
    """The page size, if every layout allows it.

    Raises:
        UsageError: it cuts a group of tokens.
    """
    for group in groups:
        group.layout.check_page_size(page_size)
    return page_size


def logical_tree(groups: Sequence[CacheGroup], context: int, batch: int) -> Sum:
    """Logical bytes: groups, then kinds (payload, metadata, residual, state), then products."""
    return Sum("logical", tuple(_logical_group(g, context, batch) for g in groups))


def _logical_group(group: CacheGroup, context: int, batch: int) -> Sum:
    kinds = logical_terms(group, context, batch)
    return Sum(group.name, tuple(Sum(kind, terms) for kind, terms in kinds.items()))


def constant_tree(groups: Sequence[CacheGroup]) -> Sum:
    """Bytes that neither context nor batch changes."""
    return Sum("constant", tuple(Sum(g.name, constant_terms(g)) for g in groups))


def growth_tree(groups: Sequence[CacheGroup]) -> tuple[int, Sum]:
    """(n, what every n further tokens of one sequence add beyond all windows), n the least that gives whole bytes."""
    tokens = lcm(1, *(growth_unit(g) for g in groups))
    return tokens, Sum("growth", tuple(Sum(g.name, growth_terms(g, tokens)) for g in groups))


def held_bytes(groups: Sequence[CacheGroup], context: int, batch: int, page_size: int) -> int:
    """What kvplan's own allocator takes: allocated + constant bytes, from the plan's own terms."""
    return constant_tree(groups).nbytes + sum(total(p.allocated) for p in own_parts(groups, context, batch, page_size))


def kv_figures(
    groups: Sequence[CacheGroup],
    unsharded: Sequence[CacheGroup],
    sharding: Sharding | int,
    context: int,
    batch: int,
    page_size: int | None = None,
    parts: Sequence[Part] | None = None,
) -> KvFigures:
    """All figures at one length.

    Args:
        groups: the cache of one rank.
        unsharded: the same cache on one rank that holds everything, for the replicated bytes.
        sharding: the layout of GPUs, or a number of tensor-parallel ranks.
        batch: sequences of all replicas together.
        page_size: of kvplan's own allocator.
        parts: what an engine's allocator takes instead: one part per group, then parts of no group.
    """
    if parts is None:
        assert page_size is not None
        parts = own_parts(groups, context, Sharding.of(sharding).sequences(batch), page_size)
    sharding = Sharding.of(sharding)
    shares = [
        _group_figures(g, whole, sharding, context, batch, part)
        for g, whole, part in zip(groups, unsharded, parts, strict=False)
    ]
    each = (*shares, *(_extra_figures(part) for part in parts[len(groups) :]))
    sums = {name: sum(getattr(g, name) for g in each) for name in SUMMED}
    slope = sum((Fraction(g.bytes_per_token.numerator, g.bytes_per_token.denominator) for g in each), Fraction(0))
    return KvFigures(context=context, batch=batch, bytes_per_token=Ratio.of(slope), by_group=each, **sums)


def _group_figures(
    group: CacheGroup, whole: CacheGroup, sharding: Sharding, context: int, batch: int, part: Part
) -> GroupFigures:
    sequences = sharding.sequences(batch)
    kinds = logical_terms(group, context, sequences)
    parts = {f"{kind}_bytes": total(kinds.get(kind, ())) for kind in LOGICAL_KINDS}
    logical = sum(parts.values())
    allocated, reserved, saves = _allocation(part, logical)
    unit = growth_unit(group)
    slope = Fraction(total(growth_terms(group, unit)), unit)
    settled = settled_at(group)
    return GroupFigures(
        name=group.name,
        role=group.role,
        layers=group.layers,
        formats=group.formats,
        **parts,
        logical_bytes=logical,
        reserved_bytes=reserved,
        allocated_bytes=allocated,
        padding_bytes=allocated - reserved - logical + saves,
        engine_saves_bytes=saves,
        constant_bytes=total(constant_terms(group)),
        replicated_bytes=all_ranks_logical(group, whole, sharding, context, batch) - _logical(whole, context, batch),
        bytes_per_token=Ratio.of(slope),
        fixed_bytes_per_sequence=_logical(group, settled, 1) - int(slope * settled),
    )


def _extra_figures(part: Part) -> GroupFigures:
    """What an engine takes beside all groups: reserved, as no request has it."""
    allocated, reserved, saves = _allocation(part, 0)
    zeros = dict.fromkeys(SUMMED, 0) | {"allocated_bytes": allocated, "reserved_bytes": reserved}
    zeros |= {"padding_bytes": allocated - reserved + saves, "engine_saves_bytes": saves}
    return GroupFigures(name=part.name, role="engine", layers=0, formats={}, bytes_per_token=Ratio(0, 1), **zeros)


def _allocation(part: Part, logical: int) -> tuple[int, int, int]:
    """(allocated, reserved, saved) bytes of a part; what it names must not exceed what it takes."""
    allocated, reserved, saves = total(part.allocated), total(part.reserved), total(part.saves)
    padding = allocated - reserved - logical + saves
    assert padding >= total(part.padding) >= 0, (part, logical)
    return allocated, reserved, saves


def all_ranks_logical(group: CacheGroup, whole: CacheGroup, sharding: Sharding, context: int, batch: int) -> int:
    """Logical bytes of a group, all its layers, summed over every GPU.

    Replicas hold different sequences and stages different layers, so only the ranks of one stage can hold copies.
    """
    shards = sharding.holders // group.law.ranks
    everywhere = replace(group, layers=whole.layers)
    # Ranks that take turns differ by at most one row, so few distinct row counts need computing.
    by_rows: dict[int, int] = {}
    total = 0
    for rank in range(group.law.ranks):
        law = replace(group.law, rank=rank)
        rows = law.rows(context)
        if rows not in by_rows:
            by_rows[rows] = _logical(replace(everywhere, law=law), context, batch)
        total += by_rows[rows]
    return shards * total


def _logical(group: CacheGroup, context: int, batch: int) -> int:
    return sum(total(terms) for terms in logical_terms(group, context, batch).values())
