"""Cache groups as integer coefficients: what a sweep evaluates instead of terms, and inverts instead of searching.

The coefficients come from the same fields and planes as the terms (`kvplan.memory.terms`), summed over layers, heads
and groups that follow the same row law; a test proves both equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from kvplan.formats.layout import Field
from kvplan.memory.groups import CacheGroup
from kvplan.memory.rows import RowLaw
from kvplan.memory.terms import constant_terms
from kvplan.units import cdiv


class Rank(Protocol):
    """What one rank holds: kvplan's own curves, or an engine's cache."""

    def held(self, tokens: int, sequences: int) -> int:
        """Allocated and constant bytes of `sequences` sequences."""

    def beside(self, tokens: int) -> int | None:
        """Bytes of one more, shorter sequence; None where all slots have one size."""

    def shared_bytes(self, tokens: int) -> int:
        """Bytes of a prefix that requests can share."""


Split = tuple[int, bool]
"""Of one tensor: residual capacity in rows (0 without), and whether it is flushed as a whole."""


@dataclass(slots=True)
class Curve:
    """Bytes of one sequence in all groups with the same rows and the same splits.

    Attributes:
        splits: of each tensor; without residuals one entry.
        page_bytes: of one page, all layers of these groups.
        rates: for each split, bytes of a packed row.
        grouped: for each split, (rows of a group, bytes of a group) of metadata shared by several rows.
        waiting: for each split, bytes of a residual row.
    """

    law: RowLaw
    splits: tuple[Split, ...]
    page_bytes: int
    rates: list[int]
    grouped: list[list[tuple[int, int]]]
    waiting: list[int]

    def packed(self, rows: int) -> int:
        """The most rows that any tensor has packed."""
        if self.splits == _PLAIN:
            return rows
        return max(rows - _recent(rows, split) for split in self.splits)

    def logical(self, tokens: int) -> int:
        """Logical bytes of one sequence."""
        rows = self.law.rows(tokens)
        if self.splits == _PLAIN:
            total = rows * self.rates[0]
            for per, size in self.grouped[0]:
                total += rows // per * size
            return total
        total = 0
        for split, rate, groups, wait in zip(self.splits, self.rates, self.grouped, self.waiting, strict=True):
            recent = _recent(rows, split)
            packed = rows - recent
            total += packed * rate + recent * wait
            for per, size in groups:
                total += packed // per * size
        return total

    def pages_bytes(self, tokens: int, page_size: int) -> int:
        """Bytes of the pages of one sequence."""
        return cdiv(self.packed(self.law.rows(tokens)), page_size) * self.page_bytes

    def most_tokens(self, budget: int, page_size: int, ceiling: int) -> int:
        """The most tokens, at most `ceiling`, whose pages take `budget` bytes or less."""
        if budget < 0:
            return 0
        if not self.page_bytes:
            return ceiling
        room = budget // self.page_bytes * page_size
        rows = min(_most_rows(room, split) for split in self.splits)
        if self.law.limit and rows >= self.law.limit:
            return ceiling
        return min(rows * self.law.tokens_per_row, ceiling)


_PLAIN: tuple[Split, ...] = ((0, False),)


def _recent(rows: int, split: Split) -> int:
    capacity, whole = split
    if not capacity:
        return 0
    return rows % capacity if whole else min(rows, capacity)


def _most_rows(packed: int, split: Split) -> int:
    """The most rows of which `packed` or fewer are packed."""
    capacity, whole = split
    if not capacity:
        return packed
    return packed // capacity * capacity + capacity - 1 if whole else packed + capacity


@dataclass(frozen=True, slots=True)
class RankCurves:
    """One rank's cache: curves, and what neither rows nor context change.

    Attributes:
        fixed_logical, fixed_allocated: bytes per sequence: states, encoder rows, residual capacities.
        constant: bytes whatever the number of sequences.
        full_at: tokens from which on only growing curves change.
    """

    curves: tuple[Curve, ...]
    fixed_logical: int
    fixed_allocated: int
    constant: int
    page_size: int
    full_at: int

    def logical(self, tokens: int) -> int:
        """Logical bytes of one sequence."""
        total = self.fixed_logical
        for curve in self.curves:
            total += curve.logical(tokens)
        return total

    def allocated(self, tokens: int) -> int:
        """Allocated bytes of one sequence."""
        total, page_size = self.fixed_allocated, self.page_size
        for curve in self.curves:
            total += curve.pages_bytes(tokens, page_size)
        return total

    def held(self, tokens: int, sequences: int) -> int:
        """What the allocator really takes: allocated and constant bytes of `sequences` sequences."""
        return self.constant + sequences * self.allocated(tokens)

    def beside(self, tokens: int) -> int:
        """Bytes of one more, shorter sequence."""
        return self.allocated(tokens)

    def shared_bytes(self, tokens: int) -> int:
        """Whole pages of a prefix in the curves that keep every row."""
        return sum(tokens // self.page_size * c.page_bytes for c in self.curves if c.law == RowLaw())

    def most_tokens(self, budget: int, ceiling: int) -> int:
        """The most tokens of one sequence, at most `ceiling`, that take `budget` bytes or less; the exact inverse."""
        if ceiling < 1 or budget < self.allocated(1):
            return 0
        growing = [c for c in self.curves if c.law.grows]
        low, high = 1, ceiling
        if len(self.curves) == 1:
            return self.curves[0].most_tokens(budget - self.fixed_allocated, self.page_size, ceiling)
        settled = max(self.full_at, 1)
        if settled < ceiling and self.allocated(settled) <= budget:
            if len(growing) == 1:
                left = budget - self.allocated(settled) + growing[0].pages_bytes(settled, self.page_size)
                return growing[0].most_tokens(left, self.page_size, ceiling)
            low = settled
        else:
            high = min(high, settled)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.allocated(middle) <= budget else (low, middle - 1)
        return low


def rank_curves(groups: Sequence[CacheGroup], page_size: int) -> RankCurves:
    """The coefficients of one rank's cache."""
    merged: dict[tuple[RowLaw, tuple[Split, ...]], Curve] = {}
    fixed_logical = fixed_allocated = constant = 0
    for group in groups:
        constant += sum(t.nbytes for t in constant_terms(group))
        states = group.layers * group.layout.fixed_bytes("state")
        fixed_logical += states
        fixed_allocated += states + group.layers * group.layout.fixed_bytes("residual")
        if group.layers and group.layout.tensors:
            curve = _curve(group, page_size)
            if group.law.law in ("encoder", "ring"):
                fixed_logical += curve.logical(0)
                fixed_allocated += curve.pages_bytes(0, page_size)
            else:
                _merge(merged, curve)
    curves = tuple(merged.values())
    full_at = max((c.law.full_at for c in curves), default=0)
    return RankCurves(curves, fixed_logical, fixed_allocated, constant, page_size, full_at)


def _merge(merged: dict[tuple[RowLaw, tuple[Split, ...]], Curve], curve: Curve) -> None:
    known = merged.setdefault((curve.law, curve.splits), curve)
    if known is not curve:
        known.page_bytes += curve.page_bytes
        for i in range(len(known.splits)):
            known.rates[i] += curve.rates[i]
            known.grouped[i] += curve.grouped[i]
            known.waiting[i] += curve.waiting[i]


def _curve(group: CacheGroup, page_size: int) -> Curve:
    """A group's coefficients, from the fields of its planes."""
    layout, layers = group.layout, group.layers
    split_of = {t.role: (t.recent, t.flush == "whole") if t.recent else _PLAIN[0] for t in layout.tensors}
    splits = tuple(dict.fromkeys(split_of.values()))
    curve = Curve(
        group.law,
        splits,
        layers * layout.page_bytes(page_size),
        [0 for _ in splits],
        [[] for _ in splits],
        [0 for _ in splits],
    )
    for scope, role, field, heads in _fields(group):
        at = splits.index(split_of[field.tensor])
        size = layers * heads * field.unit_bytes
        if scope == "residual":
            curve.waiting[at] += size
        elif role == "padding":
            continue
        elif field.tokens == 1:
            curve.rates[at] += size
        else:
            curve.grouped[at].append((field.tokens, size))
    return curve


def _fields(group: CacheGroup) -> Iterable[tuple[str, str, Field, int]]:
    for plane in group.layout.planes:
        if plane.scope in ("page", "residual"):
            for field in plane.fields:
                yield plane.scope, field.role, field, plane.heads(group.layout.heads)
