"""The shipped models against the collected model facts, group by group."""

from __future__ import annotations

from typing import Any

import pytest

from kvplan.specs.groups import AttentionGroup, LatentGroup, LayerGroup, NoneGroup, StateGroup
from kvplan.specs.load import list_models, load_model
from kvplan.specs.model import ModelSpec
from kvplan.specs.states import GatedDeltaNetState

# Not among the records: its row of the table in the facts is checked by hand below.
WITHOUT_RECORD = {"llama-2-7b"}


def _shape(spec: ModelSpec, group: LayerGroup) -> dict[str, Any]:
    """A group in the vocabulary of the facts."""
    shape: dict[str, Any] = {"layers": len(spec.positions(group)), "overlay": group.overlay}
    if isinstance(group, AttentionGroup):
        shape |= {"kv_heads": group.kv_heads, "k_dim": group.k_dim, "v_dim": group.v_dim}
        kinds = {"all": "full", "window": "sliding"}
        return shape | {"kind": kinds[group.retain.law], "window": group.retain.rows}
    if isinstance(group, LatentGroup) and group.role == "index":
        return shape | {"kind": "index_key", "k_dim": group.nope_dim, "tokens_per_state": group.stride}
    if isinstance(group, LatentGroup):
        return shape | {"kind": "mla", "kv_lora_rank": group.nope_dim, "rope_dim": group.rope_dim}
    if isinstance(group, StateGroup):
        assert isinstance(group.state, GatedDeltaNetState)
        state = group.state.model_dump()
        return shape | {"kind": state.pop("type")} | state
    assert isinstance(group, NoneGroup)
    return shape | {"kind": "shared" if group.reads else "none"}


def _fact(group: dict[str, Any]) -> dict[str, Any]:
    fact = {key: value for key, value in group.items() if key not in ("name", "share_with", "why")}
    fact.setdefault("overlay", False)
    if fact["kind"] in ("full", "sliding"):
        fact.setdefault("window", None)
    return fact


def _by_kind(shapes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(shapes, key=lambda shape: str(shape["kind"]))


@pytest.mark.parametrize("name", sorted(set(list_models()) - WITHOUT_RECORD))
def test_spec_equals_the_facts(name: str, facts: dict[str, Any]) -> None:
    spec = load_model(name)
    record = next((facts[known] for known in spec.hf_ids if known in facts), None)
    assert record is not None, f"no record for any of {spec.hf_ids}"
    assert _by_kind([_shape(spec, g) for g in spec.layer_groups]) == _by_kind(
        [_fact(g) for g in record["layer_groups"]]
    )
    assert spec.layers == record["num_hidden_layers"]
    assert spec.max_context == record["max_position_embeddings"]
    assert spec.hidden_size == record["hidden_size"]
    assert spec.vocab_size == record["vocab_size"]
    for group in spec.layer_groups:
        if isinstance(group, AttentionGroup) or (isinstance(group, LatentGroup) and group.role == "kv"):
            assert group.q_heads == record["num_attention_heads"]
    assert (spec.mtp.layers if spec.mtp else 0) == record["mtp_layers"]
    assert spec.params.active == (round(record["params_active_b"] * 10**9) if record["params_active_b"] else None)
    assert {"bf16": "bfloat16", "fp16": "float16"}[record["weights_dtype"]] == spec.native_dtype
    assert spec.provenance is not None
    assert spec.provenance.confidence == record["confidence"]


@pytest.mark.parametrize("name", sorted(set(list_models()) - WITHOUT_RECORD))
def test_parameter_counts_equal_the_facts(name: str, facts: dict[str, Any]) -> None:
    spec = load_model(name)
    totals = {round(facts[known]["params_total_b"] * 10**9) for known in spec.hf_ids if known in facts}
    assert spec.params.total in totals


def test_llama_2_7b() -> None:
    spec = load_model("llama-2-7b")
    (group,) = spec.layer_groups
    assert isinstance(group, AttentionGroup)
    assert (group.q_heads, group.kv_heads, group.k_dim, group.v_dim) == (32, 32, 128, 128)
    assert (spec.layers, spec.max_context, spec.native_dtype) == (32, 4096, "float16")


@pytest.mark.parametrize(
    ("name", "group", "first"),
    [
        ("gemma-3-27b", "full", (5, 11, 17)),
        ("gpt-oss-120b", "sliding", (0, 2, 4)),
        ("qwen3-next-80b-a3b", "full", (3, 7, 11)),
        ("gemma-3n-e4b", "full", (4, 9, 14, 19)),
        ("gemma-3n-e4b", "shared", (20, 21, 22)),
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
