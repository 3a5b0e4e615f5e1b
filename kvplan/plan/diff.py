"""Two plans side by side: each figure before and after, the difference and the ratio."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kvplan.errors import UsageError
from kvplan.memory.figures import SUMMED, KvFigures
from kvplan.plan.result import Plan

_CAPACITY = ("pool_bytes", "requests", "tokens", "longest_request")
_UNITS = {"requests": "requests", "tokens": "tokens", "longest_request": "tokens"}


@dataclass(frozen=True, kw_only=True)
class DiffRow:
    """One figure of both plans.

    Attributes:
        figure: its name in the plan; `kv.NAME` or `capacity.NAME`.
        context: the length it is of, where a plan without a context has several.
        unit: bytes, bytes per token, tokens or requests.
        before, after: as in the plans; None where one of them has no such figure.
        difference: after - before.
        ratio: after / before; None if one is missing or before is 0.
    """

    figure: str
    context: int | None
    unit: str
    before: int | float | None
    after: int | float | None
    difference: int | float | None
    ratio: float | None


@dataclass(frozen=True, kw_only=True)
class PlanDiff:
    """The request's fields that differ, as (before, after), and all figures."""

    before: str
    after: str
    changed: dict[str, tuple[Any, Any]]
    rows: tuple[DiffRow, ...]


def diff_plans(a: Plan, b: Plan) -> PlanDiff:
    """Compare two plans, each with a context or both without one (then at the lengths that both ladders have).

    Raises:
        UsageError: only one of them has a context, or the ladders share no length.
    """
    if (a.kv is None) != (b.kv is None):
        raise UsageError("one plan has a context and the other has none", "give both a --context, or neither")
    before, after = dict(a.request), dict(b.request)
    changed = {name: (before[name], after[name]) for name in before if before[name] != after[name]}
    return PlanDiff(before=a.model.id, after=b.model.id, changed=changed, rows=(*_kv_rows(a, b), *_capacity_rows(a, b)))


def _kv_rows(a: Plan, b: Plan) -> Iterator[DiffRow]:
    if a.kv and b.kv:
        yield from _figures(a.kv, b.kv, None)
        return
    other = {kv.context: kv for kv in b.ladder}
    shared = [kv for kv in a.ladder if kv.context in other]
    if not shared:
        raise UsageError("the two ladders have no length in common", "give both a --context")
    for name in ("logical_bytes", "allocated_bytes"):
        for kv in shared:
            yield _row(f"kv.{name}", kv.context, "bytes", getattr(kv, name), getattr(other[kv.context], name))
    yield from _slopes(shared[0], other[shared[0].context])


def _figures(a: KvFigures, b: KvFigures, context: int | None) -> Iterator[DiffRow]:
    for name in SUMMED:
        if name != "fixed_bytes_per_sequence":
            yield _row(f"kv.{name}", context, "bytes", getattr(a, name), getattr(b, name))
    yield from _slopes(a, b)


def _slopes(a: KvFigures, b: KvFigures) -> Iterator[DiffRow]:
    one, two = (int(r.value) if r.denominator == 1 else r.value for r in (a.bytes_per_token, b.bytes_per_token))
    yield _row("kv.bytes_per_token", None, "bytes per token", one, two)
    fixed = a.fixed_bytes_per_sequence, b.fixed_bytes_per_sequence
    yield _row("kv.fixed_bytes_per_sequence", None, "bytes", *fixed)


def _capacity_rows(a: Plan, b: Plan) -> Iterator[DiffRow]:
    if a.capacity is None and b.capacity is None:
        return
    for name in _CAPACITY:
        one, two = getattr(a.capacity, name, None), getattr(b.capacity, name, None)
        if one is not None or two is not None:
            yield _row(f"capacity.{name}", None, _UNITS.get(name, "bytes"), one, two)


def _row(figure: str, context: int | None, unit: str, before: int | float | None, after: int | float | None) -> DiffRow:
    both = before is not None and after is not None
    return DiffRow(
        figure=figure,
        context=context,
        unit=unit,
        before=before,
        after=after,
        difference=after - before if both else None,  # type: ignore[operator]
        ratio=after / before if both and before else None,  # type: ignore[operator]
    )
