"""Questions that users asked in public issues, each answered by one command; the figure or sentence is checked.

The numbers are those of the project's collection of such questions (facts, peers 4).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvplan.cli.main import main
from kvplan.units import GIB


@pytest.fixture
def answer(capsys: pytest.CaptureFixture[str]) -> Any:
    """Run a command line and read its JSON."""

    def run(line: str, code: int = 0) -> Any:
        assert main([*line.split(), "--json"]) == code, line
        return json.loads(capsys.readouterr().out)

    return run


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Any:
    """Run a command line and read what it prints, on one line."""

    def run(line: str) -> str:
        assert main(line.split()) == 0, line
        return " ".join(capsys.readouterr().out.split())

    return run


def test_1_concurrency_for_a_distribution_of_lengths(answer: Any) -> None:
    """vllm #8031: the number at max_model_len is not the number that users will see."""
    base = "estimate llama-3.1-8b --engine vllm --gpu h100-80gb --context 128k"
    room = answer(f"{base} --lengths p50=2k,p95=16k")["capacity"]
    work = room["workload"]
    assert room["requests"] == 3 and 40 < work["requests_p95"] < work["requests"] < 120
    # Blocks of 16 tokens and 2 MiB: the mean request takes its tokens, rounded up.
    assert 0 <= work["mean_request_bytes"] / (2**21 / 16) - work["mean_tokens"] <= 16


def test_3_the_utilisation_for_20_users_with_weights_apart_from_the_cache(answer: Any) -> None:
    """vllm #22291: gpu-memory-utilization for 5, 20 and 50 users; int8 weights are no int8 cache."""
    base = "solve qwen3-8b --engine vllm --gpu h100-80gb --context 8k --weights-dtype int8"
    shares = [answer(f"{base} --batch {users}")["least_share"] for users in (5, 20, 50)]
    assert shares == sorted(shares) and shares[0] < shares[2] < 1
    plan = answer("estimate qwen3-8b --engine vllm --gpu h100-80gb --context 8k --batch 20 --weights-dtype int8")
    assert plan["request"]["k"] == "bf16" and plan["capacity"]["weights"]["factors"][-1]["value"] == 1
    # 36 layers x 8 heads x 128 x 2 x 2 bytes: the cache of 20 users of 8,192 tokens.
    assert plan["kv"]["logical_bytes"] == 20 * 8192 * 36 * 8 * 128 * 2 * 2


def test_4_29k_fails_where_20k_and_35k_start(answer: Any, said: Any) -> None:
    """vllm #10517, one RTX 3090: the start-up run of the first engine took whole prompts up to 32,768 tokens."""
    base = "estimate llama-3.1-8b --engine vllm --engine-version 0.6.6 --gpu rtx-3090 --context"
    fits = {n: answer(f"{base} {n}")["verdict"]["fits"] for n in (20000, 29000, 35000)}
    assert fits == {20000: True, 29000: False, 35000: True}
    shown = said(f"{base} 29000")
    assert "layers: 29,000 tokens x 27 x hidden 4,096" in shown and "it may or may not fit" in shown


def test_5_two_log_lines_that_seem_to_contradict(answer: Any, said: Any, tmp_path: Path) -> None:
    """vllm #40691: tokens of one page group beside a concurrency of all of them, on a hybrid."""
    shape = "estimate qwen3.5-35b-a3b --engine vllm --engine-version 0.18.0 --gpu h200 --context 32k"
    figures = {f["name"]: f["value"] for f in answer(shape)["engine"]["figures"]}
    tokens, rate = figures["kv_cache_size_tokens"], figures["max concurrency"]
    assert rate * 32768 > 1.5 * tokens, "the naive division is far off"
    pool = figures["num_gpu_blocks"] * figures["bytes per block"] / GIB
    log = tmp_path / "server.log"
    log.write_text(
        "INFO vLLM API server version 0.18.0\n"
        f"INFO Available KV cache memory: {pool:.2f} GiB\n"
        f"INFO GPU KV cache size: {tokens:,} tokens\n"
        f"INFO Maximum concurrency for 32,768 tokens per request: {rate:.2f}x\n",
        encoding="utf-8",
    )
    found = answer(f"reconcile {log} qwen3.5-35b-a3b --gpu h200")
    assert found["agrees"] is True and len(found["compared"]) == 2
    shown = said(f"reconcile {log} qwen3.5-35b-a3b --gpu h200")
    assert "every figure agrees" in shown and "blocks" in shown


def test_7_a_hybrid_whose_requests_pin_whole_pages(answer: Any) -> None:
    """vllm #54458: fixed cost of each request; four of them never fit, whatever their length."""
    base = "estimate qwen3-next-80b-a3b --engine vllm --gpu-memory 96GiB --bandwidth 1TB/s --weights-dtype fp8"
    one = answer(f"{base} --context 1 --batch 1")["kv"]
    # 1 page of 12 attention layers and 3 groups x 3 states, each block 12 pages of 1,179,648 bytes; and the null block.
    assert one["allocated_bytes"] == (1 + 3 * 3 + 1) * 12 * 1_179_648
    assert one["reserved_bytes"] > 0.6 * one["allocated_bytes"]
    tokens = one["allocated_bytes"] / (12 * 2 * 2 * 256 * 2)
    assert tokens > 6000, "a request of one token takes the bytes of thousands"
    big = answer(f"{base} --context 256k --batch 8")["verdict"]
    assert big["fits"] is False and big["nearest_change"]


def test_8_fp8_does_not_halve_a_hybrid(answer: Any) -> None:
    """vllm #55196: 2.00x on attention alone, 1.84x at 32k and about 1x at short contexts on hybrids."""

    def gain(model: str, context: str) -> float:
        plan = answer(f"estimate {model} --engine vllm --gpu h200 --kv fp8 --context {context} --batch 8")
        ratio: float = plan["gain"]["fixed_requests"]["ratio"]["value"]
        return ratio

    assert gain("llama-3.1-8b", "32k") == pytest.approx(2, abs=0.001)
    short, middle, long = (gain("qwen3.5-35b-a3b", n) for n in ("1k", "32k", "128k"))
    assert 1 <= short < 1.1 < 1.5 < middle < long < 2


def test_13_per_token_int8_beside_fp8(answer: Any) -> None:
    """vllm #33480: 264 against 256 bytes for a token and head of 128, and who has it."""
    base = "estimate llama-3.1-8b --engine vllm --gpu h200 --context 32k --kv"
    sizes = {f: answer(f"{base} {f}")["kv"]["logical_bytes"] for f in ("auto", "fp8", "int8_per_token_head")}
    assert sizes["int8_per_token_head"] * 256 == sizes["fp8"] * 264
    assert sizes["auto"] == 2 * sizes["fp8"]
    engines = answer("engines vllm")["engines"][0]
    (row,) = (f for f in engines["formats"] if f["option"] == "int8_per_token_head")
    assert row["bytes_at_head_dim_128"] == 264 and "TRITON_ATTN" in row["needs"]


def test_15_eight_copies_of_a_latent(answer: Any) -> None:
    """vllm #51454, PR #26877: tp 8 copies a latent eight times; attention replicas or context parallel do not."""
    table = answer("layouts deepseek-v3 --gpus 8 --context 32k")["layouts"]
    by = {(row["tp"], row["pp"], row["dp"], row["dcp"], row["dp_attention"]): row for row in table}
    plain, replicas = by[8, 1, 1, 1, False], by[8, 1, 8, 1, True]
    each = 61 * 576 * 2 * 32768
    assert plain["replicated_bytes"] == 7 * each and replicas["replicated_bytes"] == 0
    assert by[8, 1, 1, 8, False]["replicated_bytes"] == 0
    assert replicas["rank"] < plain["rank"]


def test_16_graphs_as_a_range_and_calibrated_by_one_log(answer: Any, tmp_path: Path) -> None:
    """vllm #27951 and others: the estimate is wrong both ways; one start-up log narrows it."""
    base = "estimate llama-3.1-8b --engine vllm --engine-version 0.11.2 --gpu h100-80gb --context 16000"
    budget = answer(base)["capacity"]["budget"]
    (need,) = (n for n in budget["needs"] if n["name"] == "cuda graphs")
    assert need["low_bytes"] < 0.49 * GIB < 1.65 * GIB < need["high_bytes"]
    log, saved = tmp_path / "server.log", tmp_path / "calibration.json"
    log.write_text(
        "INFO vLLM API server version 0.11.2\nINFO Model loading took 14.9889 GiB and 5.1 seconds\n"
        "INFO Available KV cache memory: 51.38 GiB\nINFO GPU KV cache size: 420,896 tokens\n",
        encoding="utf-8",
    )
    answer(f"reconcile {log} llama-3.1-8b --gpu h100-80gb --save {saved}")
    after = answer(f"{base} --calibration {saved}")["capacity"]["budget"]
    before, width = (b["pool_high_bytes"] - b["pool_low_bytes"] for b in (budget, after))
    assert width < 0.02 * before
    assert abs(after["pool_low_bytes"] - 51.38 * GIB) < 0.1 * GIB


def test_19_windows_of_llama_cpp_with_the_compute_buffer(answer: Any) -> None:
    """lmstudio #1862, ollama #17037: two caches, the window's with the batch, and the buffers beside them."""
    plan = answer("estimate gemma-3-27b --engine llamacpp --gpu rtx-5090 --weights-dtype int4 --context 16k --batch 4")
    held = {g["name"]: g["allocated_bytes"] for g in plan["kv"]["by_group"]}
    row = 16 * 128 * 2 * 2
    # 52 windowed layers: pad256(1,024 + 512) cells in each of 4 streams; 10 full ones: 16,384 cells.
    assert sorted(held.values()) == sorted((52 * 4 * 1536 * row, 10 * 4 * 16384 * row))
    needs = {n["name"]: n for n in plan["capacity"]["budget"]["needs"]}
    assert needs["activations"]["high_bytes"] > 0 and plan["verdict"]["fits"] in (True, False)
