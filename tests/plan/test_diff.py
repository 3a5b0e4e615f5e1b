"""Two plans side by side."""

from __future__ import annotations

from typing import Any

import pytest

from kvplan.errors import UsageError
from kvplan.plan import Plan, PlanRequest, make_plan
from kvplan.plan.diff import DiffRow, diff_plans


def plan(model: str = "llama-3.1-8b", **fields: Any) -> Plan:
    return make_plan(PlanRequest(model=model, **fields))


def rows(a: Plan, b: Plan) -> dict[str, DiffRow]:
    return {row.figure: row for row in diff_plans(a, b).rows}


def test_every_figure_of_both() -> None:
    a, b = plan(context=32768, gpu="h200"), plan(context=32768, gpu="h200", kv="fp8_e4m3", tp=2)
    found = rows(a, b)
    row = found["kv.logical_bytes"]
    assert (row.before, row.after, row.difference, row.ratio) == (2**32, 2**30, 2**30 - 2**32, 0.25)
    assert found["kv.constant_bytes"].ratio is None
    assert a.capacity is not None and b.capacity is not None
    assert (found["capacity.tokens"].before, found["capacity.tokens"].after) == (a.capacity.tokens, b.capacity.tokens)
    changed = diff_plans(a, b).changed
    assert changed["tp"] == (1, 2) and changed["k"] == ("bf16", "fp8_e4m3")


def test_a_plan_against_itself() -> None:
    made = plan("gemma-3-27b", kv="int8:channel/32")
    diff = diff_plans(made, made)
    assert not diff.changed
    assert all(row.difference == 0 and row.ratio in (1, None) for row in diff.rows)


def test_ladders_compare_at_shared_lengths() -> None:
    found = diff_plans(plan("gemma-3n-e4b"), plan("gemma-3-27b")).rows
    assert [r.context for r in found if r.figure == "kv.logical_bytes"] == [1024 * 2**i for i in range(6)]


def test_one_side_without_a_gpu() -> None:
    row = rows(plan(context=10), plan(context=10, gpu="h200"))["capacity.requests"]
    assert row.before is None and row.difference is None and row.after


def test_what_cannot_be_compared() -> None:
    with pytest.raises(UsageError, match="has a context"):
        diff_plans(plan(context=10), plan())
