"""SGLang by hand: cells, pages, the extra page, windows, states, formats, refusals."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvplan.engines.sglang.memory import default_chunked_prefill, default_mem_fraction
from kvplan.engines.sglang.report import buffers
from kvplan.errors import UnsupportedError, UsageError
from kvplan.memory.parts import total
from kvplan.plan import PlanRequest, make_plan
from kvplan.plan.resolve import resolve
from kvplan.specs.model import ModelSpec

TOOLS = Path(__file__).parents[2] / "tools"
sys.path.insert(0, str(TOOLS))

from synthetic import attention, latent, make, nothing, state  # noqa: E402

GIB = 2**30
DENSE = make(2, attention("rest", 8, 128, q_heads=32))
MAMBA = {"type": "mamba2", "heads": 128, "head_dim": 64, "d_state": 128, "n_groups": 8, "conv_kernel": 4}


def windowed(model_type: str | None, window: int = 128) -> ModelSpec:
    """Two full layers and two windowed ones: 8 heads of 64."""
    return make(
        4, attention([1, 3], 8, 64, name="full"), attention([0, 2], 8, 64, name="swa", retain={"window": window}),
        model_type=model_type,
    )  # fmt: skip


def sparse(**more: Any) -> ModelSpec:
    """Two layers of DeepSeek-V3.2."""
    return make(2, latent("rest", 512, 64), latent([0, 1], 128, 0, name="index", role="index", overlay=True), **more)


def hybrid(model_type: str | None = "nemotron_h", recurrent: str = "float32", native: str = "bf16") -> ModelSpec:
    """One attention layer of 8 heads of 128, two Mamba 2 layers, one without a cache."""
    return make(
        4, attention([0], 8, 128), state([1, 2], MAMBA, recurrent=recurrent), nothing([3]), model_type=model_type,
        native=native,
    )  # fmt: skip


def cache(spec: ModelSpec, *options: str, **request: Any) -> Any:
    """The engine's cache of rank 0."""
    return resolve(PlanRequest(model="x", engine="sglang", engine_options=options, **request), spec).ranks[0].cache


def shown(spec: ModelSpec, *options: str, context: int = 4096, pool: int | None = None, **request: Any) -> dict:
    return {f.name: f.value for f in cache(spec, *options, **request).figures(context, pool)}


def kv(spec: ModelSpec, *options: str, **request: Any) -> Any:
    """The byte figures of a plan; they add up, and stay so in every group."""
    plan = make_plan(PlanRequest(model="x", engine="sglang", engine_options=options, **request), spec)
    for f in (plan.kv, *plan.kv.by_group):
        assert f.logical_bytes + f.reserved_bytes + f.padding_bytes - f.engine_saves_bytes == f.allocated_bytes
    return plan.kv


def test_a_dense_model_takes_pages_and_one_more() -> None:
    # 2 layers x 8 heads x (128 + 128) x 2 bytes = 8,192 bytes a token; pages of one token; one token more.
    made = kv(DENSE, context=1000, batch=3)
    assert made.allocated_bytes == 8192 * (3 * 1000 + 1)
    assert (made.reserved_bytes, made.padding_bytes) == (8192, 0)
    # Pages of 64: ceil(1000 / 64) = 16 pages a request, 24 rows of them not filled.
    made = kv(DENSE, context=1000, batch=3, page_size=64)
    assert made.allocated_bytes == 8192 * 64 * (3 * 16 + 1)
    assert (made.reserved_bytes, made.padding_bytes) == (8192 * 64, 8192 * 3 * 24)


def test_tokens_of_a_budget_are_whole_pages() -> None:
    found = shown(DENSE, page_size=64, pool=8192 * 1000)
    assert (found["cell_size"], found["max_total_num_tokens"]) == (8192, 960)
    assert shown(DENSE, "max_total_tokens=500", page_size=64, pool=8192 * 1000)["max_total_num_tokens"] == 448
    # K is half of 8,192 bytes for 960 + 64 tokens.
    assert found["log line 1"] == (
        "KV Cache is allocated. dtype: torch.bfloat16, #tokens: 960, K size: 0.00 GB, V size: 0.00 GB"
    )
    assert buffers(cache(DENSE, page_size=64).pools, 960) == {"K": 4096 * 1024, "V": 4096 * 1024}


def test_requests_at_once() -> None:
    pool = 8192 * 1_000_000
    # 1,000,000 / 4096 x 512 = 125,000, at most 4096; with 10,000 tokens at least 2048, but two tokens each.
    assert shown(DENSE, pool=pool)["max_running_requests"] == 4096
    assert shown(DENSE, pool=8192 * 3000)["max_running_requests"] == 1500
    assert shown(DENSE, "max_running_requests=7", pool=pool)["max_running_requests"] == 7


@pytest.mark.parametrize(
    ("kv_dtype", "cell"),
    # 2 layers x 8 heads x 256 elements: at 1 byte; with a byte for 32; half a byte and one for 16.
    [("fp8_e4m3", 4096), ("fp8_e5m2", 4096), ("mxfp8", 4224), ("bfloat16", 8192), ("fp4_mx_block16", 2304)],
)
def test_formats(kv_dtype: str, cell: int) -> None:
    assert shown(DENSE, kv=kv_dtype)["cell_size"] == cell


def test_nvfp4_by_gpu_and_prefill() -> None:
    # 2 layers x 8 heads x 144; a workspace of one layer is 8 x 256 bytes of fp8; scales again are 2 x 8 x 16.
    def cell(*options: str, gpu: str) -> int:
        return cache(DENSE, *options, kv="nvfp4", gpu_memory=None, gpu=gpu).pools.full_cell

    spec = "prefill_kv_cache_dequant_dtype"
    assert cell(gpu="b200") == 2304
    assert cell(f"{spec}=fp8_e4m3", gpu="b200") == 2304 + 2048 + 256
    assert cell(gpu="rtx-5090") == 2304 + 2048
    with pytest.raises(UsageError, match="SM100"):
        cell(f"{spec}=nvfp4", gpu="rtx-5090")
    with pytest.raises(UsageError, match="other GPUs"):
        cell(gpu="h200")
    with pytest.raises(UsageError, match="nvfp4 only"):
        cache(DENSE, f"{spec}=nvfp4")


def test_a_dequantisation_workspace_is_named() -> None:
    made = cache(DENSE, "dequant_workspace=bf16", kv="fp4_mx_block16")
    # One layer of K and V in bf16: 8 x 256 x 2 bytes for each of 2 x 10 tokens and the extra one.
    part = made.parts(10, 2)[-1]
    assert (total(part.allocated), total(part.padding), total(part.reserved)) == (4096 * 21, 4096 * 20, 4096)
    assert made.pools.full_cell == 2304 + 4096
    # The parts take what the buffers are.
    assert sum(buffers(made.pools, 20).values()) == made.held(10, 2)


def test_layers_without_rows_have_a_place_in_a_plain_model() -> None:
    spec = make(3, attention([0, 1], 8, 128), nothing([2]))
    made = kv(spec, context=10, batch=1)
    assert made.allocated_bytes == 3 * 4096 * 11
    assert made.padding_bytes == 4096 * 10
    # Beside states only attention layers have one.
    assert shown(hybrid())["cell_size"] == 4096


def test_windows_only_of_listed_models() -> None:
    # 4 layers x 8 x 128 x 2 = 8,192 bytes a token for all; 2 x 2,048 for the full pool.
    for model_type in ("gemma3_text", "mistral", None):
        made = kv(windowed(model_type), context=1000)
        assert made.allocated_bytes == 8192 * 1001
        assert made.padding_bytes == 2 * 2048 * (1000 - 128)
    notes = cache(windowed("gemma2")).notes
    assert any("keeps all rows" in note for note in notes)
    for model_type in ("gpt_oss", "gpt-oss", "llama4_text", "gemma4_text", "mimo_v2_flash", "step3p5"):
        assert shown(windowed(model_type))["cell_size"] == 4096 + 0.8 * 4096
    assert shown(windowed("inkling_text"))["cell_size"] == 4096 + 0.1 * 4096
    assert shown(windowed("gpt_oss"), "disable_hybrid_swa_memory=on")["cell_size"] == 8192


def test_two_pools_of_a_budget() -> None:
    # 4096 + 0.8 x 4096 = 7372.8 bytes; 10,000,000 // 7372.8 = 1356, to pages of 64: 1344; 0.8 x 1344 = 1075: 1024.
    found = shown(windowed("gpt_oss"), page_size=64, pool=10_000_000)
    assert (found["full_layer_tokens"], found["swa_layer_tokens"]) == (1344, 1024)
    assert found["max_total_num_tokens"] == 1344
    assert found["log line 2"].startswith("SWA KV Cache is allocated.")
    assert "full bytes per token and layer" in found


def test_the_window_pool_beside_a_request() -> None:
    made = cache(windowed("gpt_oss"))
    # 1000 tokens: 800 in the window pool; the request holds at most 128 + 128 + 2 rows there.
    full, swa = made.parts(1000, 1)
    assert total(full.allocated) == 2 * 2048 * 1001
    assert total(swa.allocated) == 2 * 2048 * 801
    assert total(swa.reserved) == 2 * 2048 * (800 - 258 + 1)
    assert total(swa.padding) == 2 * 2048 * (258 - 128)
    # A short request: the window pool must be larger than window + page, 130 tokens: 163 x 0.8 = 130.4.
    full, swa = made.parts(10, 1)
    assert total(full.allocated) == 2 * 2048 * (163 + 1)
    assert total(swa.allocated) == 2 * 2048 * (130 + 1)
    # 100 requests of 100 tokens: all rows lie in the window, and 10,000 / 0.8 = 12,500.
    full, swa = made.parts(100, 100)
    assert total(full.allocated) == 2 * 2048 * 12_501
    assert total(swa.allocated) == 2 * 2048 * 10_001


def test_windows_by_requests() -> None:
    options = ("disable_radix_cache=on", "max_running_requests=4", "chunked_prefill_size=1024")
    made = cache(windowed("gpt_oss"), *options)
    # (128 + 128 + 1 + 1) x 4 + 2 x 1024 + 1 = 3,081 tokens; full pool only what requests need.
    full, swa = made.parts(1000, 4)
    assert total(full.allocated) == 2 * 2048 * 4001
    assert total(swa.allocated) == 2 * 2048 * 3082
    found = shown(windowed("gpt_oss"), *options, pool=4096 * 5081)
    assert (found["full_layer_tokens"], found["swa_layer_tokens"]) == (2000, 3081)
    with pytest.raises(UsageError, match="4 run at once"):
        cache(windowed("gpt_oss"), *options, batch=5)


def test_layers_that_read_others_continue_the_pattern() -> None:
    # Full layers 2 and 5; of layers 6 to 9, layer 8 is full: 3 full and 7 windowed places.
    spec = make(
        10, attention([0, 1, 3, 4], 1, 64, name="swa", retain={"window": 128}), attention([2, 5], 1, 64, name="full"),
        nothing([6, 7, 8, 9], reads=("swa", "full")), model_type="gemma4_text",
    )  # fmt: skip
    pools = cache(spec).pools
    assert [(h.pool, h.layers) for h in pools.held] == [("swa", 7), ("full", 3)]


def test_states_slots_and_numbers() -> None:
    # A slot: 2 layers x (128 x 64 x 128 x 4 + (8192 + 2 x 8 x 128) x 3 x 2) = 2 x 4,255,744 bytes.
    slot = 2 * 4_255_744
    made = cache(hybrid(), page_size=1)
    rows, states = made.parts(100, 2)
    assert total(rows.allocated) == 4096 * 201
    assert total(states.allocated) == slot * (2 * 5 + 1)
    assert total(states.reserved) == slot * (11 - 2)
    assert not states.saves and not states.padding
    found = shown(hybrid(), pool=30 * GIB)
    # 30 GiB x 0.9 / 1.9 holds int((15,258,697,414 - slot) // slot) slots; the rest is for rows.
    assert found["max_mamba_cache_size"] == (int(30 * 0.9 / 1.9 * GIB) - slot) // slot
    assert found["bytes left for rows"] == 30 * GIB - (found["max_mamba_cache_size"] + 1) * slot
    assert found["state slots per request"] == 5


@pytest.mark.parametrize(
    ("options", "slots"),
    [
        ((), 5),
        (("disable_overlap_schedule=on",), 3),
        (("mamba_radix_cache_strategy=no_buffer",), 3),
        (("mamba_radix_cache_strategy=extra_buffer_lazy",), 4),
        (("mamba_radix_cache_strategy=extra_buffer", "disable_overlap_schedule=on"), 4),
        (("disable_radix_cache=on",), 1),
    ],
)
def test_slots_of_a_request(options: tuple[str, ...], slots: int) -> None:
    assert shown(hybrid(), *options)["state slots per request"] == slots


def test_models_whose_states_are_not_tracked() -> None:
    assert shown(hybrid("lfm2"))["state slots per request"] == 3
    with pytest.raises(UsageError, match="no extra_buffer"):
        cache(hybrid("lfm2"), "mamba_radix_cache_strategy=extra_buffer")


def test_state_numbers_of_the_engine() -> None:
    # 16-bit recurrent states on request: half of 4,194,304 bytes of each layer is saved.
    made = kv(hybrid(), "mamba_ssm_dtype=bfloat16", context=10, batch=2)
    assert made.engine_saves_bytes == 2 * 2 * 2_097_152
    # A model that says nothing gets fp32: as much more than its own 16 bits.
    made = kv(hybrid(recurrent="model"), context=10, batch=2)
    assert made.padding_bytes == 2 * 2 * 2_097_152
    # Convolution rows are bf16 whatever the model: 61,440 bytes less than fp32 in each layer.
    assert kv(hybrid(native="fp32"), context=10, batch=1).engine_saves_bytes == 2 * 61_440


def test_state_slots_by_option() -> None:
    made = cache(hybrid(), "max_mamba_cache_size=20", batch=4)
    assert total(made.parts(10, 4)[1].allocated) == 2 * 4_255_744 * 21
    assert total(made.parts(10, 1)[1].allocated) == 2 * 4_255_744 * 21
    with pytest.raises(UsageError, match="4 requests of 5 slots, 5 are asked"):
        cache(hybrid(), "max_mamba_cache_size=20", batch=5)
    # Without radix cache: one slot for each of max_running_requests.
    found = shown(hybrid(), "disable_radix_cache=on", "max_running_requests=6", pool=GIB)
    assert found["max_mamba_cache_size"] == 6


def test_sparse_attention_rows_by_backend_and_gpu() -> None:
    def cell(*options: str, **request: Any) -> tuple[int, int]:
        made = cache(sparse(), *options, **request)
        return made.pools.full_cell, made.page_size

    # 2 layers of latents and 132 bytes of index keys; pages of 64.
    assert cell() == (2 * (1152 + 132), 64)
    assert cell(kv="fp8_e4m3") == (2 * (656 + 132), 64)
    assert cell("dsa_decode_backend=trtllm", kv="fp8_e4m3") == (2 * (576 + 132), 64)
    assert cell(gpu="h200") == (2 * (1152 + 132), 64)
    assert cell(gpu="b200") == (2 * (576 + 132), 64)
    assert cell("dsa_decode_backend=flashmla_kv", "dsa_prefill_backend=flashmla_kv", gpu="b200") == (2 * 788, 64)
    assert cell("page_size=1")[1] == 1
    with pytest.raises(UsageError, match="mix tilelang"):
        cell("dsa_decode_backend=tilelang", kv="fp8_e4m3")
    with pytest.raises(UsageError, match="no cache format"):
        cell(kv="mxfp4x")
    assert any("No GPU is named" in note for note in cache(sparse()).notes)


def test_index_keys_lie_in_whole_pages_and_are_not_shared() -> None:
    # 100 tokens: 2 pages and the extra one; pages of one token: two more.
    assert total(cache(sparse()).parts(100, 1)[1].allocated) == 2 * 132 * 64 * 3
    assert total(cache(sparse(), "page_size=1").parts(100, 1)[1].allocated) == 2 * 132 * 102
    # dcp 2: a page of 64 holds 128 tokens on two ranks; their index keys are on both.
    rows, keys = cache(sparse(), tp=2, dcp=2).parts(1000, 1)
    assert total(rows.allocated) == 2 * 1152 * 64 * (8 + 1)
    assert total(keys.allocated) == 2 * 132 * 128 * (8 + 1)


def test_page_sizes_of_backends() -> None:
    plain = make(2, latent("rest", 512, 64), model_type="deepseek_v3")
    for backend, asked, page in [("flashmla", 1, 64), ("trtllm_mla", 32, 32), ("trtllm_mla", 16, 64)]:
        assert cache(plain, f"attention_backend={backend}", page_size=asked).page_size == page
    assert cache(plain, gpu="b200").page_size == 64
    assert cache(DENSE, gpu="b200").page_size == 64
    assert cache(DENSE, gpu="h200").page_size == 1
    assert cache(DENSE, "attention_backend=fa4", gpu="b200").page_size == 128
    note = cache(DENSE, "attention_backend=hpc_ops", page_size=16).notes
    assert note == ("SGLang changes page_size 16 to 64 for its attention backend.",)


def test_heads_and_replicas() -> None:
    # Half a head is one head; attention replicas hold all 8 heads of their requests.
    spec = make(2, attention("rest", 8, 128, q_heads=32))
    assert shown(spec, tp=16)["cell_size"] == shown(spec, tp=8)["cell_size"] == 1024
    assert shown(spec, tp=8, dp_attention=True)["cell_size"] == 8192
    assert shown(spec, pp=2)["cell_size"] == 4096


def test_draft_layers_are_layers() -> None:
    spec = make(2, latent("rest", 512, 64), mtp={"layers": 1, "cache_like": ["latent"]})
    assert shown(spec, mtp=True)["cell_size"] == 3 * 1152
    with pytest.raises(UnsupportedError, match="draft layers"):
        cache(make(2, attention([0], 8, 128), state([1], MAMBA), mtp={"layers": 1, "cache_like": ["attention"]}),
              mtp=True)  # fmt: skip


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (make(2, attention([0], 8, 128, name="a"), attention([1], 4, 128, name="b")), "differ in heads"),
        (sparse(model_type="deepseek_v4"), "compressed pools"),
        (make(2, attention("rest", 8, 128), latent([0], 128, 0, role="index", overlay=True)), "beside K and V"),
        (make(2, latent("rest", 512, 64, stride=4)), "no rule for group latent"),
        (make(2, state("rest", {"type": "rglru", "width": 64, "conv_kernel": 4})), "rglru"),
    ],
)
def test_unread_rules(spec: ModelSpec, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        cache(spec)


def test_refused_options() -> None:
    with pytest.raises(UsageError, match="not above 0"):
        cache(windowed("gpt_oss"), "swa_full_tokens_ratio=0")
    with pytest.raises(UnsupportedError, match="4-bit rows in two pools"):
        cache(windowed("gpt_oss"), kv="fp4_mx_block16")
    with pytest.raises(UsageError, match="no rules for SGLang 0\\.4"):
        make_plan(PlanRequest(model="x", engine="sglang", engine_version="0.4"), DENSE)


def test_share_of_memory() -> None:
    # 81,559 MiB: 512 + 12,288 + 128 + 512 + 58 x 8 = 13,904 MiB are kept; 0.8295.
    h100 = 81_559 * 2**20
    assert default_mem_fraction(h100, prefill_graphs_mib=58 * 8) == 0.83
    assert default_mem_fraction(h100, tp=8, prefill_graphs_mib=58 * 8) == 0.812
    # At least 10 GiB of a large card; 24 GiB: 512 + 6,144 + 128 + 96.
    assert default_mem_fraction(h100, chunked_prefill_size=2048) == round((81_559 - 10_240) / 81_559, 3)
    assert default_mem_fraction(24_564 * 2**20) == round((24_564 - 6_880) / 24_564, 3)
    assert [default_chunked_prefill(gib * GIB) for gib in (16, 24, 48, 80, 141, 192)] == [
        2048, 4096, 4096, 8192, 8192, 16384,
    ]  # fmt: skip


SPECS = (DENSE, windowed("gpt_oss"), windowed("gemma2"), hybrid(), sparse())


@settings(max_examples=60, deadline=None)
@given(
    spec=st.sampled_from(SPECS),
    page=st.sampled_from([1, 16, 64]),
    context=st.integers(1, 3000),
    more=st.integers(0, 500),
    sequences=st.integers(0, 9),
)
def test_grows_with_both(spec: ModelSpec, page: int, context: int, more: int, sequences: int) -> None:
    made = cache(spec, page_size=page)
    held = made.held(context, sequences)
    assert held <= made.held(context + more, sequences) <= made.held(context + more, sequences + 1)
    for part in made.parts(context, sequences):
        assert 0 <= total(part.reserved) <= total(part.allocated)


@settings(max_examples=40, deadline=None)
@given(
    spec=st.sampled_from(SPECS),
    page=st.sampled_from([1, 16, 64]),
    context=st.integers(1, 3000),
    batch=st.integers(1, 9),
)
def test_every_byte_has_a_name_or_is_page_rounding(spec: ModelSpec, page: int, context: int, batch: int) -> None:
    kv(spec, context=context, batch=batch, page_size=page)


@pytest.mark.parametrize("spec", SPECS)
def test_parts_take_what_the_buffers_are(spec: ModelSpec) -> None:
    made = cache(spec, page_size=64)
    full, swa = (pages * 64 for pages in (made.full_pages(700, 3), made.swa_pages(700, 3)))
    taken = buffers(made.pools, full, swa, 3 * made.settings.slots_per_request)
    assert sum(taken.values()) == made.held(700, 3)


def test_golden_figures(shared: Path) -> None:
    from golden.run import compare, summary

    found = summary(compare(shared / "data" / "sglang_golden.json"))
    assert found["equal"] == found["records"] >= 222


def test_printed_logs(shared: Path) -> None:
    import json

    from logs.common import DIFFERENT, REPRODUCED
    from logs.sglang import ENGINES, check

    records = json.loads((shared / "data" / "engine_logs.json").read_text(encoding="utf-8"))["records"]
    found = [check(r) for r in records if r["engine"] in ENGINES]
    assert not [f for f in found if f.verdict == DIFFERENT]
    assert all(f.verdict == REPRODUCED for f in found if f.strength == "independent")
    assert len(found) >= 16


def test_a_log_that_does_not_fit_is_different() -> None:
    from logs.sglang import check

    one = {"f": "sglang_kv", "kind": "gqa", "layers": 32, "kv_heads": 8, "dk": 128, "tokens": 10**6, "k_gb": 1.0}
    record = {"id": "x", "engine": "SGLang", "evidence_strength": "independent", "checks": [one], "derivation": ""}
    assert check(record).verdict == "different"
    unread = one | {"kind": "mla", "row_bytes": 700, "kv_gb": 1.0}
    assert check(record | {"checks": [unread]}).verdict == "different"
