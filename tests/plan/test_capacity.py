"""Capacity is the exact inverse of the bytes; more context or more requests never take less."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvplan.formats.grammar import parse_any
from kvplan.memory.curves import rank_curves
from kvplan.memory.figures import default_page_size, held_bytes, logical_tree
from kvplan.memory.groups import CacheFormats, CacheGroup, cache_groups
from kvplan.plan import Plan, PlanRequest, make_plan
from kvplan.plan.capacity import fit_at, largest, usable_bytes
from kvplan.specs.load import load_model
from kvplan.units import GIB

FORMATS = (
    "bf16",
    "int8",
    "int8:head",
    "int8:channel/32,asym",
    "int8:channel/64,recent=128",
    "int8:group/32,recent=128",
)
MODELS = ("llama-3.1-8b", "gemma-3-27b", "mistral-7b-v0.1", "qwen3-next-80b-a3b", "deepseek-v3.2", "gpt-oss-120b")
_built: dict[tuple[str, str], tuple[CacheGroup, ...]] = {}


def built(model: str, fmt: str) -> tuple[CacheGroup, ...]:
    if (model, fmt) not in _built:
        _built[model, fmt] = cache_groups(load_model(model), CacheFormats(*[parse_any(fmt)] * 4))
    return _built[model, fmt]


models, formats = st.sampled_from(MODELS), st.sampled_from(FORMATS)
lengths, pools = st.integers(1, 300_000), st.integers(0, 500 * GIB)


@given(models, formats, lengths, st.integers(0, 5000), st.integers(1, 50))
def test_monotone(model: str, fmt: str, context: int, more: int, batch: int) -> None:
    groups = built(model, fmt)
    page = default_page_size(groups)
    assert held_bytes(groups, context, batch, page) <= held_bytes(groups, context + more, batch, page)
    assert held_bytes(groups, context, batch, page) <= held_bytes(groups, context, batch + 1, page)


@given(models, lengths, st.integers(1, 50))
def test_fewer_bits_never_take_more(model: str, context: int, batch: int) -> None:
    """By token, so that only the width of a code differs; 16 bit has no scale."""
    held = []
    for fmt in ("int2", "int8", "bf16", "fp32"):
        groups = built(model, fmt)
        held.append(held_bytes(groups, context, batch, 128))
        held.append(logical_tree(groups, context, batch).nbytes)
    assert held[::2] == sorted(held[::2]) and held[1::2] == sorted(held[1::2])


def test_logical_bytes_may_fall_where_a_residual_is_quantised() -> None:
    """At the 32nd token a whole group leaves the 16-bit residual; only allocated bytes are monotone in context."""
    groups = built("llama-3.1-8b", "int8:channel/32,asym")
    before, after = (logical_tree(groups, n, 1).nbytes for n in (31, 32))
    assert before > after


@settings(deadline=None)
@given(models, formats, lengths, pools)
def test_capacity_is_the_exact_inverse(model: str, fmt: str, context: int, pool: int) -> None:
    groups = built(model, fmt)
    page = default_page_size(groups)
    fit = fit_at((rank_curves(groups, page),), pool, context)
    if fit.requests:
        assert held_bytes(groups, context, fit.requests, page) <= pool
    assert held_bytes(groups, context, fit.requests + 1, page) > pool
    shorter = fit.tokens - fit.requests * context
    assert 0 <= shorter < context
    constant = held_bytes(groups, context, 0, page)

    def with_a_further(tokens: int) -> int:
        return held_bytes(groups, context, fit.requests, page) + held_bytes(groups, tokens, 1, page) - constant

    if shorter:
        assert with_a_further(shorter) <= pool
    if shorter + 1 < context:
        assert with_a_further(shorter + 1) > pool


@given(st.integers(-1, 2000), st.integers(0, 1000))
def test_largest(threshold: int, ceiling: int) -> None:
    assert largest(lambda n: n <= threshold, ceiling) == max(0, min(threshold, ceiling))


def test_usable_memory_is_exact() -> None:
    assert usable_bytes(10**10, 0.7) == 7 * 10**9
    assert usable_bytes(3, 0.9) == 2


def plan(**fields: Any) -> Plan:
    return make_plan(PlanRequest(**{"model": "llama-3.1-8b", "gpu": "h200", **fields}))


def test_pool_is_usable_memory_less_the_weights() -> None:
    room = plan(context=32768, tp=2).capacity
    assert room is not None
    assert room.weights.nbytes == 8_030_000_000
    assert room.pool_bytes == usable_bytes(room.memory_bytes, 0.9) - 8_030_000_000
    assert room.weights.basis == "estimate"
    assert room.requests == room.pool_bytes // (2 * GIB)


def test_weights_by_number_type() -> None:
    sizes = {
        d: plan(context=1, weights_dtype=d).capacity.weights.nbytes for d in ("fp32", "bf16", "fp8", "int8", "int4")
    }
    assert sizes == {"fp32": 4 * 8030 * 10**6, "bf16": 2 * 8030 * 10**6, "fp8": 8030 * 10**6, "int8": 8030 * 10**6,
                     "int4": 4015 * 10**6}  # fmt: skip
    published = plan(model="gpt-oss-120b", context=1).capacity
    assert published is not None and published.weights.nbytes == load_model("gpt-oss-120b").weights.bytes


def test_without_a_context_every_length_has_its_capacity() -> None:
    room = plan(kv="int8").capacity
    assert room is not None and room.requests is None
    assert [fit.context for fit in room.by_context] == [1024 * 2**i for i in range(8)]
    assert room.by_context[5].requests == plan(kv="int8", context=32768).capacity.requests
    assert (room.longest_request, room.longest_limited_by) == (131072, "model maximum")


def test_not_fitting_is_a_verdict_with_the_nearest_change() -> None:
    made = plan(gpu="l4", context=65536, batch=2)
    assert made.verdict is not None and not made.verdict.fits
    assert "left of 90%" in made.verdict.reasons[0]
    changes = {c.option: c.value for c in made.verdict.nearest_change}
    assert set(changes) == {"--context", "--tp"}
    for option, value in changes.items():
        field = option.removeprefix("--")
        fixed = plan(**{"gpu": "l4", "context": 65536, "batch": 2, field: value})
        assert fixed.verdict is not None and fixed.verdict.fits
    longer = plan(gpu="l4", context=changes["--context"] + 1, batch=2)
    assert longer.verdict is not None and not longer.verdict.fits


def test_weights_that_do_not_fit() -> None:
    made = plan(model="llama-3.1-70b", gpu="l4", context=1000)
    assert made.verdict is not None and "the weights take" in made.verdict.reasons[0]
    assert [c.option for c in made.verdict.nearest_change] == ["--tp"]
    assert made.capacity is not None and (made.capacity.requests, made.capacity.longest_request) == (0, 0)


@pytest.mark.parametrize("batch", [1, 7])
def test_the_verdict_agrees_with_the_capacity(batch: int) -> None:
    for context in (1000, 50_000, 131_072):
        made = plan(gpu="rtx-4090", context=context, batch=batch)
        assert made.verdict is not None and made.capacity is not None
        assert made.verdict.fits == (made.capacity.requests >= batch)
