"""vLLM: growth, the names of all bytes, its own golden figures and printed logs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvplan.memory.parts import total
from kvplan.specs.model import ModelSpec

sys.path.insert(0, str(Path(__file__).parent))

from vllm_specs import DENSE, MAMBA, cache, chunked, hybrid, kv, ranks, sparse, windowed

SPECS = (
    DENSE, windowed(2, 5), windowed(3, 4, head_dim=64), chunked(), sparse(), hybrid(), hybrid(MAMBA, 2, 5, heads=8),
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(
    spec=st.sampled_from(SPECS),
    batched=st.sampled_from([16, 1000, 8192]),
    context=st.integers(1, 30000),
    more=st.integers(0, 5000),
    sequences=st.integers(0, 9),
)
def test_grows_with_both(spec: ModelSpec, batched: int, context: int, more: int, sequences: int) -> None:
    made = cache(spec, f"max_num_batched_tokens={batched}", context=40000)
    held = made.held(context, sequences)
    assert held <= made.held(context + more, sequences) <= made.held(context + more, sequences + 1)
    assert held == (made.pool.blocks_per_request(context) * sequences + 1) * made.pool.block_bytes()
    for part in made.parts(context, sequences):
        assert 0 <= total(part.reserved) <= total(part.allocated)


@settings(max_examples=40, deadline=None)
@given(
    spec=st.sampled_from(SPECS),
    context=st.integers(1, 30000),
    batch=st.integers(1, 5),
    off=st.booleans(),
    batched=st.sampled_from([16, 8192]),
)
def test_every_byte_has_a_name_or_is_page_rounding(
    spec: ModelSpec, context: int, batch: int, off: bool, batched: int
) -> None:
    """`kv` checks the identity; named padding never exceeds it, which the plan itself asserts."""
    states = any(g.kind == "state" for g in spec.layer_groups)
    options = (f"max_num_batched_tokens={batched}",)
    options += ("disable_hybrid_kv_cache_manager=on",) if off and not states else ()
    kv(spec, *options, context=context, batch=batch)


@settings(max_examples=20, deadline=None)
@given(spec=st.sampled_from((windowed(4, 5), windowed(2, 6), DENSE)), pp=st.sampled_from([1, 2, 3]))
def test_stages_add_up_to_the_blocks_of_all_layers(spec: ModelSpec, pp: int) -> None:
    """Layers of all stages are those of the model, and every stage's parts are its blocks."""
    made = ranks(spec, context=5000, pp=pp)
    dealt = [n for bucket in made[0].pool.buckets for n in bucket.layers_per_group()]
    assert sum(dealt) == spec.layers
    for one in made:
        stage = one.case.stage
        here = [n for bucket in one.pool.buckets for n in bucket.layers_per_group(stage)]
        assert sum(here) == sum(g.layers for g in one.case.groups)
        assert one.held(5000, 1) == (one.pool.blocks_per_request(5000) + 1) * one.pool.block_bytes(stage)


def test_golden_figures(shared: Path) -> None:
    from golden.run import compare, summary

    found = summary(compare(shared / "data" / "vllm_golden.json"))
    assert found["equal"] == found["records"] >= 333
    assert found["refusals_equal"] == found["refusals"] >= 5


def test_a_golden_figure_that_differs_is_different() -> None:
    from golden.vllm import outcomes

    base = {
        "model": "meta-llama/Llama-3.1-8B", "tp": 1, "kv_cache_dtype": "auto", "block_size": 16,
        "backend": "FLASH_ATTN", "max_model_len": 131072, "available_bytes": [8 * 2**30], "layout": "LBNHC",
        "max_num_batched_tokens": 8192, "max_concurrent_batches": 2, "num_gpu_blocks_override": None,
        "disable_hybrid_kv_cache_manager": False, "mamba_cache_mode": "none", "dcp": 1,
    }  # fmt: skip
    said = (
        "To serve at least one request with the model's max seq len (131072), (16.0 GiB KV cache is needed, which is "
        "larger than the available KV cache memory (8.0 GiB). Based on the available memory, the estimated maximum "
        "model length is {}. Try"
    )

    def verdict(kind: str, inputs: dict[str, Any], outputs: dict[str, Any]) -> str:
        records = [{"id": "x", "kind": kind, "inputs": inputs, "outputs": outputs}]
        return next(outcomes({"records": records})).verdict

    for length, wanted in ((65520, "equal"), (65536, "different")):
        assert verdict("model", base, {"error": "ValueError", "message": said.format(length)}) == wanted
    for heads, wanted in ((2, "equal"), (1, "different")):
        assert verdict("kv_heads_per_rank", {"total_kv_heads": 8, "tp": 4}, {"kv_heads": heads}) == wanted


def test_printed_logs(shared: Path) -> None:
    from logs.common import DIFFERENT, EXPLAINED
    from logs.vllm import ENGINES, check

    records = json.loads((shared / "data" / "engine_logs.json").read_text(encoding="utf-8"))["records"]
    found = [check(r) for r in records if r["engine"] in ENGINES]
    assert not [f for f in found if f.verdict == DIFFERENT]
    # One log of four ranks shows a rank that was not the smallest.
    assert len([f for f in found if f.verdict == EXPLAINED]) <= 1
    assert len(found) >= 46


@pytest.mark.parametrize(("blocks", "verdict"), [(1952, "reproduced"), (1930, "different")])
def test_a_log_that_does_not_fit_is_different(blocks: int, verdict: str) -> None:
    from logs.vllm import check

    one = {"f": "vllm_uniform", "kind": "gqa", "layers": 32, "kv_heads": 8, "dk": 128, "avail": 3.81, "max_len": 20000}
    record = {
        "id": "x", "engine": "vLLM", "engine_version": "v0.6.x (V0 engine)", "evidence_strength": "independent",
        "checks": [one | {"blocks": blocks, "conc": 1.56}], "derivation": "",
    }  # fmt: skip
    assert check(record).verdict == verdict
    assert check(record | {"checks": [one | {"bytes": 0.5, "blocks": 1}]}).verdict == "different"
