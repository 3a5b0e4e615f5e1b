"""transformers: what tensors hold after calls, each rule with its arithmetic written out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvplan.engines.transformers.rows import open_rows, quantised_rows, sliding_rows
from kvplan.errors import UnsupportedError, UsageError
from kvplan.plan import Plan, PlanRequest, make_plan
from kvplan.plan.resolve import resolve
from kvplan.specs.model import ModelSpec

REPO = Path(__file__).resolve().parents[2]
NEW, OLD = (5, 24, 0), (5, 19, 0)


def model(*groups: dict[str, Any], layers: int = 2, dtype: str = "bfloat16", model_type: str = "small") -> ModelSpec:
    body = {"kvplan_spec": 1, "id": "small", "max_context": 1 << 20, "layers": layers, "native_dtype": dtype}
    return ModelSpec.model_validate(body | {"layer_groups": list(groups), "model_type": model_type})


def attention(layers: Any = "rest", **more: Any) -> dict[str, Any]:
    return {"kind": "attention", "layers": layers, "q_heads": 4, "kv_heads": 2, "head_dim": 64, **more}


def state(dims: dict[str, Any], layers: Any = "rest", recurrent: str = "float32") -> dict[str, Any]:
    return {"kind": "state", "layers": layers, "state": dims, "dtype": {"recurrent": recurrent, "conv": "model"}}


LATENT = {"kind": "latent", "layers": "rest", "q_heads": 4, "width": {"nope": 512, "rope": 64}}


def request(context: int, *options: str, version: str | None = None, **more: Any) -> PlanRequest:
    return PlanRequest(
        model="small", engine="transformers", context=context, engine_options=options, engine_version=version,
        beyond_max=True, **more,
    )  # fmt: skip


def plan(spec: ModelSpec, context: int, *options: str, **more: Any) -> Plan:
    made = make_plan(request(context, *options, **more), spec)
    kv = made.kv
    assert kv is not None
    assert kv.logical_bytes + kv.reserved_bytes + kv.padding_bytes - kv.engine_saves_bytes == kv.allocated_bytes
    return made


def held(spec: ModelSpec, context: int, *options: str, **more: Any) -> int:
    kv = plan(spec, context, *options, **more).kv
    assert kv is not None
    return kv.allocated_bytes


def tensors(spec: ModelSpec, calls: list[int], batch: int = 1, *options: str, **more: Any) -> dict[str, int]:
    """Bytes of each tensor, all layers and groups together."""
    rank: Any = resolve(request(sum(calls), *options, batch=batch, **more), spec).ranks[0]
    made: dict[str, int] = {}
    for group, stored in rank.cache.tensors(calls, batch):
        for s in stored:
            made[s.name] = made.get(s.name, 0) + s.tensor(group, batch).nbytes
    return made


@pytest.mark.parametrize(
    ("calls", "rows"),
    [
        ([7], (7, 7)),
        # 15 of the prompt's 40 rows, in a view of them; then a view of 16.
        ([40], (15, 40)),
        ([40, 1], (15, 16)),
        ([40, 1, 1], (15, 16)),
        ([10, 10], (15, 20)),
        ([40, 10], (15, 25)),
    ],
)
def test_sliding_rows(calls: list[int], rows: tuple[int, int]) -> None:
    assert sliding_rows(calls, 16) == rows
    assert sliding_rows(calls, 1) == (sum(calls), sum(calls))


@pytest.mark.parametrize(
    ("calls", "new", "old"),
    [
        ([32], (32, 0), (32, 0)),
        ([32] + [1] * 127, (32, 127), (32, 127)),
        ([32] + [1] * 128, (160, 0), (160, 0)),
        ([32] + [1] * 129, (160, 1), (160, 1)),
        # 100 + 100 reach 128; the older rule asked whether 100 + 1 would.
        ([64, 100], (64, 100), (64, 100)),
        ([64, 100, 100], (264, 0), (64, 200)),
        ([64, 100, 100, 1], (264, 1), (265, 0)),
        ([64, 128], (192, 0), (64, 128)),
    ],
)
def test_quantised_rows(calls: list[int], new: tuple[int, int], old: tuple[int, int]) -> None:
    assert quantised_rows(calls, 128, NEW)[:2] == new
    assert quantised_rows(calls, 128, OLD)[:2] == old
    assert quantised_rows(calls, 0, NEW)[1] == 0


def test_open_rows() -> None:
    assert open_rows([40, 1, 1, 1], 4) == (3, 3)
    assert open_rows([40], 4) == (0, 40)
    assert open_rows([7], 128) == (7, 7)


def test_full_attention() -> None:
    # K and V of 2 heads x 64 channels x 2 bytes.
    assert held(model(attention()), 100, batch=3) == 2 * 3 * 100 * 2 * 2 * 64 * 2
    assert held(model(attention(), dtype="float32"), 100) == 2 * 100 * 2 * 2 * 64 * 4
    dims = {"k": 192, "v": 128}
    assert held(model(attention(head_dim=dims)), 10) == 2 * 10 * 2 * (192 + 128) * 2


def test_windows_are_views() -> None:
    spec = model(attention(retain={"window": 16}))
    assert held(spec, 41) == 2 * 16 * 512
    assert tensors(spec, [40, 1])["keys"] == 2 * 15 * 256
    # Right after the prompt the storage is the whole prompt.
    kv = plan(spec, 40, "decode_tokens=0").kv
    assert kv is not None and kv.allocated_bytes == 2 * 40 * 512 and kv.padding_bytes == 2 * 24 * 512
    engine = plan(spec, 41).engine
    assert engine is not None
    assert {f.name: f.value for f in engine.figures} == {
        "tensor bytes of one sequence": 2 * 15 * 512, "storage right after the prompt": 2 * 40 * 512,
    }  # fmt: skip
    assert held(model(attention(retain={"chunk": 16})), 41) == 2 * 16 * 512


def test_static_caches() -> None:
    spec = model(attention([0], name="a", retain={"window": 16}), attention(name="b"))
    static = "cache_implementation=static"
    kv = plan(spec, 10, static, "max_cache_len=50").kv
    assert kv is not None and kv.allocated_bytes == (16 + 50) * 512 and kv.reserved_bytes == (6 + 40) * 512
    assert held(spec, 10, static) == (10 + 10) * 512
    with pytest.raises(UsageError, match="above max_cache_len 50"):
        held(spec, 51, static, "max_cache_len=50")
    with pytest.raises(UsageError, match="quantised or static"):
        held(model(attention()), 65, static, kv="quanto-int4")
    with pytest.raises(UsageError, match="a cache of its own"):
        held(model(attention(), model_type="minimax"), 10, static)


def test_latents_and_index_keys() -> None:
    index = {"kind": "latent", "layers": 2, "width": 128, "role": "index", "overlay": True, "name": "index"}
    spec = model(LATENT, index)
    assert held(spec, 100) == 2 * 100 * (512 + 64 + 128) * 2
    made = tensors(spec, [99, 1])
    assert made == {"keys": 2 * 100 * 1024, "values": 2 * 100 * 128, "indexer_keys": 2 * 100 * 256}
    with pytest.raises(UsageError, match="only full attention layers; group index"):
        held(spec, 65, kv="quanto-int4")
    with pytest.raises(UnsupportedError, match="every head instead of the latent"):
        held(model(LATENT), 100, version="5.14.0")
    # Before 5.15.0: keys and values of 4 heads.
    old = model({**LATENT, "expanded": {"k": 192, "v": 128}})
    assert held(old, 100, version="5.14.0", batch=2) == 2 * 2 * 100 * 4 * (192 + 128) * 2
    assert held(old, 100) == held(model(LATENT), 100)
    assert held(model(LATENT), 100, version="5.15.0") == 2 * 100 * 576 * 2
    with pytest.raises(UnsupportedError, match=r"5\.24\.0 only"):
        held(spec, 100, version="5.20.0")


@pytest.mark.parametrize(
    ("dims", "recurrent", "conv"),
    [
        # Convolutions keep as many columns as their kernel; recurrent states are float32.
        ({"type": "mamba1", "inner": 128, "d_state": 16, "conv_kernel": 4}, 128 * 16 * 4, 128 * 4 * 2),
        ({"type": "mamba2", "heads": 8, "head_dim": 16, "d_state": 16, "n_groups": 2, "conv_kernel": 4},
         8 * 16 * 16 * 4, (128 + 2 * 2 * 16) * 4 * 2),
        ({"type": "gated_deltanet", "k_heads": 2, "v_heads": 4, "k_dim": 16, "v_dim": 16, "conv_kernel": 4},
         4 * 16 * 16 * 4, (2 * 32 + 64) * 4 * 2),
        ({"type": "kda", "heads": 4, "head_dim": 16, "conv_kernel": 4}, 4 * 16 * 16 * 4, 3 * 64 * 4 * 2),
        ({"type": "short_conv", "dim": 64, "conv_kernel": 3}, 0, 64 * 3 * 2),
        ({"type": "rglru", "width": 64, "conv_kernel": 4}, 64 * 4, 64 * 3 * 2),
        ({"type": "cca", "channels": 768, "values": 128, "conv_kernel": 3}, 128 * 2, 768 * 2 * 2),
        ({"type": "rwkv4", "hidden": 64, "attention": 96}, 3 * 96 * 4, 2 * 64 * 2),
    ],
)  # fmt: skip
def test_states(dims: dict[str, Any], recurrent: int, conv: int) -> None:
    spec = model(attention([0]), state(dims))
    assert held(spec, 1, batch=3) == 3 * (512 + recurrent + conv)
    narrow = model(attention([0]), state(dims, recurrent="bfloat16"))
    assert held(narrow, 1, batch=3) == 3 * (512 + recurrent + conv)


def test_linear_states_are_known_for_minimax_only() -> None:
    dims = {"type": "lightning", "heads": 4, "head_dim": 16}
    kv = plan(model(attention([0]), state(dims), model_type="minimax"), 1).kv
    # In the model's dtype: 16-bit instead of the spec's float32.
    assert kv is not None and kv.allocated_bytes == 512 + 4 * 16 * 16 * 2 and kv.engine_saves_bytes == 4 * 16 * 16 * 2
    with pytest.raises(UnsupportedError, match="lightning states of bailing"):
        held(model(attention([0]), state(dims), model_type="bailing_hybrid"), 1)
    with pytest.raises(UsageError, match="linear-attention layers only"):
        held(model(state(dims), model_type="bailing_hybrid"), 1)
    mamba = {"type": "mamba1", "inner": 128, "d_state": 16, "conv_kernel": 4}
    assert held(model(state(mamba), model_type="mamba"), 1) == 2 * 128 * (64 + 8)


def test_encoder_rows_and_shared_layers() -> None:
    cross = {
        "kind": "cross", "layers": 2, "q_heads": 4, "kv_heads": 2, "head_dim": 64, "overlay": True,
        "encoder_tokens": {"per": "input", "count": 50},
    }  # fmt: skip
    spec = model(attention(layers=2), cross)
    assert held(spec, 9) == 2 * (9 + 50) * 512
    with pytest.raises(UsageError, match="encoder-decoder"):
        held(spec, 65, kv="quanto-int4")
    assert held(model(attention([0]), {"kind": "none", "layers": "rest", "reads": ["attention"]}), 9) == 9 * 512


def v4() -> ModelSpec:
    """One layer that compresses by 4 with overlap and an indexer, and one by 8 without."""
    row = {"kind": "latent", "q_heads": 4}
    key = {"kind": "latent", "role": "index", "layers": [0], "overlay": True}
    ring = {"overlay": True, "dtype": "float32"}
    return model(
        {**row, "name": "swa", "layers": 2, "width": {"nope": 48, "rope": 16}, "retain": {"window": 16}},
        {**row, "name": "csa", "layers": [0], "width": {"nope": 48, "rope": 16}, "stride": 4, "overlay": True},
        {**key, "name": "csa-index", "width": 32, "stride": 4},
        {**row, **ring, "name": "csa-open", "layers": [0], "width": 4 * 64, "retain": {"ring": 8}},
        {**key, **ring, "name": "csa-index-open", "width": 4 * 32, "retain": {"ring": 8}},
        {**row, "name": "hca", "layers": [1], "width": {"nope": 48, "rope": 16}, "stride": 8, "overlay": True},
        {**row, **ring, "name": "hca-open", "layers": [1], "width": 2 * 64, "retain": {"ring": 8}},
        model_type="deepseek_v4",
    )  # fmt: skip


def test_compressed_rows() -> None:
    made = tensors(v4(), [28, 1, 1, 1])
    # 31 tokens: 15 rows of the window, seen twice; 7 complete groups of 4, 3 of 8.
    assert made["keys"] == made["values"] == 2 * 15 * 128
    assert made["compressed_kv"] == 7 * (128 + 64) + 3 * 128
    # 3 tokens of the open group of 4, rows of two halves; 7 of the group of 8. Values and gates alike.
    assert made["buffer_kv"] == made["buffer_gate"] == 3 * 2 * (128 + 64) + 7 * 128
    # The last complete group of 4.
    assert made["overlap_kv"] == made["overlap_gate"] == 4 * (128 + 64)
    # Keys and values are one tensor; a buffer counts as the fullest it has been: 4 and 8 rows.
    window, rows = 2 * 16 * 128, 7 * (128 + 64) + 3 * 128
    buffers = 2 * (4 * 2 * 192 + 8 * 128 + 4 * 192)
    assert held(v4(), 31) == window + rows + buffers
    with pytest.raises(UsageError, match="no static layers"):
        held(v4(), 31, "cache_implementation=static")
    with pytest.raises(UnsupportedError, match="known for deepseek_v4"):
        held(v4().model_copy(update={"model_type": "other"}), 31)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 400), st.integers(1, 100), st.integers(0, 3), st.integers(0, 40), st.booleans())
def test_it_grows(context: int, more: int, sequences: int, decode: int, compressed: bool) -> None:
    mixed = model(attention([0], name="a", retain={"window": 30}), attention(name="b"))
    rank: Any = resolve(request(300, f"decode_tokens={decode}"), v4() if compressed else mixed).ranks[0]
    assert rank.cache.held(context, sequences) <= rank.cache.held(context + more, sequences)
    assert rank.cache.held(context, sequences) <= rank.cache.held(context, sequences + 1)
    assert rank.cache.held(context, 0) == 0


def test_the_golden_file(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(REPO / "tools"))
    from golden.run import compare, summary

    outcomes = compare(shared / "data" / "hf_golden.json")
    assert [o for o in outcomes if o.verdict == "different"] == []
    counts = summary(outcomes)
    assert counts["equal"] > 500 and counts["not_in_scope_percent"] == 0
