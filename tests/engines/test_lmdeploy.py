"""LMDeploy's two engines: blocks by hand, states in slots, windows, refusals, and the printed logs."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvplan.errors import UnsupportedError, UsageError
from kvplan.memory.figures import KvFigures
from kvplan.plan import Plan, PlanRequest, make_plan
from kvplan.specs.model import ModelSpec

REPO = Path(__file__).resolve().parents[2]
sys.path.append(str(REPO / "tools"))
synthetic: Any = importlib.import_module("synthetic")
TURBOMIND, PYTORCH = "lmdeploy-turbomind", "lmdeploy-pytorch"
DELTA = {"type": "gated_deltanet", "k_heads": 4, "v_heads": 8, "k_dim": 16, "v_dim": 16, "conv_kernel": 4}
CONV_ROW = 2 * 4 * 16 + 8 * 16  # channels of one convolution row of DELTA
RECURRENT = 8 * 16 * 16


def model(layers: int = 2, heads: int = 8, dim: int = 128, retain: Any = "all", **more: Any) -> ModelSpec:
    spec: ModelSpec = synthetic.make(layers, synthetic.attention(range(layers), heads, dim, retain=retain), **more)
    return spec


def hybrid() -> ModelSpec:
    spec: ModelSpec = synthetic.make(3, synthetic.state([0, 1], DELTA), synthetic.attention([2], 8, 128))
    return spec


def sparse() -> ModelSpec:
    index = synthetic.latent(range(2), 128, 0, name="index", role="index", overlay=True)
    spec: ModelSpec = synthetic.make(2, synthetic.latent(range(2), 512, 64), index)
    return spec


def plan(engine: str, spec: ModelSpec, context: int, batch: int, *options: str, **request: Any) -> Plan:
    asked = PlanRequest(model=spec.id, context=context, batch=batch, engine=engine, engine_options=options, **request)
    made = make_plan(asked, spec)
    kv = made.kv
    assert kv is not None
    assert kv.logical_bytes + kv.reserved_bytes + kv.padding_bytes - kv.engine_saves_bytes == kv.allocated_bytes
    return made


def kv(*args: Any, **request: Any) -> KvFigures:
    found = plan(*args, **request).kv
    assert found is not None
    return found


def figures(made: Plan) -> dict[str, Any]:
    assert made.engine is not None
    return {f.name: f.value for f in made.engine.figures}


# Bytes of K + V of one (token, head): codes, and scale and zero of 16 bit for each of them.
@pytest.mark.parametrize(
    ("policy", "row"), [("0", 2 * 128 * 2), ("8", 2 * (128 + 4)), ("4", 2 * (64 + 4))]
)  # fmt: skip
def test_a_block_of_turbomind(policy: str, row: int) -> None:
    made = plan(TURBOMIND, model(), 65, 3, kv=policy)
    assert figures(made)["bytes per block"] == 2 * 8 * 64 * row
    assert figures(made)["block size (MB)"] == round(2 * 8 * 64 * row / 2**20, 3)
    assert made.kv is not None
    assert made.kv.allocated_bytes == 3 * 2 * (2 * 8 * 64 * row)  # two blocks for 65 tokens


def test_turbomind_splits_heads_not_latents() -> None:
    assert kv(TURBOMIND, model(), 64, 1, tp=4).allocated_bytes == 2 * 2 * 64 * 512
    latent = synthetic.make(2, synthetic.latent(range(2), 512, 64))
    assert kv(TURBOMIND, latent, 64, 1, tp=4).allocated_bytes == 2 * 64 * 576 * 2


def test_turbomind_keeps_windows_whole() -> None:
    found = kv(TURBOMIND, model(retain={"window": 64}), 640, 1)
    assert found.allocated_bytes == 2 * 640 * 8 * 512
    assert found.padding_bytes == 2 * 576 * 8 * 512


def test_turbomind_states_have_a_convolution_of_kernel_rows() -> None:
    found = kv(TURBOMIND, hybrid(), 64, 3)
    states = 3 * 2 * (RECURRENT * 4 + 4 * CONV_ROW * 2)  # fp32 states, four bf16 rows instead of three
    assert found.allocated_bytes == states + 3 * 64 * 8 * 512
    assert found.padding_bytes == 3 * 2 * CONV_ROW * 2


def test_old_turbomind_had_blocks_of_128_tokens_and_printed_whole_megabytes() -> None:
    made = plan(TURBOMIND, model(32, 32), 128, 1, engine_version="0.0.14")
    assert figures(made)["block size (MB)"] == 32 * 2 * 32 * 128 * 2 * 128 // 2**20 == 64
    assert figures(made)["blocks per sequence"] == 1
    with pytest.raises(UsageError, match="no cache format '8'"):
        plan(TURBOMIND, model(), 64, 1, engine_version="0.0.14", kv="8")


@pytest.mark.parametrize("policy", ["16", "17", "42", "fp8_e4m3"])
def test_turbomind_has_no_fp8(policy: str) -> None:
    with pytest.raises((UsageError, UnsupportedError)):
        plan(TURBOMIND, model(), 64, 1, kv=policy)


def test_turbomind_shares_planes_of_576_channels_only() -> None:
    with pytest.raises(UnsupportedError, match="576"):
        plan(TURBOMIND, synthetic.make(1, synthetic.latent([0], 256, 64)), 64, 1)


@pytest.mark.parametrize(
    ("policy", "row"),
    [("0", 512), ("8", 264), ("4", 136), ("16", 256), ("17", 256), ("42", (64 + 4) + (32 + 2))],
)
def test_a_block_of_the_pytorch_engine(policy: str, row: int) -> None:
    made = plan(PYTORCH, model(), 65, 3, kv=policy)  # all four tensors are multiples of 256 bytes here
    assert figures(made)["bytes per block"] == 2 * 8 * 64 * row
    assert made.kv is not None
    assert made.kv.allocated_bytes == (3 * 2 + 1) * (2 * 8 * 64 * row)  # and one block that is never handed out
    assert made.kv.reserved_bytes == 2 * 8 * 64 * row


def test_each_tensor_of_a_kernel_block_is_rounded_up() -> None:
    spec = model(1, 1, 72)
    # 16 tokens: K and V 16 x 72 = 1,152 -> 1,280 bytes; scale and zero 16 x 4 = 64 -> 256 bytes.
    block = 2 * (1280 + 256)
    made = plan(PYTORCH, spec, 32, 1, "block_size=32", "kernel_block_size=16", kv="8")
    assert figures(made)["bytes per block"] == 2 * block
    assert made.kv is not None
    assert made.kv.padding_bytes == 2 * block - 32 * 2 * (72 + 4)


def test_blocks_of_the_pytorch_engine() -> None:
    row = 2 * 8 * 512
    assert figures(plan(PYTORCH, model(), 64, 1, "device_type=camb"))["bytes per block"] == 16 * row
    assert figures(plan(PYTORCH, model(dim=256), 64, 1, "device_type=ascend"))["bytes per block"] == 128 * 2 * row
    assert figures(plan(PYTORCH, model(dim=512), 64, 1))["bytes per block"] == 32 * 4 * row
    assert figures(plan(PYTORCH, model(), 64, 1, page_size=128))["bytes per block"] == 128 * row


def test_latents_of_the_pytorch_engine() -> None:
    dense = synthetic.make(2, synthetic.latent(range(2), 512, 64))
    assert figures(plan(PYTORCH, dense, 64, 1))["bytes per block"] == 2 * 64 * 576 * 2
    assert figures(plan(PYTORCH, dense, 64, 1, kv="16"))["bytes per block"] == 2 * 64 * 576
    # With index keys fp8 is a record of 656 bytes; a key has 128 fp8 channels and an fp32 scale.
    assert figures(plan(PYTORCH, sparse(), 64, 1))["bytes per block"] == 2 * 64 * (576 * 2 + 132)
    assert figures(plan(PYTORCH, sparse(), 64, 1, kv="16"))["bytes per block"] == 2 * 64 * (656 + 132)
    with pytest.raises(UsageError, match="sparse latent"):
        plan(PYTORCH, sparse(), 64, 1, kv="17")
    with pytest.raises(UsageError, match="FlashMLA"):
        plan(PYTORCH, dense, 64, 1, page_size=32)


def test_a_window_of_the_whole_model_drops_blocks_after_a_prefill() -> None:
    spec, block = model(retain={"window": 128}), 64 * 2 * 8 * 512
    options = ("max_prefill_token_num=64",)
    # 128 + 64 tokens in flight are three blocks, and one that the window has begun to leave.
    found = kv(PYTORCH, spec, 6400, 1, *options)
    assert found.allocated_bytes == (4 + 1) * block
    assert found.reserved_bytes == (4 - 2 + 1) * block
    assert kv(PYTORCH, spec, 100, 1, *options).allocated_bytes == (2 + 1) * block


def test_windows_of_some_layers_keep_every_row() -> None:
    groups = (
        synthetic.attention([0], 8, 128, retain={"window": 64}, name="sliding"),
        synthetic.attention([1], 8, 128),
    )
    assert kv(PYTORCH, synthetic.make(2, *groups), 640, 1).allocated_bytes == (640 + 64) * 2 * 8 * 512
    with pytest.raises(UnsupportedError, match="olmo3"):
        plan(PYTORCH, synthetic.make(2, *groups, model_type="olmo3"), 640, 1)
    assert plan(PYTORCH, synthetic.make(2, *groups, model_type="gpt_oss"), 640, 1)


def test_state_slots_of_the_pytorch_engine() -> None:
    slot = 2 * RECURRENT * 2 + 2 * 4 * CONV_ROW * 2  # two layers, everything in bf16, four convolution rows
    assert slot % 256 == 0
    made = plan(PYTORCH, hybrid(), 64, 3)
    assert figures(made)["bytes per state slot"] == slot
    assert made.kv is not None
    assert made.kv.allocated_bytes == (3 + 2) * slot + (3 + 1) * 64 * 8 * 512
    assert made.kv.engine_saves_bytes == 3 * 2 * RECURRENT * 2  # states in 16 bit instead of fp32
    more = kv(PYTORCH, hybrid(), 64, 3, "max_batch_size=8", "prefix_cache_state_budget=1").allocated_bytes
    assert more - made.kv.allocated_bytes == (8 - 3 + 1) * slot
    exact = kv(PYTORCH, hybrid(), 64, 3, "LMDEPLOY_FP32_MAMBA_SSM_DTYPE=on")
    assert exact.allocated_bytes - made.kv.allocated_bytes == (3 + 2) * 2 * RECURRENT * 2
    assert exact.engine_saves_bytes == 0


@pytest.mark.parametrize(
    ("options", "policy", "said"),
    [
        (("kernel_block_size=24",), "0", "power of two"),
        (("block_size=96",), "0", "power of two"),
        (("block_size=96", "kernel_block_size=64"), "0", "no multiple"),
        (("device_type=maca",), "8", "cuda and ascend only"),
        (("device_type=ascend",), "16", "cuda only"),
    ],
)
def test_what_the_pytorch_engine_refuses(options: tuple[str, ...], policy: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        plan(PYTORCH, model(), 64, 1, *options, kv=policy)


def test_what_kvplan_has_no_rule_for() -> None:
    shapes = synthetic.make(2, synthetic.attention([0], 8, 128, name="a"), synthetic.attention([1], 4, 128, name="b"))
    mamba = {"type": "mamba1", "inner": 64, "d_state": 8, "conv_kernel": 4}
    state = synthetic.make(1, synthetic.state([0], mamba))
    for engine, spec, more in (
        (PYTORCH, shapes, {}), (PYTORCH, state, {}), (TURBOMIND, state, {}), (PYTORCH, model(), {"pp": 2}),
        (TURBOMIND, model(), {"pp": 2}), (TURBOMIND, model(native="fp32"), {}),
    ):  # fmt: skip
        with pytest.raises(UnsupportedError):
            plan(engine, spec, 64, 1, **more)


SPECS = {"plain": model(), "window": model(retain={"window": 100}), "hybrid": hybrid(), "sparse": sparse()}


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 500), st.integers(1, 4), st.sampled_from(list(SPECS)), st.sampled_from([TURBOMIND, PYTORCH]))
def test_grows_with_context_and_sequences(context: int, batch: int, name: str, engine: str) -> None:
    if (name, engine) == ("sparse", TURBOMIND):
        return
    args = (engine, SPECS[name])
    option = ("max_prefill_token_num=64",) if engine == PYTORCH else ()
    now = kv(*args, context, batch, *option).allocated_bytes
    assert now <= kv(*args, context + 1, batch, *option).allocated_bytes
    assert now <= kv(*args, context, batch + 1, *option).allocated_bytes


def test_the_logs_are_reproduced(shared: Path) -> None:
    reader = importlib.import_module("logs.lmdeploy")
    records = json.loads((shared / "data" / "engine_logs.json").read_text(encoding="utf-8"))["records"]
    found = [reader.check(r) for r in records if r["engine"] in reader.ENGINES]
    verdicts = {f.log: f.verdict for f in found if f.strength != "none"}
    assert verdicts and set(verdicts.values()) == {"reproduced"}
