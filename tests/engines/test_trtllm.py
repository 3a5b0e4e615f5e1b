"""TensorRT-LLM: blocks and windows by hand, state slots and snapshots, shares of a pool, refusals, printed logs."""

from __future__ import annotations

import importlib
import json
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvplan.engines.trtllm.windows import read_shares, read_windows
from kvplan.errors import UnsupportedError, UsageError
from kvplan.memory.figures import KvFigures
from kvplan.plan import Plan, PlanRequest, make_plan
from kvplan.specs.model import ModelSpec

REPO = Path(__file__).resolve().parents[2]
sys.path.append(str(REPO / "tools"))
synthetic: Any = importlib.import_module("synthetic")
MAMBA = {"type": "mamba2", "heads": 8, "head_dim": 16, "d_state": 16, "n_groups": 2, "conv_kernel": 4}
RECURRENT = 8 * 16 * 16
CONV = (8 * 16 + 2 * 2 * 16) * 3
ROW = 8 * 512  # K and V of a token in one layer of 8 heads of 128, 16 bit


def model(**more: Any) -> ModelSpec:
    spec: ModelSpec = synthetic.make(4, synthetic.attention(range(4), 8, 128), **more)
    return spec


def mixed() -> ModelSpec:
    spec: ModelSpec = synthetic.make(
        6,
        synthetic.attention([0, 1, 3, 4], 8, 128, retain={"window": 64}, name="sliding"),
        synthetic.attention([2, 5], 8, 128, name="full"),
        params={"total": 1000},
    )
    return spec


def hybrid() -> ModelSpec:
    spec: ModelSpec = synthetic.make(3, synthetic.state([0, 1], MAMBA), synthetic.attention([2], 8, 128))
    return spec


def plan(spec: ModelSpec, context: int, batch: int, *options: str, **request: Any) -> Plan:
    asked = PlanRequest(
        model=spec.id, context=context, batch=batch, engine="trtllm", engine_options=options, **request
    )  # fmt: skip
    made = make_plan(asked, spec)
    kv = made.kv
    assert kv is not None
    assert kv.logical_bytes + kv.reserved_bytes + kv.padding_bytes - kv.engine_saves_bytes == kv.allocated_bytes
    return made


def kv(spec: ModelSpec, context: int, batch: int, *options: str, **request: Any) -> KvFigures:
    found = plan(spec, context, batch, *options, **request).kv
    assert found is not None
    return found


def figures(made: Plan) -> dict[str, Any]:
    assert made.engine is not None
    return {f.name: f.value for f in made.engine.figures}


# nvfp4: half a byte, and an e4m3 scale for 16 elements.
@pytest.mark.parametrize(
    ("dtype", "row"),
    [("auto", 512), ("float16", 512), ("bfloat16", 512), ("fp8", 256), ("nvfp4", 2 * (64 + 8))],
)
def test_whole_blocks_of_every_layer(dtype: str, row: int) -> None:
    made = plan(model(), 33, 3, kv=dtype)  # two blocks of 32 tokens
    assert figures(made)["bytes per token"] == 4 * 8 * row
    assert made.kv is not None
    assert made.kv.allocated_bytes == 3 * 2 * 32 * 4 * 8 * row
    assert kv(model(), 33, 3, kv=dtype, page_size=64).allocated_bytes == 3 * 64 * 4 * 8 * row


def test_int8_belongs_to_tensorrt_engines() -> None:
    assert kv(model(), 32, 1, "backend=tensorrt", kv="int8").allocated_bytes == 32 * 4 * 8 * 256
    with pytest.raises(UsageError, match="int8"):
        plan(model(), 32, 1, kv="int8")


def test_latents_are_stored_once_and_index_keys_in_fp8() -> None:
    layers = range(2)
    index = synthetic.latent(layers, 128, 0, name="index", role="index", overlay=True)
    sparse = synthetic.make(2, synthetic.latent(layers, 512, 64), index)
    assert figures(plan(sparse, 32, 1))["bytes per token"] == 2 * (576 * 2 + 128 + 4)
    assert figures(plan(sparse, 32, 1, kv="fp8", tp=2))["bytes per token"] == 2 * (576 + 128 + 4)
    with pytest.raises(UsageError, match="no nvfp4 for the latent"):
        plan(sparse, 32, 1, kv="nvfp4")


def test_without_a_list_every_layer_keeps_every_row() -> None:
    made = plan(mixed(), 320, 1)
    assert made.kv is not None
    assert made.kv.allocated_bytes == 6 * 320 * ROW
    assert made.kv.padding_bytes == 4 * (320 - 64) * ROW
    assert any("max_attention_window" in note for note in made.notes)


def test_a_window_has_one_block_beyond_it() -> None:
    made = plan(mixed(), 320, 1, "max_attention_window=64,64,320")
    assert made.kv is not None
    assert made.kv.allocated_bytes == (4 * (64 + 32) + 2 * 320) * ROW
    assert made.kv.reserved_bytes == 4 * 32 * ROW
    assert made.kv.padding_bytes == made.kv.engine_saves_bytes == 0
    assert figures(made)["pools"] == 2
    # Within the window nothing is beyond it.
    assert kv(mixed(), 64, 1, "max_attention_window=64,64,320").allocated_bytes == 6 * 64 * ROW


def test_a_window_below_what_attention_needs_is_spared() -> None:
    found = kv(model(), 320, 1, "max_attention_window=64")
    assert found.engine_saves_bytes == 4 * (320 - 64) * ROW
    assert found.allocated_bytes == 4 * (64 + 32) * ROW


def test_windows_repeat_over_the_layers_of_a_stage() -> None:
    # Stage 2 holds layers 3 to 5: the list starts again with its first layer.
    made = plan(mixed(), 320, 1, "max_attention_window=64,320", pp=2)
    assert made.kv is not None
    assert made.kv.allocated_bytes == (2 * (64 + 32) + 320) * ROW
    # A list as long as the model goes with the layers: stage 1 has one whole layer, stage 2 two.
    longer = kv(mixed(), 320, 1, "max_attention_window=64,64,320,64,320,320", pp=2)
    assert longer.allocated_bytes == (64 + 32 + 2 * 320) * ROW


def test_a_pool_of_max_tokens_is_rounded_up_to_blocks() -> None:
    found = figures(plan(model(), 32, 1, "max_tokens=1000"))
    assert (found["blocks"], found["tokens"]) == (32, 1024)  # ceil(1,000 / 32)
    assert found["pool bytes"] == 1024 * 4 * ROW
    assert found["pool GiB"] == round(1024 * 4 * ROW / 2**30, 4)
    made = plan(model(), 2000, 1, "max_tokens=1000")
    assert any("shortens" in note for note in made.notes)


def test_several_windows_share_a_pool_and_ignore_max_tokens() -> None:
    spec, gpu = mixed(), {"gpu_memory": 2**36, "bandwidth": 10**12}
    options = ("max_attention_window=64,64,320", "max_tokens=1000")
    made = plan(spec, 320, 1, *options, **gpu)
    assert made.capacity is not None
    pool, found = made.capacity.pool_bytes, figures(made)
    assert "blocks" not in found
    assert any("ignores max_tokens" in note for note in made.notes)
    assert found["num_blocks of window 64"] == pool // 2 // (4 * ROW) // 32
    assert found["num_blocks of window 320"] == pool // 2 // (2 * ROW) // 32
    shared_out = figures(plan(spec, 320, 1, *options, "TRTLLM_WINDOW_SIZE_SHARES=0.25,0.75", **gpu))
    assert shared_out["num_blocks of window 64"] == pool // 4 // (4 * ROW) // 32
    assert shared_out["num_blocks of window 320"] == 3 * pool // 4 // (2 * ROW) // 32


def test_state_slots() -> None:
    slot = 2 * (RECURRENT * 4 + CONV * 2)
    off = "enable_block_reuse=off"
    made = plan(hybrid(), 32, 3, off)
    assert figures(made)["state slots"] == 3 + 1
    assert made.kv is not None
    assert made.kv.allocated_bytes == (3 + 1) * slot + 3 * 32 * ROW
    assert made.kv.reserved_bytes == slot
    more = kv(hybrid(), 32, 3, off, "max_batch_size=4", "max_draft_len=2", pp=1)
    assert more.allocated_bytes == (4 + 1 + 2) * slot + 3 * 32 * ROW
    half = kv(hybrid(), 32, 3, off, "mamba_ssm_cache_dtype=bfloat16")
    assert half.allocated_bytes == (3 + 1) * 2 * (RECURRENT + CONV) * 2 + 3 * 32 * ROW
    assert half.engine_saves_bytes == 3 * 2 * RECURRENT * 2


def test_block_reuse_takes_snapshots_of_states() -> None:
    slot = 2 * (RECURRENT * 4 + CONV * 2)
    without = kv(hybrid(), 1000, 3, "enable_block_reuse=off").allocated_bytes
    assert kv(hybrid(), 1000, 3).allocated_bytes - without == 3 * 1000 // 256 * slot
    assert kv(hybrid(), 1000, 3, "mamba_state_cache_interval=1000").allocated_bytes - without == 3 * slot
    assert kv(hybrid(), 1000, 3, "mamba_state_cache_interval=0").allocated_bytes == without


def test_states_and_attention_share_a_pool() -> None:
    spec = hybrid().model_copy(update={"params": mixed().params})
    made = plan(spec, 320, 2, "max_batch_size=8", gpu_memory=2**36, bandwidth=10**12)
    states = 2 * (RECURRENT * 4 + CONV * 2)
    assert made.capacity is not None
    tokens = (made.capacity.pool_bytes - 8 * states) // (ROW + states // 256)
    assert figures(made)["num_blocks"] == tokens // 32


def test_encoder_rows_have_blocks_and_a_share_of_their_own() -> None:
    cross = {
        "kind": "cross", "name": "cross", "layers": [0, 1], "q_heads": 8, "kv_heads": 8, "head_dim": 128,
        "encoder_tokens": {"per": "audio", "count": 100}, "overlay": True,
    }  # fmt: skip
    spec = synthetic.make(2, synthetic.attention(range(2), 8, 128), cross, params={"total": 1000})
    assert kv(spec, 32, 1).allocated_bytes == (2 * 32 + 2 * 128) * ROW
    made = plan(spec, 32, 1, "cross_kv_cache_fraction=0.25", gpu_memory=2**36, bandwidth=10**12)
    assert made.capacity is not None
    pool = made.capacity.pool_bytes
    assert figures(made)["num_blocks"] == pool * 3 // 4 // (2 * ROW) // 32


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("tokens_per_block=1",), "power of two"),
        (("tokens_per_block=48",), "power of two"),
        (("max_attention_window=64,x",), "no list"),
        (("max_attention_window=64,0",), "no list"),
        (("max_attention_window=64,320", "TRTLLM_WINDOW_SIZE_SHARES=0.5"), "1 shares for 2"),
        (("max_attention_window=64,320", "TRTLLM_WINDOW_SIZE_SHARES=0.5,0.6"), "sum to 1"),
        (("max_attention_window=64,320", "TRTLLM_WINDOW_SIZE_SHARES=a,b"), "no list"),
        (("cross_kv_cache_fraction=1",), "no share"),
    ],
)
def test_what_tensorrt_llm_refuses(options: tuple[str, ...], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        plan(model(), 640, 1, *options)


def test_the_second_manager_is_covered_without_windows_and_states() -> None:
    second = "use_kv_cache_manager_v2=on"
    assert kv(model(), 33, 2, second).allocated_bytes == kv(model(), 33, 2).allocated_bytes
    for spec, options in ((mixed(), ("max_attention_window=64,320",)), (hybrid(), ())):
        with pytest.raises(UnsupportedError, match="V2"):
            plan(spec, 640, 1, second, *options)


def test_lists() -> None:
    assert read_windows("[1024, 32768]") == (1024, 32768)
    assert read_windows(None) == read_windows("") == ()
    assert read_shares(None, 3) == (Fraction(1, 3),) * 3
    assert read_shares("0.4,0.6", 2) == (Fraction(2, 5), Fraction(3, 5))


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 700), st.integers(1, 4), st.sampled_from(["plain", "mixed", "hybrid"]),
    st.sampled_from(["", "64", "64,64,320", "200,7"]),
)  # fmt: skip
def test_grows_with_context_and_sequences(context: int, batch: int, name: str, windows: str) -> None:
    spec = {"plain": model, "mixed": mixed, "hybrid": hybrid}[name]()
    option = (f"max_attention_window={windows}",) if windows else ()
    now = kv(spec, context, batch, *option).allocated_bytes
    assert now <= kv(spec, context + 1, batch, *option).allocated_bytes
    assert now <= kv(spec, context, batch + 1, *option).allocated_bytes


def test_the_logs_are_reproduced(shared: Path) -> None:
    reader = importlib.import_module("logs.trtllm")
    records = json.loads((shared / "data" / "engine_logs.json").read_text(encoding="utf-8"))["records"]
    found = [reader.check(r) for r in records if r["engine"] in reader.ENGINES]
    gates = {f.log: f.verdict for f in found if f.strength in ("independent", "parameters-partly-fitted")}
    assert gates and set(gates.values()) == {"reproduced"}
