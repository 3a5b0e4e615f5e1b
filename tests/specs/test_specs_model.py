"""The schema: spellings, kinds, frozen objects, positions."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from kvplan.specs.groups import AttentionGroup, CrossGroup, LatentGroup, StateGroup
from kvplan.specs.model import ModelSpec
from kvplan.specs.placement import Retain
from kvplan.specs.states import Mamba2State

ATTENTION: dict[str, Any] = {"kind": "attention", "q_heads": 8, "kv_heads": 2, "head_dim": 64}
STATE_DTYPE = {"recurrent": "float32", "conv": "model"}


def make(*groups: dict[str, Any], layers: int = 12, **more: Any) -> ModelSpec:
    base: dict[str, Any] = {
        "kvplan_spec": 1,
        "id": "test",
        "params": {"total": 1000},
        "max_context": 1024,
        "layers": layers,
        "native_dtype": "bfloat16",
        "layer_groups": list(groups),
    }
    return ModelSpec.model_validate(base | more)


def first_attention(**keys: Any) -> AttentionGroup:
    group = make(ATTENTION | {"layers": 12} | keys).layer_groups[0]
    assert isinstance(group, AttentionGroup)
    return group


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ([0, 5, 11], (0, 5, 11)),
        ({"every": 6, "at": [5]}, (5, 11)),
        ({"every": 5, "at": [0, 4], "upto": 8}, (0, 4, 5)),
    ],
)
def test_positions_and_their_rest(layers: Any, expected: tuple[int, ...]) -> None:
    spec = make(ATTENTION | {"name": "a", "layers": layers}, ATTENTION | {"name": "b", "layers": "rest"})
    assert spec.positions(spec.group("a")) == expected
    assert spec.positions(spec.group("b")) == tuple(i for i in range(12) if i not in expected)


@given(st.integers(2, 60), st.data())
def test_a_list_and_its_rest_are_a_partition(layers: int, data: st.DataObject) -> None:
    chosen = data.draw(st.sets(st.integers(0, layers - 1), min_size=1, max_size=layers - 1))
    one = ATTENTION | {"name": "one", "layers": sorted(chosen)}
    spec = make(one, ATTENTION | {"name": "two", "layers": "rest"}, layers=layers)
    assert set(spec.positions(spec.group("one"))) == chosen
    assert set(spec.positions(spec.group("two"))) == set(range(layers)) - chosen
    again = ModelSpec.model_validate(spec.model_dump())
    assert [again.positions(g) for g in again.layer_groups] == [spec.positions(g) for g in spec.layer_groups]


def test_head_dim_spellings() -> None:
    assert (first_attention().k_dim, first_attention().v_dim) == (64, 64)
    split = first_attention(head_dim={"k": 192, "v": 128})
    assert (split.k_dim, split.v_dim) == (192, 128)


@pytest.mark.parametrize(
    ("written", "law", "rows"),
    [
        ("all", "all", None),
        ({"window": 128}, "window", 128),
        ({"chunk": 8192}, "chunk", 8192),
        ({"ring": 8}, "ring", 8),
    ],
)
def test_retain_spellings(written: Any, law: str, rows: int | None) -> None:
    group = first_attention(retain=written)
    assert (group.retain.law, group.retain.rows) == (law, rows)
    assert group.model_dump()["retain"] == written


def test_retain_defaults_to_all() -> None:
    assert first_attention().retain == Retain()
    assert Retain().law == "all"


def test_latent_widths() -> None:
    mla = {"kind": "latent", "layers": 12, "q_heads": 16, "width": {"nope": 512, "rope": 64}}
    index = {"kind": "latent", "name": "index", "layers": 12, "width": 128, "role": "index", "overlay": True}
    spec = make(mla, index)
    latent, keys = spec.layer_groups
    assert isinstance(latent, LatentGroup) and isinstance(keys, LatentGroup)
    assert (latent.name, latent.nope_dim, latent.rope_dim, latent.shard) == ("latent", 512, 64, "none")
    assert (keys.nope_dim, keys.rope_dim, keys.q_heads) == (128, 0, None)
    assert spec.positions(keys) == tuple(range(12))


def test_compressed_latents_and_rings() -> None:
    # The shape of DeepSeek-V4: a window on every layer, compressed rows and open-group rings over some.
    shared = {"kind": "latent", "q_heads": 64}
    window = shared | {"name": "swa", "layers": 12, "width": {"nope": 448, "rope": 64}, "retain": {"window": 128}}
    csa = shared | {"name": "csa", "layers": {"every": 2, "at": [1]}, "width": 512, "stride": 4, "overlay": True}
    ring = shared | {"name": "open", "layers": [1, 3], "width": 2048, "retain": {"ring": 8}, "dtype": "float32"}
    spec = make(window, csa, ring | {"overlay": True}, mtp={"layers": 1, "cache_like": ["swa"]})
    group = spec.group("open")
    assert isinstance(group, LatentGroup) and group.dtype == "float32"
    assert spec.positions(spec.group("csa")) == (1, 3, 5, 7, 9, 11)


def test_hybrid_with_feed_forward_layers() -> None:
    state = {"type": "mamba2", "heads": 128, "head_dim": 64, "d_state": 128, "n_groups": 8, "conv_kernel": 4}
    mamba = {"kind": "state", "layers": {"every": 3, "at": [1]}, "state": state, "dtype": STATE_DTYPE}
    spec = make(ATTENTION | {"layers": {"every": 3, "at": [0]}}, mamba, {"kind": "none", "layers": "rest"})
    group = spec.group("state")
    assert isinstance(group, StateGroup) and isinstance(group.state, Mamba2State)
    assert spec.positions(spec.group("none")) == (2, 5, 8, 11)


def test_cross_attention_over_the_same_layers() -> None:
    cross = {"kind": "cross", "layers": 12, "q_heads": 8, "kv_heads": 8, "head_dim": 64, "overlay": True}
    spec = make(ATTENTION | {"layers": 12}, cross | {"encoder_tokens": {"per": "audio", "count": 1500}})
    group = spec.group("cross")
    assert isinstance(group, CrossGroup) and group.encoder_tokens.count == 1500


STATES: list[dict[str, Any]] = [
    {"type": "mamba1", "inner": 8192, "d_state": 16, "conv_kernel": 4},
    {"type": "gated_deltanet", "k_heads": 16, "v_heads": 32, "k_dim": 128, "v_dim": 128, "conv_kernel": 4},
    {"type": "kda", "heads": 96, "head_dim": 128, "conv_kernel": 4},
    {"type": "lightning", "heads": 32, "head_dim": 128},
    {"type": "short_conv", "dim": 2048, "conv_kernel": 3},
    {"type": "rwkv7", "hidden": 2048, "head_dim": 64},
    {"type": "rwkv4", "hidden": 768, "attention": 512},
    {"type": "cca", "channels": 1280, "values": 128, "conv_kernel": 3},
    {"type": "rglru", "width": 4096, "conv_kernel": 4},
]


@pytest.mark.parametrize("state", STATES, ids=lambda state: str(state["type"]))
def test_states_need_all_their_dimensions(state: dict[str, Any]) -> None:
    group = {"kind": "state", "layers": 12, "dtype": STATE_DTYPE}
    spec = make(group | {"state": state})
    assert spec.layer_groups[0].model_dump()["state"] == state
    for key in state.keys() - {"type"}:
        with pytest.raises(ValidationError, match=key):
            make(group | {"state": {k: v for k, v in state.items() if k != key}})


def test_everything_is_frozen() -> None:
    spec = make(ATTENTION | {"layers": 12})
    with pytest.raises(ValidationError, match="frozen"):
        spec.layers = 13
    with pytest.raises(ValidationError, match="frozen"):
        spec.layer_groups[0].name = "other"
    assert isinstance(spec.layer_groups, tuple) and isinstance(spec.hf_ids, tuple)


def test_unknown_keys_are_refused_in_every_object() -> None:
    with pytest.raises(ValidationError, match="unknown key"):
        make(ATTENTION | {"layers": 12}, layouts={})
    with pytest.raises(ValidationError, match="unknown key"):
        make(ATTENTION | {"layers": 12, "bytes": 656})
    with pytest.raises(ValidationError, match="unknown key"):
        make(ATTENTION | {"layers": 12}, params={"total": 1, "totl": 1})


@pytest.mark.parametrize("value", ["8", 8.0, True, None, [8]])
@pytest.mark.parametrize("key", ["q_heads", "kv_heads", "stride"])
def test_integers_are_not_coerced(key: str, value: Any) -> None:
    with pytest.raises(ValidationError):
        make(ATTENTION | {"layers": 12, key: value})


def test_unknown_group_name() -> None:
    with pytest.raises(KeyError):
        make(ATTENTION | {"layers": 12}).group("nothing")


def test_every_field_is_documented() -> None:
    seen: set[str] = set()

    def check(schema: dict[str, Any]) -> None:
        for name, definition in schema["$defs"].items():
            for key, field in definition.get("properties", {}).items():
                assert field.get("description"), f"{name}.{key}"
                seen.add(name)

    check(ModelSpec.model_json_schema())
    assert {"AttentionGroup", "LatentGroup", "StateGroup", "CrossGroup", "NoneGroup", "Mamba2State"} <= seen
