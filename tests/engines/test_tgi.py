"""TGI: blocks by hand, the one window that spares any, fp8 by backend, refusals."""

from __future__ import annotations

import importlib
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
ROW = 2 * 8 * 512  # K and V of a token: two layers, 8 heads of 128, 16 bit


def model(retain: Any = "all", **more: Any) -> ModelSpec:
    spec: ModelSpec = synthetic.make(2, synthetic.attention(range(2), 8, 128, retain=retain, q_heads=16), **more)
    return spec


def plan(spec: ModelSpec, context: int, batch: int, *options: str, **request: Any) -> Plan:
    asked = PlanRequest(model=spec.id, context=context, batch=batch, engine="tgi", engine_options=options, **request)
    made = make_plan(asked, spec)
    kv = made.kv
    assert kv is not None
    assert kv.logical_bytes + kv.reserved_bytes + kv.padding_bytes - kv.engine_saves_bytes == kv.allocated_bytes
    return made


def kv(spec: ModelSpec, context: int, batch: int, *options: str, **request: Any) -> KvFigures:
    found = plan(spec, context, batch, *options, **request).kv
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("attention", "block", "tokens"),
    [("flashinfer", 1, 300), ("flashdecoding", 256, 512), ("flashdecoding-ipex", 64, 320), ("paged", 16, 304)],
)
def test_blocks_by_attention_backend(attention: str, block: int, tokens: int) -> None:
    made = plan(model(), 300, 3, f"attention={attention}")
    assert made.kv is not None
    assert made.kv.allocated_bytes == 3 * tokens * ROW
    assert made.engine is not None
    assert {f.name: f.value for f in made.engine.figures}["bytes per block"] == block * ROW


def test_fp8_has_no_bytes_per_token_beside_its_codes() -> None:
    for option in ("fp8_e4m3fn", "fp8_e5m2"):
        found = kv(model(), 300, 1, kv=option)
        assert found.allocated_bytes == 300 * ROW // 2
        assert found.constant_bytes > 0  # one scale per tensor


def test_blocks_of_a_pool() -> None:
    made = plan(model(params={"total": 1000}), 64, 1, "attention=paged", gpu_memory=2**36, bandwidth=10**12)
    assert made.engine is not None and made.capacity is not None
    found = {f.name: f.value for f in made.engine.figures}
    assert found["num_blocks"] == made.capacity.pool_bytes // (16 * ROW)


def test_only_a_window_of_the_whole_model_without_prefix_caching_spares_blocks() -> None:
    window, off = model({"window": 100}), "prefix_caching=off"
    assert kv(window, 300, 2, off, "attention=paged").allocated_bytes == 2 * 112 * ROW  # ceil(100 / 16) blocks
    assert kv(window, 50, 2, off, "attention=paged").allocated_bytes == 2 * 64 * ROW
    kept = plan(window, 300, 2, "attention=paged")
    assert kept.kv is not None and kept.kv.allocated_bytes == 2 * 304 * ROW
    assert any("keeps all rows" in note for note in kept.notes)
    mixed = synthetic.make(
        2, synthetic.attention([0], 8, 128, retain={"window": 100}, name="a"),
        synthetic.attention([1], 8, 128, name="b"),
    )  # fmt: skip
    found = kv(mixed, 300, 1, off)
    assert found.allocated_bytes == 300 * ROW
    assert found.padding_bytes == 200 * ROW // 2


@pytest.mark.parametrize(
    ("options", "option", "said"),
    [
        (("attention=flashdecoding",), "fp8_e4m3fn", "no fp8"),
        (("system=rocm",), "fp8_e4m3fn", "no fp8"),
        (("system=rocm", "attention=paged"), "fp8_e5m2", "refuses"),
        (("system=cpu", "attention=paged"), "fp8_e4m3fn", "refuses"),
    ],
)
def test_where_tgi_has_no_fp8(options: tuple[str, ...], option: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        plan(model(), 64, 1, *options, kv=option)


def test_where_it_has_fp8() -> None:
    half = 64 * ROW // 2
    assert kv(model(), 64, 1, "system=rocm", "attention=paged", kv="fp8_e4m3fn").allocated_bytes == half
    assert kv(model(), 64, 1, "system=cpu", "attention=paged", kv="fp8_e5m2").allocated_bytes == half


def test_what_kvplan_has_no_rule_for() -> None:
    state = synthetic.make(1, synthetic.state([0], {"type": "short_conv", "dim": 64, "conv_kernel": 3}))
    wide = synthetic.make(1, synthetic.attention([0], 8, 192, 128))
    single = model(native="fp32")
    for spec, request in ((state, {}), (wide, {}), (single, {}), (model(), {"pp": 2}), (model(), {"tp": 16})):
        with pytest.raises(UnsupportedError):
            plan(spec, 64, 1, **request)
    with pytest.raises(UsageError, match="latent"):
        plan(synthetic.make(1, synthetic.latent([0], 512, 64)), 64, 1)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 400), st.integers(1, 4), st.booleans(), st.sampled_from(["flashinfer", "paged"]))
def test_grows_with_context_and_sequences(context: int, batch: int, caching: bool, attention: str) -> None:
    options = (f"prefix_caching={'on' if caching else 'off'}", f"attention={attention}")
    spec = model({"window": 100})
    now = kv(spec, context, batch, *options).allocated_bytes
    assert now <= kv(spec, context + 1, batch, *options).allocated_bytes
    assert now <= kv(spec, context, batch + 1, *options).allocated_bytes
