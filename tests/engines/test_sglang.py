"""SGLang by hand: cells, pages, the extra page, formats, windows."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kvplan.engines.sglang.report import buffers
from kvplan.errors import UsageError
from kvplan.memory.parts import total

sys.path.insert(0, str(Path(__file__).parent))

from sglang_specs import (
    DENSE,
    attention,
    cache,
    hybrid,
    kv,
    make,
    nothing,
    shown,
    windowed,
)


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


def test_pools_with_which_sglang_does_not_start() -> None:
    # 150 full tokens and 120 for windows, but window + page is 129.
    assert "120 tokens must hold 130" in shown(windowed("gpt_oss"), pool=int(7372.8 * 150) + 1)["refused"]
    assert shown(DENSE, page_size=64, pool=8192 * 63)["refused"] == "no page of tokens fits"
    assert shown(hybrid(), pool=10**7)["refused"] == "no state slot fits"
    assert "refused" not in shown(DENSE, pool=8192 * 64)
