"""Every shipped spec against the totals of the facts, and the sums of the plan's table for every format and tp."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvplan.errors import KvplanError
from kvplan.formats.grammar import parse_any
from kvplan.memory.figures import SUMMED, constant_tree, default_page_size, kv_figures, logical_tree
from kvplan.memory.groups import CacheFormats, cache_groups
from kvplan.memory.parts import own_parts, parts_tree
from kvplan.plan import legal_tps
from kvplan.specs.load import load_model

FORMATS = (
    "bf16", "fp32", "int8", "int8:token,asym", "int8:head", "int8:tensor", "int8:channel", "int8:channel/32,asym",
    "int8:group/32", "int8:group/32,asym,recent=128", "int8:channel/64,recent=128", "int2", "fp8_e4m3",
    "fp8_e5m2:head", "fp8_e4m3:token,scale=fp32",
)  # fmt: skip


# Every shipped spec is compared with its facts in tests/specs; these two lists hold each structure once.
MODELS = (
    "deepseek-v3", "deepseek-v3.2", "gemma-3-27b", "gemma-3n-e4b", "gpt-oss-120b", "llama-2-7b", "llama-3.1-70b",
    "llama-3.1-8b", "mistral-7b-v0.1", "qwen2.5-7b", "qwen3-32b", "qwen3-next-80b-a3b", "smollm2-135m",
)  # fmt: skip
OTHER_KINDS = (
    "deepseek-v4-flash", "deepseek-v4.1-flash", "falcon-h1-3b", "glm-5.3-flash", "jamba-mini", "kimi-linear-48b",
    "lfm2-1.2b", "llama-3.2-11b-vision", "llama-4-scout", "mimo-v2-flash", "minimax-m3", "nemotron-3-nano-30b",
    "ring-mini-linear-2.0", "rwkv7-g1j-1.5b", "whisper-large-v3",
)  # fmt: skip

# In the table of facts/models.md but not in the records.
TABLE_ONLY = {
    "llama-2-7b": {
        "kv_bytes_per_token_bf16": 524_288,
        "index_bytes_per_token_bf16": 0,
        "state_bytes_per_seq_fp32_recurrent_bf16_conv": 0,
        "ring_bytes_per_seq": 0,
        "window_bytes_per_seq_bf16_when_full": 0,
    }
}


@pytest.fixture(scope="session")
def derived(shared: Path) -> dict[str, dict[str, Any]]:
    records = json.loads((shared / "data" / "model_facts.json").read_text(encoding="utf-8"))["records"]
    return {name: r["derived"] for r in records for name in (r["hf_id"], *r["aliases"])}


@pytest.mark.parametrize("model", MODELS)
def test_totals_of_the_facts(model: str, derived: dict[str, dict[str, Any]]) -> None:
    spec = load_model(model)
    expected = next((derived[name] for name in spec.hf_ids if name in derived), TABLE_ONLY.get(model))
    assert expected is not None, f"no facts for {spec.hf_ids}"
    groups = cache_groups(spec, CacheFormats(*[parse_any("bf16")] * 4))
    kv = kv_figures(groups, groups, 1, 1000, 1, 128)
    slope = {
        role: sum(g.bytes_per_token.value for g in kv.by_group if (g.role == "index") == role) for role in (False, True)
    }
    assert slope[False] == expected["kv_bytes_per_token_bf16"]
    assert slope[True] == expected["index_bytes_per_token_bf16"]
    fixed = {g.name: g.fixed_bytes_per_sequence for g in kv.by_group}
    states = sum(fixed[g.name] for g in kv.by_group if g.role == "state")
    assert states == expected["state_bytes_per_seq_fp32_recurrent_bf16_conv"] + expected["ring_bytes_per_seq"]
    cross = sum(fixed[g.name] for g in kv.by_group if g.role == "cross")
    assert sum(fixed.values()) - states - cross == expected["window_bytes_per_seq_bf16_when_full"]


@pytest.mark.parametrize("model", [*MODELS, *OTHER_KINDS])
def test_sums_for_every_format_and_tp(model: str) -> None:
    spec = load_model(model)
    done = 0
    for spelling in FORMATS:
        for tp in legal_tps(spec)[:4]:
            formats = CacheFormats(*[parse_any(spelling)] * 4)
            try:
                groups, whole = cache_groups(spec, formats, tp), cache_groups(spec, formats)
            except KvplanError:
                continue
            page = default_page_size(groups)
            for context in (1, 1000, 5000):
                check_sums(kv_figures(groups, whole, tp, context, 3, page), groups, page)
                done += 1
    assert done >= 3 * len(FORMATS)


def check_sums(kv: Any, groups: Any, page: int) -> None:
    for part in (kv, *kv.by_group):
        assert part.payload_bytes + part.metadata_bytes + part.residual_bytes + part.state_bytes == part.logical_bytes
        assert part.padding_bytes == part.allocated_bytes - part.reserved_bytes - part.logical_bytes
        assert min(part.padding_bytes, part.reserved_bytes, part.replicated_bytes, part.constant_bytes) >= 0
        assert part.fixed_bytes_per_sequence >= 0
    for name in SUMMED:
        assert getattr(kv, name) == sum(getattr(g, name) for g in kv.by_group)
    assert logical_tree(groups, kv.context, kv.batch).nbytes == kv.logical_bytes
    assert parts_tree(own_parts(groups, kv.context, kv.batch, page), "allocated").nbytes == kv.allocated_bytes
    assert constant_tree(groups).nbytes == kv.constant_bytes


@pytest.mark.parametrize("spelling", FORMATS)
def test_slope_and_fixed_bytes_give_the_exact_length(spelling: str) -> None:
    """Beyond all windows, at multiples of every residual, logical = slope x n + fixed."""
    for model in ("llama-3.1-8b", "gemma-3-27b", "qwen3-next-80b-a3b", "deepseek-v3.2"):
        groups = cache_groups(load_model(model), CacheFormats(*[parse_any(spelling)] * 4))
        for context in (2048, 65536):
            kv = kv_figures(groups, groups, 1, context, 1, 128)
            slope = kv.bytes_per_token
            assert kv.logical_bytes * slope.denominator == (
                slope.numerator * context + kv.fixed_bytes_per_sequence * slope.denominator
            )
