"""Ranked layouts: all legal ones of N GPUs, each with make_plan's figures, the best first."""

from __future__ import annotations

import pytest

from kvplan.errors import UsageError
from kvplan.plan import PlanRequest, make_plan
from kvplan.plan.layouts import RankedLayout, rank_layouts
from kvplan.units import GIB


def sizes(row: RankedLayout) -> tuple[int, int, int, int]:
    return row.tp, row.pp, row.dp, row.dcp


def test_every_layout_of_four_gpus() -> None:
    made = rank_layouts(PlanRequest(model="llama-3.1-8b", kv="int8"), 4)
    assert {sizes(r) for r in made.layouts} == {
        (1, 1, 4, 1), (1, 2, 2, 1), (1, 4, 1, 1), (2, 1, 2, 1), (2, 2, 1, 1), (4, 1, 1, 1),
    }  # fmt: skip
    assert {r.rank for r in made.layouts} == {1}
    assert made.context == 131_072 and made.formats == {"k": "int8", "v": "int8"}
    assert made.ranked_by == "bytes per token and GPU"


@pytest.mark.parametrize("model", ["gemma-3-27b", "deepseek-v3.2", "qwen3-next-80b-a3b"])
def test_figures_are_make_plans(model: str) -> None:
    made = rank_layouts(PlanRequest(model=model, gpu="h200", context=32768), 8)
    for row in made.layouts:
        fields = {"tp": row.tp, "pp": row.pp, "dp": row.dp, "dcp": row.dcp, "dp_attention": row.dp_attention}
        plan = make_plan(PlanRequest(model=model, gpu="h200", context=32768, **fields))
        assert plan.kv is not None and plan.capacity is not None and plan.sharding is not None
        assert plan.sharding.gpus == 8
        assert (row.requests, row.tokens) == (plan.capacity.requests, plan.capacity.tokens)
        assert (row.pool_bytes, row.weights_bytes) == (plan.capacity.pool_bytes, plan.capacity.weights.nbytes)
        assert row.bytes_per_token == plan.kv.bytes_per_token
        assert row.replicated_bytes == plan.kv.replicated_bytes
        assert row.tokens_per_gpu is not None and row.tokens_per_gpu.value == row.tokens / 8
    tokens = [row.tokens for row in made.layouts]
    assert tokens == sorted(tokens, reverse=True)


def test_copies_rank_last() -> None:
    """8 KV heads on 16 ranks: every head twice, so that plain tp 16 holds no more tokens than tp 8."""
    made = rank_layouts(PlanRequest(model="llama-3.1-70b"), 16)
    first, last = made.layouts[0], made.layouts[-1]
    assert first.replicated_bytes == 0 and first.bytes_per_token_per_gpu.value == 327_680 / 16
    assert sizes(last) == (16, 1, 1, 1) and last.replicated_bytes == 131_072 * 327_680
    shared = next(r for r in made.layouts if r.dcp == 2)
    assert shared.tp == 16 and (shared.rank, shared.replicated_bytes) == (1, 0)


def test_latents_prefer_attention_replicas_or_shared_rows() -> None:
    made = rank_layouts(PlanRequest(model="deepseek-v3", gpu="h200", context=32768), 8)
    plain = next(r for r in made.layouts if sizes(r) == (8, 1, 1, 1) and not r.dp_attention)
    best = [r for r in made.layouts if r.rank == 1]
    assert all(r.dp_attention or r.dcp > 1 or r.pp > 1 for r in best)
    assert plain.replicated_bytes == 7 * 32768 * 61 * 1152
    assert plain.tokens is not None and best[0].tokens is not None and best[0].tokens > 6 * plain.tokens
    assert all(r.tokens == 0 for r in made.layouts if r.pool_bytes is not None and r.pool_bytes < GIB)


def test_no_legal_layout() -> None:
    one = rank_layouts(PlanRequest(model="llama-3.1-8b", tp=4), 7)
    assert [sizes(r) for r in one.layouts] == [(1, 1, 7, 1), (1, 7, 1, 1)]
    with pytest.raises(UsageError, match="gpus"):
        rank_layouts(PlanRequest(model="llama-3.1-8b"), 0)
