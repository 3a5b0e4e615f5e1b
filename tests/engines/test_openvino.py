"""OpenVINO GenAI: block shapes by hand, refusals, GenAI's booking, and the measured file."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvplan.errors import UnsupportedError, UsageError
from kvplan.plan import Plan, PlanRequest, make_plan
from kvplan.specs.model import ModelSpec

REPO = Path(__file__).resolve().parents[2]
sys.path.append(str(REPO / "tools"))
synthetic: Any = importlib.import_module("synthetic")
LAYERS, HEADS, DIM = 2, 8, 128


def model(retain: Any = "all", **more: Any) -> ModelSpec:
    group = synthetic.attention(range(LAYERS), HEADS, DIM, retain=retain)
    spec: ModelSpec = synthetic.make(LAYERS, group, native="fp16", **more)
    return spec


def plan(spec: ModelSpec | None = None, context: int = 64, batch: int = 1, *options: str, **request: Any) -> Plan:
    spec = spec or model()
    asked = PlanRequest(
        model=spec.id, context=context, batch=batch, engine="openvino", engine_options=options, **request
    )
    made = make_plan(asked, spec)
    kv = made.kv
    assert kv is not None
    assert kv.logical_bytes + kv.reserved_bytes + kv.padding_bytes - kv.engine_saves_bytes == kv.allocated_bytes
    return made


def figures(made: Plan) -> dict[str, Any]:
    assert made.engine is not None
    return {f.name: f.value for f in made.engine.figures}


# Elements of K and of V in one row of a block; K by channel has further rows instead.
@pytest.mark.parametrize(
    ("options", "request_", "k", "v", "nbytes"),
    [
        ((), {}, "[?,8,32,128] bf16", "[?,8,32,128] bf16", 2 * 32 * 8 * 128 * 2),
        ((), {"kv": "bf16"}, "[?,8,32,128] bf16", "[?,8,32,128] bf16", 2 * 32 * 8 * 128 * 2),
        # 8 bytes of scale and zero for each channel: 8 more rows of u8; for each token: 8 more elements.
        ((), {"kv": "u8"}, "[?,8,40,128] u8", "[?,8,32,136] u8", 8 * (40 * 128 + 32 * 136)),
        ((), {"kv": "u4"}, "[?,8,48,128] u4", "[?,8,32,144] u4", 8 * (48 * 128 + 32 * 144) // 2),
        ((), {"k": "u8", "v": "u4"}, "[?,8,40,128] u8", "[?,8,32,144] u4", 8 * (40 * 128 + 32 * 144 // 2)),
        (("KEY_CACHE_QUANT_MODE=BY_TOKEN",), {"kv": "u8"}, "[?,8,32,136] u8", "[?,8,32,136] u8", 8 * 2 * 32 * 136),
        (("KEY_CACHE_QUANT_MODE=BY_TOKEN",), {"kv": "u4"}, "[?,8,32,144] u4", "[?,8,32,144] u4", 8 * 2 * 32 * 72),
        # Groups of 32 channels: four pairs of scale and zero in a row of V, K by channel has no groups.
        (("KEY_CACHE_GROUP_SIZE=32", "VALUE_CACHE_GROUP_SIZE=32"), {"kv": "u8"}, "[?,8,40,128] u8",
         "[?,8,32,160] u8", 8 * (40 * 128 + 32 * 160)),
        (("EXECUTION_MODE_HINT=ACCURACY",), {"kv": "u8"}, "[?,8,32,128] f32", "[?,8,32,128] f32",
         2 * 32 * 8 * 128 * 4),
        (("EXECUTION_MODE_HINT=ACCURACY",), {"kv": "f32"}, "[?,8,32,128] f32", "[?,8,32,128] f32",
         2 * 32 * 8 * 128 * 4),
    ],
)  # fmt: skip
def test_a_block(options: tuple[str, ...], request_: dict[str, str], k: str, v: str, nbytes: int) -> None:
    found = figures(plan(None, 64, 1, *options, **request_))
    for tensor, wanted in (("key_cache", k), ("value_cache", v)):
        shape, element = wanted.split()
        assert found[f"attention: {tensor} shape"] == shape
        assert found[f"attention: {tensor} element"] == element
    assert found["bytes per block"] == LAYERS * nbytes


@pytest.mark.parametrize(
    ("options", "kv", "nbytes"),
    [
        ((), "f16", 2 * 16 * 8 * 128 * 2),
        (("use_sparse_attention=on",), "f16", 2 * 256 * 8 * 128 * 2),
        # Scale and zero in f16: behind each row, or four more rows of a block of keys.
        ((), "i8", 2 * 16 * 8 * 132),
        (("KEY_CACHE_QUANT_MODE=BY_CHANNEL",), "i8", 8 * (20 * 128 + 16 * 132)),
        (("KEY_CACHE_QUANT_MODE=BY_CHANNEL", "use_sparse_attention=on"), "i8", 8 * (260 * 128 + 256 * 132)),
    ],
)
def test_a_block_of_a_gpu(options: tuple[str, ...], kv: str, nbytes: int) -> None:
    made = plan(None, 64, 1, "device=GPU", *options, kv=kv)
    assert figures(made)["bytes per block"] == LAYERS * nbytes
    assert any("GPU plugin" in note for note in made.notes)


def test_allocated_bytes_are_whole_blocks() -> None:
    made = plan(None, 33, 3, kv="u8")  # two blocks of 32 tokens for each of three sequences
    assert made.kv is not None
    assert made.kv.allocated_bytes == 3 * 2 * LAYERS * 8 * (40 * 128 + 32 * 136)


def test_tokens_that_the_grammar_keeps_in_16_bit_are_spared() -> None:
    made = plan(None, 33, 1, kv="u8")  # K by channel: one token of the second block is quantised at once
    assert made.kv is not None
    assert made.kv.residual_bytes == made.kv.engine_saves_bytes == LAYERS * 8 * 128 * 2
    assert plan(None, 64, 1, kv="u8").kv.engine_saves_bytes == 0  # type: ignore[union-attr]


def test_genai_books_a_byte_for_each_u4() -> None:
    found = figures(plan(kv="u4"))
    assert found["attention: key_cache booked bytes per block"] == 8 * 48 * 128
    assert found["booked bytes per block"] == 2 * found["bytes per block"]
    u8 = figures(plan(kv="u8"))
    assert u8["booked bytes per block"] == u8["bytes per block"]


def test_blocks_of_a_cache_size_follow_the_booking() -> None:
    made = plan(model(params={"total": 1000}), kv="u4", gpu_memory=2**36, bandwidth=10**12)
    assert made.capacity is not None
    pool, found = made.capacity.pool_bytes, figures(made)
    assert found["num_kv_blocks"] == pool // (LAYERS * 8 * (48 * 128 + 32 * 144))


@pytest.mark.parametrize(
    ("options", "request_", "said"),
    [
        ((), {"kv": "i8"}, "refuses i8"),
        ((), {"kv": "f32"}, "refuses f32"),
        ((), {"kv": "u3"}, "no cache format 'u3'"),
        (("VALUE_CACHE_GROUP_SIZE=48",), {"kv": "u8"}, "do not divide head_dim 128"),
        (("use_sparse_attention=on",), {}, "XAttention"),
    ],
)
def test_what_openvino_refuses(options: tuple[str, ...], request_: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        plan(None, 64, 1, *options, **request_)


@pytest.mark.parametrize(
    ("options", "request_"),
    [
        (("device=GPU",), {"kv": "u4"}),
        (("INFERENCE_PRECISION_HINT=f32",), {"kv": "u8"}),
        ((), {"tp": 2}),
    ],
)
def test_what_kvplan_has_no_rule_for(options: tuple[str, ...], request_: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError):
        plan(None, 64, 1, *options, **request_)


def test_latents_and_states_are_no_rows_of_openvino() -> None:
    with pytest.raises(UsageError, match="latent"):
        plan(synthetic.make(1, synthetic.latent([0], 512, 64)))
    dims = {"type": "short_conv", "dim": 64, "conv_kernel": 3}
    with pytest.raises(UnsupportedError, match="state"):
        plan(synthetic.make(1, synthetic.state([0], dims)))


def test_windows_keep_every_row() -> None:
    made = plan(model({"window": 32}), 128, 1)
    assert made.kv is not None
    assert made.kv.allocated_bytes == LAYERS * 128 * 8 * 128 * 2 * 2
    assert any("windowed" in note for note in made.notes)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 200), st.integers(1, 5), st.sampled_from(["f16", "u8", "u4"]))
def test_grows_with_context_and_sequences(context: int, batch: int, kv: str) -> None:
    def held(tokens: int, sequences: int) -> int:
        made = plan(None, tokens, sequences, kv=kv).kv
        assert made is not None
        return made.allocated_bytes

    assert held(context, batch) <= min(held(context + 1, batch), held(context, batch + 1))


def test_the_measured_file(shared: Path) -> None:
    path = shared / "data" / "openvino_golden.json"
    command = [sys.executable, str(REPO / "tools" / "accuracy.py"), "golden", str(path), "--json"]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=REPO, check=False)
    summary = json.loads(ran.stdout)["summary"]
    assert ran.returncode == 0
    assert summary["different"] == summary["not_in_scope"] == 0
    assert summary["equal"] > 40
