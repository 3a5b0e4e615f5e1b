"""Who holds what: stages, replicas, shared rows; the ranks' bytes add up to one rank's bytes and the copies."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvplan.errors import UsageError
from kvplan.formats.grammar import parse_any
from kvplan.memory.figures import kv_figures, logical_tree
from kvplan.memory.groups import CacheFormats, cache_groups, shares_rows
from kvplan.memory.rows import RowLaw
from kvplan.memory.sharding import Sharding, spell_layers
from kvplan.plan import legal_dcps, legal_tps
from kvplan.specs.load import list_models, load_model
from kvplan.specs.model import ModelSpec

SPECS = {name: load_model(name) for name in list_models()}
# No groups of channels: some shipped head dimensions would not divide, and every draw should be legal.
FORMATS = (
    "bf16",
    "int8",
    "int4:token,asym",
    "fp8_e4m3:token",
    "int8:channel/32,asym",
    "int8,recent=128",
    "int2:channel/32,asym,recent=128",
)


@pytest.mark.parametrize(
    ("layers", "pp", "counts"),
    [
        (61, 4, [15, 15, 16, 15]),
        (62, 4, [15, 16, 16, 15]),
        (80, 3, [27, 27, 26]),
        (32, 4, [8, 8, 8, 8]),
        (5, 5, [1] * 5),
        (61, 2, [31, 30]),
        (7, 1, [7]),
    ],
)
def test_layers_of_the_stages(layers: int, pp: int, counts: list[int]) -> None:
    """The first three are vLLM's own splits."""
    stages = [Sharding(pp=pp).stage_layers(layers, s) for s in range(pp)]
    assert [len(s) for s in stages] == counts
    assert [i for s in stages for i in s] == list(range(layers))


@given(st.integers(1, 200), st.data())
def test_stages_are_even_within_one(layers: int, data: st.DataObject) -> None:
    pp = data.draw(st.integers(1, layers))
    sizes = [len(Sharding(pp=pp).stage_layers(layers, s)) for s in range(pp)]
    assert sum(sizes) == layers and max(sizes) - min(sizes) <= 1


def test_spelled_layers() -> None:
    assert spell_layers((0, 1, 5, 7, 8, 9)) == "0-1,5,7-9"
    assert spell_layers(()) == ""
    assert spell_layers(tuple(range(0, 20, 2))) == "0,2,4 and 7 more"


@given(st.integers(0, 10_000), st.integers(1, 130), st.integers(1, 9))
def test_ranks_that_take_turns_hold_every_row_once(tokens: int, ranks: int, stride: int) -> None:
    rows = [RowLaw("all", stride=stride, ranks=ranks, rank=r).rows(tokens) for r in range(ranks)]
    assert sum(rows) == RowLaw("all", stride=stride).rows(tokens)
    assert rows == sorted(rows, reverse=True) and rows[0] - rows[-1] <= 1


@st.composite
def shardings(draw: st.DrawFn) -> tuple[ModelSpec, Sharding]:
    spec = SPECS[draw(st.sampled_from(sorted(SPECS)))]
    attention_tp = draw(st.sampled_from(legal_tps(spec)))
    pcp, dp = draw(st.sampled_from([1, 1, 2])), draw(st.integers(1, 4))
    dcp = draw(st.sampled_from(legal_dcps(spec, attention_tp, pcp)))
    inside = draw(st.booleans())
    tp = attention_tp * dp if inside else attention_tp
    return spec, Sharding(tp, draw(st.integers(1, min(7, spec.layers))), dp, dcp, pcp, inside)


def all_ranks(spec: ModelSpec, formats: CacheFormats, sharding: Sharding, context: int, batch: int) -> int:
    """Logical bytes of every GPU, one by one."""
    total = 0
    for stage in range(sharding.pp):
        groups = cache_groups(spec, formats, sharding, stage=stage)
        for holder in range(sharding.holders):
            rank = tuple(replace(g, law=replace(g.law, rank=holder % g.law.ranks)) for g in groups)
            for replica in range(sharding.dp):
                sequences = batch // sharding.dp + (replica < batch % sharding.dp)
                total += logical_tree(rank, context, sequences).nbytes
    return total


@settings(deadline=None, max_examples=150)
@given(shardings(), st.sampled_from(FORMATS), st.integers(1, 5000), st.integers(1, 9))
def test_sharding_conserves_bytes_plus_waste(
    case: tuple[ModelSpec, Sharding], fmt: str, context: int, batch: int
) -> None:
    spec, sharding = case
    formats = CacheFormats(*[parse_any(fmt)] * 4)
    whole = cache_groups(spec, formats)
    kv = kv_figures(cache_groups(spec, formats, sharding), whole, sharding, context, batch, 128)
    alone = logical_tree(whole, context, batch).nbytes
    assert all_ranks(spec, formats, sharding, context, batch) == alone + kv.replicated_bytes
    assert kv.replicated_bytes >= 0


@settings(deadline=None, max_examples=150)
@given(shardings(), st.integers(1, 5000), st.integers(1, 9))
def test_the_waste_is_whole_copies(case: tuple[ModelSpec, Sharding], context: int, batch: int) -> None:
    """Counted from the spec alone, for caches without a residual and without states, whose parts may be copied."""
    spec, sharding = case
    formats = CacheFormats.native(spec)
    whole = {g.name: g for g in cache_groups(spec, formats)}
    kv = kv_figures(cache_groups(spec, formats, sharding), tuple(whole.values()), sharding, context, batch, 128)
    for group in kv.by_group:
        kind = spec.group(group.name)
        if kind.kind == "state":
            continue
        copies = Fraction(sharding.holders, 1)
        if kind.kind in ("attention", "cross"):
            copies /= min(sharding.attention_tp, kind.kv_heads)
        if shares_rows(kind):
            copies /= sharding.dcp
        assert group.replicated_bytes == (copies - 1) * logical_tree([whole[group.name]], context, batch).nbytes


def test_context_parallel_needs_copies() -> None:
    spec = SPECS["llama-3.1-8b"]
    with pytest.raises(UsageError, match="1 copies"):
        cache_groups(spec, CacheFormats.native(spec), Sharding(tp=8, dcp=2))
    (group,) = cache_groups(spec, CacheFormats.native(spec), Sharding(tp=16, dcp=2))
    assert (group.layout.heads, group.law.rows(101)) == (1, 51)


def test_windows_and_index_keys_stay_whole() -> None:
    spec = SPECS["deepseek-v3.2"]
    groups = cache_groups(spec, CacheFormats.native(spec), Sharding(tp=8, dcp=8))
    assert {g.role: g.law.rows(1000) for g in groups} == {"latent": 125, "index": 1000}
    spec = SPECS["gemma-3-27b"]
    groups = cache_groups(spec, CacheFormats.native(spec), Sharding(tp=32, dcp=2))
    assert sorted(g.law.rows(10_000) for g in groups) == [1024, 5000]
