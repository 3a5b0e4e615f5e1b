"""Honest effects, and what to relax where nothing keeps every bound: each relaxation, applied, makes it possible."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvplan.recommend import Recommendation, RecommendRequest, recommend
from kvplan.recommend.engine_facts import LATENT_SLOWER

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"


def ask(model: str = "llama-3.1-8b", gpu: str = "h200", **fields: Any) -> Recommendation:
    return recommend(RecommendRequest(model=model, gpu=gpu, **{"context": 32768, **fields}))


FIELDS: dict[str, tuple[str, type]] = {
    "--concurrency": ("concurrency", int),
    "--context": ("context", int),
    "--gpus": ("gpus", int),
    "--max-kl": ("max_kl", float),
    "--min-top1": ("min_top1", float),
    "--slo-itl": ("slo_itl_ms", float),
    "--weights-dtype": ("weights_dtype", str),
}


@pytest.mark.parametrize(
    ("fields", "options"),
    [
        ({"concurrency": 100}, {"--concurrency", "--context", "--gpus"}),
        ({"model": "llama-3.2-3b", "util": 0.25}, {"--gpus", "--weights-dtype"}),
        ({"concurrency": 20, "slo_itl_ms": 5}, {"--slo-itl"}),
        ({"concurrency": 40, "max_kl": 0.0005}, {"--concurrency", "--context", "--gpus", "--max-kl"}),
        ({"concurrency": 40, "min_top1": 0.99}, {"--concurrency", "--context", "--gpus", "--min-top1"}),
    ],
)
def test_each_relaxation_is_enough(fields: dict[str, Any], options: set[str]) -> None:
    fields = {"model": "llama-3.2-1b", "gpu": "l4"} | fields
    result = ask(**fields)
    assert result.recommended is None and result.runner_up and result.runner_up.candidate.obstacles
    assert {r.option for r in result.relax} == options
    for r in result.relax:
        name, kind = FIELDS[r.option]
        again = ask(**(fields | {name: kind(r.needed)}))
        assert again.recommended is not None, r.text
        assert r.needed in r.text


def test_the_relaxation_is_the_least() -> None:
    small = {"model": "llama-3.2-1b", "gpu": "l4"}
    most = next(int(r.needed) for r in ask(**small, concurrency=100).relax if r.option == "--concurrency")
    assert ask(**small, concurrency=most + 1).recommended is None
    late = ask(**small, concurrency=20, slo_itl_ms=5).relax[0]
    assert ask(**small, concurrency=20, slo_itl_ms=float(late.needed) - 0.2).recommended is None


def effect(result: Recommendation, words: str) -> str:
    found = [text for text in result.warnings if words in text]
    assert found, result.warnings
    return found[0]


def test_a_residual_eats_the_gain_of_a_short_context() -> None:
    # Rows of 160 bytes against 512, but of 1,024 the last 128 of K and of V stay as they are: 16 of 56 MiB.
    text = effect(ask(gpu="l4", context=1024, concurrency=40), "recent=128: rows shrink")
    # 8 pages of 128 rows x 160 bytes x 8 heads x 32 layers are 40 MiB beside the 16.
    assert "shrink 3.20x" in text and "29% of it is the unquantised residual of each request" in text
    assert not [t for t in ask(context=32768, concurrency=8).warnings if "residual" in t]


def test_a_residual_was_measured_on_a_short_text() -> None:
    result = ask(gpu="l4", context=131072)
    assert result.recommended and "recent=128" in (result.recommended.candidate.v or "")
    effect(result, "known from 2,048 tokens")
    assert not [t for t in ask(concurrency=40).warnings if "2,048" in t]


def test_states_do_not_shrink() -> None:
    text = effect(ask("nemotron-h-8b", "l4", context=8192, concurrency=28), "state that no KV format changes")
    assert "rows shrink 1.97x, the cache only 1.39x" in text and "60%" in text


def test_latency_that_does_not_improve() -> None:
    # 32 layers x 8.5 us of launches are most of a step over one short request.
    text = effect(ask(context=2048), "fewer bytes")
    assert "2.00x fewer bytes" in text and "decode attention only 1." in text


def test_published_speeds_are_quoted_for_engines() -> None:
    result = ask(engine="vllm", concurrency=40)
    assert "bytes halve, latency hardly moves" in effect(result, "published: int8 per token and head")
    assert result.recommended and result.recommended.candidate.attention.seconds is None


def test_a_quantised_latent_is_for_room_not_for_speed() -> None:
    result = ask("deepseek-v3", gpus=8, concurrency=200)
    assert "1.5 to 2 times as long as 16 bit" in effect(result, "fp8_ds_mla takes")
    ratios = []
    for name in ("deepseek-v2-lite_4k_x64", "deepseek-v3_32k_x16"):
        stored = json.loads((RESULTS / f"validate_{name}_h200.json").read_text(encoding="utf-8"))
        times = {r["format"]: r["times"]["fused_seconds"] for r in stored["results"]}
        ratios.append(times["fp8_ds_mla"] / times["bf16"])
    assert ratios == pytest.approx(LATENT_SLOWER, abs=0.05)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("qwen2.5-7b", "keep K in 16 bit or in int8 with groups of 32"),
        ("gpt-oss-20b", "no evidence here is of such a model"),
    ],
)
def test_key_bias(model: str, words: str) -> None:
    effect(ask(model, context=8192), words)


def test_no_word_of_keys_without_a_bias() -> None:
    assert not [t for t in ask("qwen3-8b", context=8192).warnings if "bias" in t]


def test_copies_of_tp_beyond_the_kv_heads() -> None:
    result = ask("qwen3-30b-a3b-2507", gpus=8, tp=8, context=131072, concurrency=64)
    text = effect(result, "of copies over its ranks")
    # 12 GiB a request, held twice by 8 ranks for 4 KV heads.
    assert text.startswith("tp 8 alone holds 768.00 GiB of copies") and "dcp 2 holds 79" in text
    assert not [t for t in ask("llama-3.1-8b", gpus=8, tp=8).warnings if "copies" in t]


def test_weights_that_fill_the_card() -> None:
    effect(ask("llama-3.1-70b", "h100-80gb"), "the weights alone fill each GPU")
    text = effect(ask("qwen2.5-14b", "h100-80gb", gpus=1, util=0.4), "smaller weights or one more GPU")
    assert "GiB for the cache" in text


def test_fp8_without_hardware() -> None:
    result = ask(gpu="a100-80gb", engine="sglang", concurrency=20)
    assert result.recommended and result.recommended.candidate.k == "fp8_e4m3"
    effect(result, "no hardware conversion for fp8_e4m3")
    effect(result, "static scales must be calibrated")
