"""ExLlamaV3 and V2: pages of 256 tokens, quantised rows, rings and state slots by hand, refusals."""

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
V3, V2 = "exllamav3", "exllamav2"
ELEMENTS = 2 * 8 * 128  # of K (or of V) of a token in all layers
DELTA = {"type": "gated_deltanet", "k_heads": 4, "v_heads": 8, "k_dim": 16, "v_dim": 16, "conv_kernel": 4}
CHANNELS, RECURRENT = 2 * 4 * 16 + 8 * 16, 8 * 16 * 16  # of DELTA: of a convolution row, of a recurrent state


def model(heads: int = 8, dim: int = 128, **more: Any) -> ModelSpec:
    spec: ModelSpec = synthetic.make(2, synthetic.attention(range(2), heads, dim), **more)
    return spec


def sliding(model_type: str | None) -> ModelSpec:
    groups = (
        synthetic.attention([0], 8, 128, retain={"window": 100}, name="sliding"),
        synthetic.attention([1], 8, 128, name="full"),
    )
    spec: ModelSpec = synthetic.make(2, *groups, model_type=model_type)
    return spec


def hybrid(dims: dict[str, Any] | None = None) -> ModelSpec:
    spec: ModelSpec = synthetic.make(2, synthetic.state([0], dims or DELTA), synthetic.attention([1], 8, 128))
    return spec


def plan(engine: str, spec: ModelSpec, context: int, batch: int, *options: str, **request: Any) -> Plan:
    asked = PlanRequest(model=spec.id, context=context, batch=batch, engine=engine, engine_options=options, **request)
    made = make_plan(asked, spec)
    kv = made.kv
    assert kv is not None
    assert kv.logical_bytes + kv.reserved_bytes + kv.padding_bytes - kv.engine_saves_bytes == kv.allocated_bytes
    return made


def kv(engine: str, spec: ModelSpec, context: int, batch: int, *options: str, **request: Any) -> KvFigures:
    found = plan(engine, spec, context, batch, *options, **request).kv
    assert found is not None
    return found


def figures(made: Plan) -> dict[str, Any]:
    assert made.engine is not None
    return {f.name: f.value for f in made.engine.figures}


def test_pages_of_256_tokens_in_fp16_whatever_the_model() -> None:
    for native in ("bf16", "fp32"):
        assert kv(V3, model(native=native), 257, 3).allocated_bytes == 3 * 512 * 2 * ELEMENTS * 2


# bits / 8 and an fp16 scale for 32 elements.
@pytest.mark.parametrize("bits", range(2, 9))
def test_quantised_rows(bits: int) -> None:
    each = ELEMENTS * bits // 8 + ELEMENTS // 32 * 2
    assert kv(V3, model(), 256, 1, kv=str(bits)).allocated_bytes == 256 * 2 * each
    half = kv(V3, model(), 256, 1, k=str(bits), v="16")
    assert half.allocated_bytes == 256 * (each + ELEMENTS * 2)


def test_groups_run_along_the_row_of_a_rank() -> None:
    spec = model(heads=4, dim=24)  # 96 channels: three scales
    assert kv(V3, spec, 256, 1, kv="4").allocated_bytes == 256 * 2 * 2 * (48 + 3 * 2)
    with pytest.raises(UsageError, match="do not divide the rank's row"):
        plan(V3, spec, 256, 1, kv="4", tp=4)


def test_a_latent_keeps_its_rope_part_and_index_keys_in_fp16() -> None:
    index = synthetic.latent(range(2), 128, 0, name="index", role="index", overlay=True)
    spec = synthetic.make(2, synthetic.latent(range(2), 512, 64), index)
    assert kv(V3, spec, 256, 1).allocated_bytes == 256 * 2 * (576 * 2 + 256)
    assert kv(V3, spec, 256, 1, latent="4").allocated_bytes == 256 * 2 * (256 + 32 + 128 + 256)


@pytest.mark.parametrize("kind", ["gpt_oss", "gemma4_text", "laguna", "mimo_v2_flash", "step3p5"])
def test_sliding_layers_have_rings(kind: str) -> None:
    row = 8 * 512
    ring = 768  # 100 + 2 x 256, up to a multiple of 256
    found = kv(V3, sliding(kind), 1000, 3)
    assert found.allocated_bytes == 3 * (ring + 1024) * row
    assert found.reserved_bytes == 3 * (ring - 100) * row
    more = kv(V3, sliding(kind), 1000, 3, "autosplit_max_batch_size=5")
    assert more.allocated_bytes - found.allocated_bytes == 2 * ring * row
    # Rings stay in fp16; pages follow -cq.
    quantised = kv(V3, sliding(kind), 1000, 1, kv="4")
    assert quantised.allocated_bytes == ring * row + 1024 * 8 * 144
    assert kv(V3, sliding(kind), 1000, 3, "swa_full=on").allocated_bytes == 3 * 2 * 1024 * row


def test_other_windows_are_paged() -> None:
    for kind in (None, "gemma3_text", "mistral"):
        made = plan(V3, sliding(kind), 1000, 1)
        assert made.kv is not None
        assert made.kv.allocated_bytes == 2 * 1024 * 8 * 512
        assert any("pages every row" in note for note in made.notes)


def test_state_slots() -> None:
    pages = 3 * 256 * 8 * 512
    conv, recurrent = 4 * CHANNELS * 2, 2 * RECURRENT * 2  # bf16 columns as wide as the kernel, two fp16 states
    staged = CHANNELS * 2 + 8 * 2 + 8 * 4  # convolution and beta in bf16, gates in fp32
    found = kv(V3, hybrid(), 256, 3)
    assert found.allocated_bytes == pages + 3 * (conv + recurrent + staged)
    assert found.reserved_bytes == 3 * (recurrent // 2 + staged)
    assert found.engine_saves_bytes == 3 * RECURRENT * 2  # fp16 instead of fp32
    drafts = kv(V3, hybrid(), 256, 3, "max_history=2", "autosplit_max_batch_size=4", "recurrent_state_fp32=on")
    slot = 6 * CHANNELS * 2 + 2 * RECURRENT * 4 + 3 * staged
    assert drafts.allocated_bytes == pages + 4 * slot
    assert drafts.engine_saves_bytes == 0


def test_states_of_other_kinds() -> None:
    page = 256 * 8 * 512
    mamba = {"type": "mamba2", "heads": 8, "head_dim": 16, "d_state": 16, "n_groups": 2, "conv_kernel": 4}
    channels = 8 * 16 + 2 * 2 * 16
    slot = 4 * channels * 2 + 2 * RECURRENT * 4 + channels * 2 + 8 * 2 + 8 * 4  # always fp32
    assert kv(V3, hybrid(mamba), 256, 1).allocated_bytes == page + slot
    kda = {"type": "kda", "heads": 8, "head_dim": 16, "conv_kernel": 4}
    channels = 3 * 8 * 16
    slot = 4 * channels * 2 + 2 * RECURRENT * 2 + channels * 2 + 8 * 2 + 8 * 16 * 4  # gates of every key channel
    assert kv(V3, hybrid(kda), 256, 1).allocated_bytes == page + slot
    conv = {"type": "short_conv", "dim": 64, "conv_kernel": 3}
    assert kv(V3, hybrid(conv), 256, 1).allocated_bytes == page + 3 * 64 * 2
    with pytest.raises(UnsupportedError, match="states"):
        plan(V3, hybrid({"type": "mamba1", "inner": 64, "d_state": 8, "conv_kernel": 4}), 256, 1)
    with pytest.raises(UnsupportedError, match="several ranks"):
        plan(V3, hybrid(), 256, 1, tp=2)


def test_a_stated_cache_size_is_taken_whole() -> None:
    made = plan(V3, model(), 257, 2, "cache_size=8192")
    assert made.kv is not None
    assert made.kv.allocated_bytes == 8192 * 2 * ELEMENTS * 2
    assert made.kv.reserved_bytes == (8192 - 2 * 512) * 2 * ELEMENTS * 2
    assert figures(made)["least -cs"] == 1024
    for size, said in ((1000, "no multiple of 256"), (512, "does not hold")):
        with pytest.raises(UsageError, match=said):
            plan(V3, model(), 257, 2, f"cache_size={size}")


def test_a_copy_of_a_layer_is_a_figure_only() -> None:
    assert figures(plan(V3, model(), 257, 2, kv="4"))["fp16 copy of a layer"] == 1024 * ELEMENTS * 2
    assert "fp16 copy of a layer" not in figures(plan(V3, model(), 257, 2))


# Q6 is K in 8 bits and V in 4; the copy has K and V of one of the two layers in fp16.
@pytest.mark.parametrize(
    ("mode", "row", "copied"),
    [("FP16", 512, 0), ("8bit", 256, 512), ("Q4", 144, 512), ("Q6", 208, 512), ("Q8", 272, 512)],
)
def test_exllamav2(mode: str, row: int, copied: int) -> None:
    found = kv(V2, model(), 257, 3, kv=mode)
    assert found.allocated_bytes == 3 * 512 * 8 * (2 * row + copied)
    assert found.reserved_bytes == 3 * 512 * 8 * copied
    longer = kv(V2, model(), 257, 3, "max_seq_len=4096", kv=mode)
    assert longer.allocated_bytes == 4096 * 8 * (2 * row + copied)


def test_what_exllamav2_refuses() -> None:
    with pytest.raises(UsageError, match="no multiple of 256"):
        plan(V2, model(), 256, 1, "max_seq_len=1000")
    with pytest.raises(UsageError, match="does not hold"):
        plan(V2, model(), 512, 1, "max_seq_len=256")
    with pytest.raises(UsageError, match="groups of 32"):
        plan(V2, model(dim=80), 256, 1, kv="Q4")
    with pytest.raises(UnsupportedError, match="tensor parallel"):
        plan(V2, model(), 256, 1, tp=2)
    shapes = synthetic.make(2, synthetic.attention([0], 8, 128, name="a"), synthetic.attention([1], 4, 128, name="b"))
    with pytest.raises(UnsupportedError, match="several shapes"):
        plan(V2, shapes, 256, 1)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 2000), st.integers(1, 4), st.sampled_from(["plain", "ring", "hybrid", "v2"]), st.booleans())
def test_grows_with_context_and_sequences(context: int, batch: int, name: str, quantised: bool) -> None:
    engine = V2 if name == "v2" else V3
    spec = {"plain": model, "v2": model, "hybrid": hybrid, "ring": lambda: sliding("gpt_oss")}[name]()
    request = {"kv": "Q4" if engine == V2 else "4"} if quantised else {}
    now = kv(engine, spec, context, batch, **request).allocated_bytes
    assert now <= kv(engine, spec, context + 1, batch, **request).allocated_bytes
    assert now <= kv(engine, spec, context, batch + 1, **request).allocated_bytes
