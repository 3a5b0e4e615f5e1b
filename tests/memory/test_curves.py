"""Curves are the terms in another form, and their inverse is exact."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvplan.formats.grammar import parse_any
from kvplan.memory.curves import RankCurves, rank_curves
from kvplan.memory.figures import default_page_size, held_bytes, logical_tree
from kvplan.memory.groups import CacheFormats, CacheGroup, cache_groups
from kvplan.memory.sharding import Sharding
from kvplan.specs.load import list_models, load_model

FORMATS = (
    "bf16",
    "int8",
    "int2",
    "int8:head",
    "fp8_e4m3:token",
    "int8:channel/32,asym",
    "int8:channel/64,recent=128",
    "int8:group/32,recent=128",
    "int8,recent=96,flush=whole",
    "int2:channel/32,asym,recent=128",
    "int2:group/32,asym,recent=128",
    "int4:group/32,asym",
    "nvfp4",
    "int8,scale=fp32,pack=slot",
)
_made: dict[tuple[str, str, str, int], tuple[tuple[CacheGroup, ...], RankCurves]] = {}


def made(model: str, k: str, v: str, dcp: int) -> tuple[tuple[CacheGroup, ...], RankCurves]:
    key = (model, k, v, dcp)
    if key not in _made:
        formats = CacheFormats(*[parse_any(f) for f in (k, v, k, v)])
        sharding = Sharding(tp=2 * dcp, pcp=dcp, dcp=dcp) if dcp > 1 else Sharding()
        groups = cache_groups(load_model(model), formats, sharding)
        _made[key] = groups, rank_curves(groups, default_page_size(groups))
    return _made[key]


models, formats = st.sampled_from(list_models()), st.sampled_from(FORMATS)
SHARED = st.sampled_from(["deepseek-v3", "deepseek-v3.2"])
cases = st.one_of(st.tuples(models, st.just(1)), st.tuples(SHARED, st.sampled_from([2, 4])))


@settings(deadline=None, max_examples=300)
@given(cases, formats, formats, st.integers(1, 300_000), st.integers(0, 50))
def test_curves_equal_terms(case: tuple[str, int], k: str, v: str, context: int, batch: int) -> None:
    groups, curves = made(case[0], k, v, case[1])
    assert curves.held(context, batch) == held_bytes(groups, context, batch, curves.page_size)
    assert batch * curves.logical(context) == logical_tree(groups, context, batch).nbytes


@settings(deadline=None, max_examples=300)
@given(cases, formats, formats, st.integers(0, 300_000), st.integers(0, 200), st.data())
def test_most_tokens_is_the_exact_inverse(case: tuple[str, int], k: str, v: str, ceiling: int, near: int, data) -> None:
    _, curves = made(case[0], k, v, case[1])
    at = data.draw(st.integers(1, 300_000))
    budget = data.draw(st.integers(curves.allocated(at) - near, curves.allocated(at) + near))
    most = curves.most_tokens(budget, ceiling)
    assert 0 <= most <= ceiling
    assert most == 0 or curves.allocated(most) <= budget
    assert most == ceiling or curves.allocated(most + 1) > budget


@pytest.mark.parametrize("fmt", FORMATS)
def test_bytes_never_fall_as_tokens_grow(fmt: str) -> None:
    """Allocated bytes only; logical bytes do fall where a full residual is quantised at once."""
    _, curves = made("gemma-3-27b", fmt, fmt, 1)
    held = [curves.allocated(n) for n in range(1, 3000)]
    assert held == sorted(held)
