"""llama.cpp: cells, windows, latents, states and special caches, with the arithmetic written out."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvplan.engines import load_engine
from kvplan.engines.llamacpp.tensors import cuda_bytes, row_layout
from kvplan.plan import Plan, PlanRequest, make_plan
from kvplan.specs.load import load_model
from kvplan.specs.model import ModelSpec

MIB = 2**20


def make(*groups: dict[str, Any], layers: int, model_type: str | None = "llama", **more: Any) -> ModelSpec:
    body = {
        "kvplan_spec": 1, "id": "made", "max_context": 1 << 20, "layers": layers, "native_dtype": "bfloat16",
        "model_type": model_type, "layer_groups": list(groups),
    }  # fmt: skip
    return ModelSpec.model_validate(body | more)


def attention(layers: list[int], heads: int = 8, dim: Any = 128, **more: Any) -> dict[str, Any]:
    return {"kind": "attention", "layers": layers, "q_heads": heads, "kv_heads": heads, "head_dim": dim, **more}


def latent(layers: list[int], width: Any, **more: Any) -> dict[str, Any]:
    heads = {} if more.get("role") == "index" else {"q_heads": 8}
    return {"kind": "latent", "layers": layers, "width": width, **heads, **more}


PLAIN = make(attention([0, 1]), layers=2)
WINDOWED = make(
    attention([0], name="full"), attention([1, 2], name="sliding", retain={"window": 1024}),
    layers=3, model_type="gemma3",
)  # fmt: skip
ROW = 8 * 128 * 2
"""Bytes of K (or V) of one token and layer in f16."""


def plan(spec: ModelSpec, context: int, batch: int = 1, *options: str, **fields: Any) -> Plan:
    request = {"model": spec.id, "engine": "llamacpp", "context": context, "batch": batch, **fields}
    made = make_plan(PlanRequest.model_validate(request | {"engine_options": options}), spec)
    kv, trees = made.kv, made.breakdown
    assert kv is not None and trees.padding is not None
    assert kv.allocated_bytes == kv.logical_bytes + kv.reserved_bytes + kv.padding_bytes - kv.engine_saves_bytes
    assert trees.padding.nbytes <= kv.padding_bytes
    return made


def allocated(spec: ModelSpec, context: int, batch: int = 1, *options: str, **fields: Any) -> int:
    kv = plan(spec, context, batch, *options, **fields).kv
    assert kv is not None
    return kv.allocated_bytes


def figures(made: Plan) -> dict[str, Any]:
    assert made.engine is not None
    return {f.name: f.value for f in made.engine.figures}


def test_cells_are_padded_to_256_for_each_slot() -> None:
    made = plan(PLAIN, 1000, 3)
    assert made.kv is not None and made.kv.allocated_bytes == 2 * 3 * 1024 * 2 * ROW
    assert (figures(made)["n_ctx"], figures(made)["n_ctx_seq"]) == (3 * 1024, 1024)
    assert made.kv.logical_bytes == 2 * 3 * 1000 * 2 * ROW and made.kv.reserved_bytes == 0


def test_a_unified_pool_is_padded_once() -> None:
    # ceil(3 x 1000 / 256) = 12 pages of 256 cells
    assert allocated(PLAIN, 1000, 3, "kv_unified=on") == 2 * 12 * 256 * 2 * ROW


@pytest.mark.parametrize(
    ("n_ctx", "slots", "unified", "each", "total"),
    [(5000, 3, "off", 1792, 5376), (1000, 1, "off", 1024, 1024), (8192, 4, "on", 8192, 8192),
     (512, 4, "off", 256, 1024)],
)  # fmt: skip
def test_a_given_context_is_shared_out(n_ctx: int, slots: int, unified: str, each: int, total: int) -> None:
    """5000 over 3 slots: pad(5000) = 5120, a third is 1706, padded 1792 (measured with llama.cpp b11434)."""
    made = plan(PLAIN, 1, slots, f"n_ctx={n_ctx}", f"kv_unified={unified}")
    assert (figures(made)["n_ctx_seq"], figures(made)["n_ctx"]) == (each, total)
    assert made.kv is not None and made.kv.allocated_bytes == 2 * total * 2 * ROW


def test_spare_slots_and_context_are_reserved() -> None:
    kv = plan(PLAIN, 256, 1, "n_parallel=4").kv
    assert kv is not None and kv.reserved_bytes == 2 * 3 * 256 * 2 * ROW and kv.padding_bytes == 0
    kv = plan(PLAIN, 256, 1, "n_ctx=1024").kv
    assert kv is not None and kv.reserved_bytes == 2 * (1024 - 256) * 2 * ROW


@pytest.mark.parametrize(
    ("options", "cells"),
    [((), 4 * 1536), (("n_ubatch=2048",), 4 * 3072), (("kv_unified=on",), 4 * 1024 + 512),
     (("swa_full=on",), 4 * 4096)],
)  # fmt: skip
def test_windows_hold_a_batch_beside_them(options: tuple[str, ...], cells: int) -> None:
    """pad256(1024 + 512) for each slot; in one pool 4 x 1024 + 512 in all."""
    whole = 4 * 4096
    made = plan(WINDOWED, 4096, 4, *options)
    assert made.kv is not None and made.kv.allocated_bytes == (whole + 2 * cells) * 2 * ROW


def test_a_window_is_capped_by_the_context() -> None:
    assert allocated(WINDOWED, 1000) == (1024 + 2 * 1024) * 2 * ROW


def test_the_batch_is_reserved_and_rows_beyond_the_window_are_padding() -> None:
    kv = plan(WINDOWED, 4096).kv
    assert kv is not None and kv.reserved_bytes == 2 * 512 * 2 * ROW and kv.padding_bytes == 0
    made = plan(WINDOWED, 4096, 1, "swa_full=on")
    assert made.kv is not None and made.kv.reserved_bytes == 0
    assert made.kv.padding_bytes == 2 * (4096 - 1024) * 2 * ROW
    assert made.breakdown.padding is not None and made.breakdown.padding.nbytes == made.kv.padding_bytes


def test_architectures_whose_window_is_ignored_keep_every_token() -> None:
    mistral = make(attention([0], retain={"window": 1024}), layers=1, model_type="mistral")
    unknown = make(attention([0], retain={"window": 1024}), layers=1, model_type=None)
    assert allocated(mistral, 4096) == 4096 * 2 * ROW
    assert allocated(unknown, 4096) == 1536 * 2 * ROW
    assert any("Assumed" in note for note in plan(unknown, 4096).notes)


@pytest.mark.parametrize(("option", "block", "nbytes"), [
    ("q8_0", 32, 34), ("q5_1", 32, 24), ("q5_0", 32, 22), ("q4_1", 32, 20), ("q4_0", 32, 18), ("iq4_nl", 32, 18),
    ("f32", 1, 4), ("bf16", 1, 2), ("f16", 1, 2),
])  # fmt: skip
def test_types(option: str, block: int, nbytes: int) -> None:
    both = 2 * 256 * 2 * (8 * 128 // block * nbytes)
    assert allocated(PLAIN, 256, kv=option) == both
    assert allocated(PLAIN, 256, k=option) == both // 2 + 2 * 256 * ROW


def test_the_default_is_f16_whatever_the_model_has() -> None:
    made = plan(PLAIN, 256)
    assert made.engine is not None and made.engine.formats == {"k": "f16", "v": "f16"}
    assert "K (f16)" in figures(made)["log line 1"]


def test_without_flash_attention_every_v_is_as_wide_as_the_widest() -> None:
    """Gemma-4-like: 2 x 512 in full layers, 8 x 256 in those with a window."""
    spec = make(
        attention([0], 2, 512, name="full"), attention([1], 8, 256, name="sliding", retain={"window": 1024}),
        layers=2, model_type="gemma4",
    )  # fmt: skip
    full, sliding = 4096 * 1024 * 2, 1536 * 2048 * 2
    assert allocated(spec, 4096) == 2 * full + 2 * sliding
    assert allocated(spec, 4096, 1, "flash_attn=off") == 3 * full + 2 * sliding
    named = plan(spec, 4096, 1, "flash_attn=off").breakdown.padding
    assert named is not None and named.nbytes == full


def test_latents_are_one_row_of_k() -> None:
    """DeepSeek-V3 at 8,192 cells (measured): 575,668,224 bytes in f16, 305,823,744 in q8_0."""
    spec = make(latent(list(range(61)), {"nope": 512, "rope": 64}), layers=61, model_type="deepseek_v3")
    assert allocated(spec, 8192) == 61 * 8192 * 576 * 2 == 575_668_224
    assert allocated(spec, 8192, kv="q8_0") == 61 * 8192 * 18 * 34 == 305_823_744
    assert allocated(spec, 8192, k="q8_0", v="q8_0") == 305_823_744
    assert "V (q8_0):    0.00 MiB" in figures(plan(spec, 8192, kv="q8_0"))["log line 1"]


def test_a_build_of_july_2025_stores_latents_twice() -> None:
    spec = make(latent([0], {"nope": 512, "rope": 64}), layers=1, model_type="deepseek_v3")
    old = {"engine_version": "b5937"}
    assert allocated(spec, 256, 1, "flash_attn=on", **old) == 256 * (576 + 512) * 2
    assert allocated(spec, 256, 1, "flash_attn=on", k="f16", v="q8_0", **old) == 256 * (576 * 2 + 16 * 34)
    # Without flash attention, its default then, cells come in 32s.
    assert allocated(PLAIN, 1000, **old) == 2 * 1024 * 2 * ROW and allocated(PLAIN, 1026, **old) == 2 * 1056 * 2 * ROW


def test_states_are_floats_for_every_slot_and_snapshot() -> None:
    """Qwen3.5-9B, 24 layers: S 2 MiB and R 96 KiB each, 50.25 MiB for one sequence (printed in public logs)."""
    shape = {"type": "gated_deltanet", "k_heads": 16, "v_heads": 32, "k_dim": 128, "v_dim": 128, "conv_kernel": 4}
    group = {"kind": "state", "layers": "rest", "state": shape, "dtype": {"recurrent": "float32", "conv": "model"}}
    spec = make(group, layers=24, model_type="qwen3_5")
    s, r = 24 * 32 * 128 * 128 * 4, 24 * 3 * (2 * 16 * 128 + 32 * 128) * 4
    assert s + r == 50.25 * MIB
    for context in (1, 100_000):
        assert allocated(spec, context, 4, kv="q8_0") == 4 * (s + r)
    made = plan(spec, 1, 1, "n_rs_seq=3", "n_parallel=2")
    assert made.kv is not None and made.kv.allocated_bytes == 2 * 4 * (s + r)
    assert made.kv.reserved_bytes == 7 * (s + r) and made.kv.padding_bytes == r // 2
    line = (
        "size =  402.00 MiB (     2 cells,  24 layers,  2 seqs  3 rs_seq), R (f32):   18.00 MiB, S (f32):  384.00 MiB"
    )
    assert line in figures(made)["log line 1"]
    other = spec.model_copy(update={"model_type": "qwen3_next"})
    assert allocated(other, 1, 1, "n_rs_seq=3") == s + r
    assert any("no effect" in note for note in plan(other, 1, 1, "n_rs_seq=3").notes)


def test_index_keys_have_k_s_type_and_a_plane_that_nothing_reads() -> None:
    index = latent([1], 128, name="indexer", role="index", overlay=True)
    beside_kv = make(attention([0, 1]), index, layers=2, model_type="minimax_m3_vl")
    made = plan(beside_kv, 256, kv="q8_0")
    row = 8 * 128 // 32 * 34
    assert made.kv is not None
    assert made.kv.allocated_bytes == 256 * (2 * 2 * row + (4 + 4) * 34)
    assert made.kv.padding_bytes == 256 * 4 * 34
    beside_latents = make(latent([0, 1], {"nope": 512, "rope": 64}), index, layers=2, model_type="deepseek_v32")
    assert allocated(beside_latents, 256) == 256 * (2 * 576 + 128) * 2


def compressed() -> ModelSpec:
    """DeepSeek-V4-like: a window in both layers, one compressed row of 4 tokens, one of 128, and open groups."""
    fixed = {"dtype": "float32", "overlay": True}
    return make(
        latent([0, 1], {"nope": 32, "rope": 32}, name="swa", retain={"window": 128}),
        latent([0], 64, name="csa", stride=4, overlay=True),
        latent([0], 128, name="csa-index", stride=4, role="index", overlay=True),
        latent([0], 4 * 64, name="csa-open", retain={"ring": 8}, **fixed),
        latent([1], 64, name="hca", stride=128, overlay=True),
        latent([1], 2 * 64, name="hca-open", retain={"ring": 128}, **fixed),
        layers=2, model_type="deepseek_v4",
    )  # fmt: skip


def test_compressed_rows_have_a_stream_for_each_slot_in_any_mode() -> None:
    rows = 2 * 768 * 64 + 1024 * 64 + 1024 * 128 + 256 * 64
    states = (8 * 4 * 64 + 128 * 2 * 64) * 4
    assert allocated(compressed(), 4096) == rows * 2 + states
    assert allocated(compressed(), 4096, 2) == 2 * (rows * 2 + states)
    # Unified: every slot has the cells of the whole pool, 2 x 4096; 8192 / 4 and 8192 / 128 rows.
    shared = 2 * 768 * 64 + 2048 * 64 + 2048 * 128 + 256 * 64
    assert allocated(compressed(), 4096, 2, "kv_unified=on") == 2 * (shared * 2 + states)
    assert allocated(compressed(), 4096, 1, "n_rs_seq=1") == rows * 2 + 2 * states


def test_pooled_index_keys_keep_every_token() -> None:
    """GLM-5.3-Flash: key, gate and pooled key of every token; the open group is no cache of its own."""
    spec = load_model("glm-5.3-flash")
    made = plan(spec, 256)
    assert made.kv is not None
    parts = {g.name: g for g in made.kv.by_group}
    assert parts["indexer"].allocated_bytes == 11 * 256 * 3 * 128 * 2
    assert parts["index-tail"].allocated_bytes == 0
    assert parts["index-tail"].engine_saves_bytes == parts["index-tail"].logical_bytes > 0


def test_cuda_adds_what_a_quantised_row_misses_to_512() -> None:
    """1166.62 MiB of cells in a buffer of 1166.65 MiB: DeepSeek-R1, 32,768 cells (ikawrakow/ik_llama.cpp#259)."""
    rows = latent(list(range(61)), {"nope": 512, "rope": 64})
    spec = make(rows, layers=61, model_type="deepseek_v3", params={"total": 1000})
    cells, more = 61 * 32768 * 18 * 34, 61 * 14 * 34
    assert f"{cells / MIB:.2f} {(cells + more) / MIB:.2f}" == "1166.62 1166.65"
    for fields in ({"gpu": "h200"}, {}):
        options = () if fields else ("cuda=on",)
        assert allocated(spec, 32768, 1, *options, kv="q8_0", **fields) == cells + more
    assert allocated(spec, 32768, kv="q8_0") == allocated(spec, 32768, 1, "cuda=off", kv="q8_0", gpu="h200") == cells
    assert cuda_bytes(row_layout("k", "q8_0", 1024), "k") == cuda_bytes(row_layout("k", "fp16", 576), "k") == 0
    assert any("CUDA" in note for note in plan(spec, 256, kv="q8_0").notes)


def test_prediction_layers_have_a_context_of_their_own() -> None:
    """Qwen3.5-9B: one more attention layer, and 3 snapshots of the states."""
    spec = load_model("qwen3.5-9b")
    without, made = plan(spec, 1000), plan(spec, 1000, 1, mtp=True)
    layer, states = 1024 * 2 * 1024 * 2, 24 * (32 * 128 * 128 + 3 * 8192) * 4
    assert without.kv is not None and made.kv is not None
    assert made.kv.allocated_bytes == without.kv.allocated_bytes + layer + 3 * states
    assert figures(made)["draft attention K bytes"] == layer // 2
    deepseek = plan(load_model("deepseek-v3.2"), 1024, 1, mtp=True)
    assert deepseek.kv is not None
    index = next(g for g in deepseek.kv.by_group if g.name == "mtp-indexer")
    assert (index.allocated_bytes, index.engine_saves_bytes) == (0, 1024 * 128 * 2)


def test_in_host_memory_the_gpu_holds_nothing() -> None:
    made = plan(PLAIN, 1000, 2, "no_kv_offload=on")
    assert made.kv is not None and made.kv.allocated_bytes == 0
    assert made.kv.engine_saves_bytes == made.kv.logical_bytes
    assert any(f"{2 * 2 * 1024 * 2 * ROW:,} bytes" in note for note in made.notes)


def test_log_lines_count_every_stage() -> None:
    spec = make(attention(list(range(5))), layers=5)
    line = figures(plan(spec, 4096, 2, pp=2))["log line 1"]
    assert line == (
        "llama_kv_cache: size =  160.00 MiB (  4096 cells,   5 layers,  2/2 seqs), "
        "K (f16):   80.00 MiB, V (f16):   80.00 MiB"
    )


@given(context=st.integers(1, 9000), more=st.integers(0, 3000), batch=st.integers(1, 5), data=st.data())
@settings(max_examples=60, deadline=None)
def test_more_never_takes_less(context: int, more: int, batch: int, data: st.DataObject) -> None:
    spec = data.draw(st.sampled_from([PLAIN, WINDOWED, compressed()]))
    options = data.draw(
        st.lists(
            st.sampled_from(
                ["kv_unified=on", "n_ctx=5000", "n_parallel=5", "n_ubatch=64", "swa_full=on", "flash_attn=off"]
            ),
            unique=True,
        )
    )
    here = allocated(spec, context, batch, *options)
    assert here <= allocated(spec, context + more, batch, *options)
    if "n_parallel=5" not in options and "n_ctx=5000" not in options:
        assert here <= allocated(spec, context, batch + 1, *options)


def test_a_fixed_server_grows_with_sequences() -> None:
    """The same server asked for more sequences than it was started for: each has the slot that n_ctx gave."""
    from kvplan.plan.resolve import resolve

    request = PlanRequest(model="made", engine="llamacpp", context=100, batch=2, engine_options=("n_ctx=5000",))
    (rank,) = resolve(request, PLAIN).ranks
    held = [rank.held(100, n) for n in range(7)]
    assert held[0] == 0 and held[2] == 2 * 2 * 2560 * 2 * ROW and held == sorted(held)
    assert rank.beside(100) is None


def test_versions_are_found_with_and_without_their_letter() -> None:
    from kvplan.engines.shared.select import choose_version

    engine = load_engine("llamacpp")
    for asked in (None, "b11434", "11434"):
        assert choose_version(engine, asked) == "b11434"
    assert choose_version(engine, "5937") == "b5937"
