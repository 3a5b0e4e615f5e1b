"""SGLang by hand: states, sparse attention, page sizes, ranks, refusals, the share of memory."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from kvplan.engines.sglang.memory import default_chunked_prefill, default_mem_fraction
from kvplan.errors import UnsupportedError, UsageError
from kvplan.memory.parts import total
from kvplan.plan import PlanRequest, make_plan
from kvplan.specs.model import ModelSpec

sys.path.insert(0, str(Path(__file__).parent))

from sglang_specs import (
    DENSE,
    GIB,
    MAMBA,
    attention,
    cache,
    hybrid,
    kv,
    latent,
    make,
    shown,
    sparse,
    state,
    windowed,
)


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
