"""The shipped models against the collected model facts: group by group, count by count, total by total."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from kvplan.formats.grammar import parse_any
from kvplan.memory.figures import kv_figures
from kvplan.memory.groups import CacheFormats, cache_groups
from kvplan.specs.groups import AttentionGroup, CrossGroup, LatentGroup, LayerGroup, NoneGroup, StateGroup
from kvplan.specs.load import list_models, load_model
from kvplan.specs.model import ModelSpec

BF16 = CacheFormats(*[parse_any("bf16")] * 4)
# Query heads of these sliding layers differ from the config's num_attention_heads; the facts say so in words.
OTHER_Q_HEADS = {("step-3.5-flash", "sliding"): 96, ("step-3.7-flash", "sliding"): 96, ("laguna-xs.2", "sliding"): 64}
# The config counts blocks of two attention sub-layers; the spec counts caches, as the facts ask for.
BLOCKS_OF_TWO = {"longcat-flash"}


def _record(spec: ModelSpec, facts: dict[str, Any]) -> dict[str, Any]:
    found = next((facts[known] for known in spec.hf_ids if known in facts), None)
    assert found is not None, f"no facts for any of {spec.hf_ids}"
    return dict(found)


def _attention(group: AttentionGroup) -> dict[str, Any]:
    shape: dict[str, Any] = {"kv_heads": group.kv_heads, "k_dim": group.k_dim, "v_dim": group.v_dim}
    law = group.retain.law
    kind = {"all": "full", "window": "sliding", "chunk": "chunked"}[law]
    return {"kind": kind} | shape | ({} if law == "all" else {law: group.retain.rows})


def _latent(group: LatentGroup) -> dict[str, Any]:
    width = group.nope_dim + group.rope_dim
    if group.retain.law == "ring":
        dtype = "fp32" if group.dtype == "float32" else "bf16"
        return {"kind": "ring", "rows": group.retain.rows, "dim": width, "dtype": dtype}
    if group.role == "index":
        return {"kind": "index_key", "k_dim": width, "tokens_per_state": group.stride}
    if group.retain.law == "window":
        return {"kind": "latent_sliding", "latent_dim": width, "window": group.retain.rows}
    if group.overlay:
        return {"kind": "compressed", "latent_dim": width, "tokens_per_state": group.stride}
    return {"kind": "mla", "kv_lora_rank": group.nope_dim, "rope_dim": group.rope_dim}


def _shape(spec: ModelSpec, group: LayerGroup) -> dict[str, Any]:
    """A group in the vocabulary of the facts."""
    shape: dict[str, Any] = {"layers": len(spec.positions(group))}
    if isinstance(group, AttentionGroup):
        return shape | _attention(group)
    if isinstance(group, LatentGroup):
        return shape | _latent(group)
    if isinstance(group, CrossGroup):
        heads = {"kv_heads": group.kv_heads, "k_dim": group.k_dim, "v_dim": group.v_dim}
        return shape | heads | {"kind": "cross", "encoder_tokens": group.encoder_tokens.count}
    if isinstance(group, StateGroup):
        state = group.state.model_dump()
        if state["type"] == "rwkv7":
            state["head_size"] = state.pop("head_dim")
        return shape | {"kind": state.pop("type")} | state
    assert isinstance(group, NoneGroup)
    return shape | {"kind": "shared" if group.reads else "none"}


def _fact(group: dict[str, Any]) -> dict[str, Any]:
    words = ("name", "share_with", "why", "overlay", "per", "note")
    fact = {key: value for key, value in group.items() if key not in words}
    if fact["kind"] == "mamba2" and "inner" in fact:
        assert fact.pop("inner") == fact["heads"] * fact["head_dim"]
    return fact


def _counted(shapes: list[dict[str, Any]]) -> Counter[str]:
    return Counter(str(sorted(shape.items())) for shape in shapes)


@pytest.mark.parametrize("name", list_models())
def test_groups_equal_the_facts(name: str, facts: dict[str, Any]) -> None:
    spec = load_model(name)
    expected = _record(spec, facts)["layer_groups"]
    assert _counted([_shape(spec, g) for g in spec.layer_groups]) == _counted([_fact(g) for g in expected])


@pytest.mark.parametrize("name", list_models())
def test_counts_equal_the_facts(name: str, facts: dict[str, Any]) -> None:
    spec = load_model(name)
    record = _record(spec, facts)
    assert spec.layers == record["num_hidden_layers"] * (2 if name in BLOCKS_OF_TWO else 1)
    assert spec.max_context == record["max_position_embeddings"]
    assert spec.hidden_size == record["hidden_size"]
    assert spec.vocab_size == record["vocab_size"]
    for group in spec.layer_groups:
        if isinstance(group, AttentionGroup) or (isinstance(group, LatentGroup) and _latent(group)["kind"] == "mla"):
            heads = OTHER_Q_HEADS.get((name, group.name), record["num_attention_heads"])
            assert group.q_heads == heads
    assert (spec.mtp.layers if spec.mtp else 0) == record["mtp_layers"]
    assert spec.params.active == (round(record["params_active_b"] * 10**9) if record["params_active_b"] else None)
    dtypes = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
    assert "weights_dtype" not in record or dtypes[record["weights_dtype"]] == spec.native_dtype
    assert spec.provenance is not None
    assert spec.provenance.confidence == {"from-memory": "memory"}.get(record["confidence"], record["confidence"])
    stated = [facts[known]["params_total_b"] for known in spec.hf_ids if known in facts]
    # Where the facts state no total, the spec's is worked out from the shapes (its notes say how).
    assert spec.params.total in {round(total * 10**9) for total in stated if total} or not any(stated)


def _totals(spec: ModelSpec) -> dict[str, int]:
    """The facts' totals, by the public functions of the planner."""
    groups = cache_groups(spec, BF16)
    figures = kv_figures(groups, groups, 1, 1000, 1, 128).by_group
    total = dict.fromkeys(("kv", "index", "window", "state", "ring", "cross"), 0)
    for group, figure in zip((g for g in spec.layer_groups if g.kind != "none"), figures, strict=True):
        assert figure.name == group.name
        slope = figure.bytes_per_token.value
        total["index" if figure.role == "index" else "kv"] += slope
        fixed = figure.fixed_bytes_per_sequence
        if isinstance(group, CrossGroup):
            assert fixed % group.encoder_tokens.count == 0
            total["cross"] += fixed // group.encoder_tokens.count
        elif isinstance(group, StateGroup):
            total["state"] += fixed
        else:
            total["ring" if figure.role == "state" else "window"] += fixed
    return total


def _with_16_bit_states(spec: ModelSpec) -> ModelSpec:
    data = spec.model_dump()
    for group in data["layer_groups"]:
        if group["kind"] == "state":
            group["dtype"] = {"recurrent": "bfloat16", "conv": "bfloat16"}
    return ModelSpec.model_validate(data)


@pytest.mark.parametrize("name", list_models())
def test_totals_equal_the_facts(name: str, facts: dict[str, Any]) -> None:
    spec = load_model(name)
    record = _record(spec, facts)
    total = _totals(spec)
    if "derived" not in record:
        assert (total["kv"], total["index"]) == (record["kv_per_token"], record["index_per_token"])
        assert abs(total["window"] / 10**6 - record["window_mb"]) < 0.006
        assert abs((total["state"] + total["ring"]) / 10**6 - record["state_mb"]) < 0.006
        return
    derived = record["derived"]
    assert total["kv"] == derived["kv_bytes_per_token_bf16"]
    assert total["index"] == derived["index_bytes_per_token_bf16"]
    assert total["window"] == derived["window_bytes_per_seq_bf16_when_full"]
    assert total["state"] == derived["state_bytes_per_seq_fp32_recurrent_bf16_conv"]
    assert _totals(_with_16_bit_states(spec))["state"] == derived["state_bytes_per_seq_all_bf16"]
    assert total["ring"] == derived["ring_bytes_per_seq"]
    assert total["cross"] == derived["cross_bytes_per_encoder_token_bf16"]


def test_an_index_record_of_132_bytes(facts: dict[str, Any]) -> None:
    """The facts' fp8 figure of an index key: 128 codes and one fp32 scale."""
    fp8 = parse_any("fp8_e4m3:token,scale=fp32")
    formats = CacheFormats(BF16.k, BF16.v, BF16.latent, fp8)
    seen = 0
    for name in list_models():
        spec = load_model(name)
        derived = _record(spec, facts).get("derived", {}).get("index_bytes_per_token_fp8", 0)
        groups = cache_groups(spec, formats)
        figures = kv_figures(groups, groups, 1, 1000, 1, 128).by_group
        if derived:
            assert sum(g.bytes_per_token.value for g in figures if g.role == "index") == derived
            seen += 1
    assert seen >= 7


@pytest.mark.parametrize(
    ("name", "group", "first"),
    [
        ("gemma-3-27b", "full", (5, 11, 17)),
        ("gpt-oss-120b", "sliding", (0, 2, 4)),
        ("gpt-oss-20b", "sliding", (0, 2, 4)),
        ("gemma-2-9b", "sliding", (0, 2, 4)),
        ("qwen3-next-80b-a3b", "full", (3, 7, 11)),
        ("gemma-3n-e4b", "full", (4, 9, 14, 19)),
        ("gemma-3n-e4b", "shared", (20, 21, 22)),
        ("llama-4-scout", "full", (3, 7, 11)),
        ("llama-3.2-11b-vision", "cross", (3, 8, 13)),
        ("kimi-k3", "latent", (3, 7, 11)),
        ("deepseek-v4-flash", "csa", (2, 4, 6)),
        ("deepseek-v4-pro", "hca", (0, 1, 3)),
        ("nemotron-3-nano-30b", "full", (5, 12, 19)),
        ("jamba-mini", "full", (4, 12, 20)),
        ("step-3.5-flash", "full", (0, 4, 8)),
        ("glm-5.2", "indexer", (0, 1, 2, 6)),
    ],
)
def test_positions_of_mixed_models(name: str, group: str, first: tuple[int, ...]) -> None:
    spec = load_model(name)
    assert spec.positions(spec.group(group))[: len(first)] == first


def test_details_that_formulas_rely_on() -> None:
    gdn = load_model("qwen3-next-80b-a3b").group("gdn")
    assert isinstance(gdn, StateGroup)
    assert (gdn.dtype.recurrent, gdn.dtype.conv) == ("float32", "model")
    bias = load_model("qwen2.5-7b").layer_groups[0]
    norm = load_model("qwen3-32b").layer_groups[0]
    assert isinstance(bias, AttentionGroup) and isinstance(norm, AttentionGroup)
    assert (bias.k_bias, bias.qk_norm) == (True, False)
    assert (norm.k_bias, norm.qk_norm) == (False, True)
    shared = load_model("gemma-3n-e4b").group("shared")
    assert isinstance(shared, NoneGroup) and shared.reads == ("full", "sliding")
