"""Sharding, states, and every kind of cache that a spec can describe."""

from __future__ import annotations

from typing import Any

import pytest

from kvplan.errors import UsageError
from kvplan.formats.grammar import parse_kv
from kvplan.memory.figures import check_page_size, default_page_size, kv_figures
from kvplan.memory.groups import CacheFormats, cache_groups, roles
from kvplan.memory.scratch import prefix_scratch
from kvplan.specs.load import load_model
from kvplan.specs.model import ModelSpec

ATTENTION = {"kind": "attention", "q_heads": 32, "kv_heads": 8, "head_dim": 128}


def model(layers: int, *groups: dict[str, Any]) -> ModelSpec:
    common = {"kvplan_spec": 1, "id": "toy", "params": {"total": 1}, "max_context": 65536, "native_dtype": "bfloat16"}
    return ModelSpec.model_validate({**common, "layers": layers, "layer_groups": list(groups)})


def at(spec: ModelSpec, context: int, tp: int = 1, formats: CacheFormats | None = None):
    formats = formats or CacheFormats.native(spec)
    whole = cache_groups(spec, formats)
    return kv_figures(cache_groups(spec, formats, tp), whole, tp, context, 1, default_page_size(whole))


@pytest.mark.parametrize(("tp", "heads"), [(1, 8), (2, 4), (8, 1), (16, 1), (32, 1)])
def test_kv_heads_are_split_then_copied(tp: int, heads: int) -> None:
    kv = at(model(2, {**ATTENTION, "layers": 2}), 100, tp)
    assert kv.logical_bytes == 2 * heads * 100 * 512
    assert kv.replicated_bytes == 2 * (tp * heads - 8) * 100 * 512


@pytest.mark.parametrize("tp", [3, 5, 12])
def test_an_uneven_split_is_refused(tp: int) -> None:
    with pytest.raises(UsageError, match="8 KV heads"):
        cache_groups(load_model("llama-3.1-8b"), CacheFormats.native(load_model("llama-3.1-8b")), tp)


@pytest.mark.parametrize("tp", [1, 2, 8])
def test_a_latent_is_copied_to_every_rank(tp: int) -> None:
    kv = at(load_model("deepseek-v3"), 1000, tp)
    assert kv.logical_bytes == 61 * 1000 * 1152
    assert kv.replicated_bytes == (tp - 1) * kv.logical_bytes


def test_states_are_split_by_their_own_heads() -> None:
    kv = at(load_model("qwen3-next-80b-a3b"), 1000, 4)
    assert kv.state_bytes * 4 == 77_266_944
    # 2 KV heads on 4 ranks: each head twice.
    assert kv.replicated_bytes == 24576 * 1000


STATES: list[tuple[dict[str, Any], int, int]] = [
    ({"type": "mamba1", "inner": 8192, "d_state": 16, "conv_kernel": 4}, 8192 * 16, 8192 * 3),
    (
        {"type": "mamba2", "heads": 128, "head_dim": 64, "d_state": 128, "n_groups": 8, "conv_kernel": 4},
        128 * 64 * 128,
        (8192 + 2 * 8 * 128) * 3,
    ),
    ({"type": "kda", "heads": 96, "head_dim": 128, "conv_kernel": 4}, 96 * 128 * 128, 3 * 96 * 128 * 3),
    ({"type": "lightning", "heads": 64, "head_dim": 128}, 64 * 128 * 128, 0),
    ({"type": "short_conv", "dim": 2048, "conv_kernel": 3}, 0, 2048 * 2),
    ({"type": "rwkv7", "hidden": 2048, "head_dim": 64}, 2048 * 64, 2 * 2048),
    ({"type": "rwkv4", "hidden": 768, "attention": 512}, 3 * 512, 2 * 768),
    ({"type": "cca", "channels": 1280, "values": 128, "conv_kernel": 3}, 128, 1280 * 2),
    ({"type": "rglru", "width": 4096, "conv_kernel": 4}, 4096, 4096 * 3),
]


def state_model(state: dict[str, Any]) -> ModelSpec:
    return model(4, {"kind": "state", "layers": 4, "state": state, "dtype": {"recurrent": "float32", "conv": "model"}})


@pytest.mark.parametrize(("state", "recurrent", "conv"), STATES, ids=[s[0]["type"] for s in STATES])
def test_state_elements(state: dict[str, Any], recurrent: int, conv: int) -> None:
    kv = at(state_model(state), 1)
    assert kv.logical_bytes == kv.allocated_bytes == kv.state_bytes == 4 * (recurrent * 4 + conv * 2)
    assert kv.bytes_per_token.numerator == 0
    assert not roles(state_model(state))


@pytest.mark.parametrize(("groups", "tp", "per_rank"), [(8, 2, 4), (1, 4, 1), (8, 16, 1)])
def test_mamba2_groups_are_split_or_copied(groups: int, tp: int, per_rank: int) -> None:
    state = {"type": "mamba2", "heads": 128, "head_dim": 64, "d_state": 128, "n_groups": groups, "conv_kernel": 4}
    kv = at(state_model(state), 1, tp)
    inner = 8192 // tp
    assert kv.state_bytes == 4 * (inner * 128 * 4 + (inner + 2 * per_rank * 128) * 3 * 2)


def test_state_heads_must_divide() -> None:
    spec = state_model({"type": "kda", "heads": 6, "head_dim": 128, "conv_kernel": 4})
    with pytest.raises(UsageError, match="6 state heads do not divide by 4"):
        cache_groups(spec, CacheFormats.native(spec), 4)


def test_cross_attention_holds_encoder_rows() -> None:
    cross = {
        "kind": "cross",
        "q_heads": 20,
        "kv_heads": 20,
        "head_dim": 64,
        "encoder_tokens": {"per": "audio", "count": 1500},
    }
    own = {"kind": "attention", "layers": 2, "q_heads": 20, "kv_heads": 20, "head_dim": 64}
    kv = at(model(2, own, {**cross, "layers": 2, "overlay": True}), 10)
    assert [(g.role, g.payload_bytes) for g in kv.by_group] == [
        ("kv", 2 * 20 * 10 * 256),
        ("cross", 2 * 20 * 1500 * 256),
    ]
    assert kv.fixed_bytes_per_sequence == 2 * 20 * 1500 * 256


def test_compressed_rows_rings_and_windows_over_a_latent() -> None:
    """The structure of deepseek-v4: sliding latent, rows of 4 tokens, fp32 rows of open groups."""
    latent = {"kind": "latent", "q_heads": 64, "width": {"nope": 448, "rope": 64}}
    spec = model(
        3,
        {**latent, "name": "swa", "layers": 3, "retain": {"window": 128}},
        {**latent, "name": "csa", "layers": [1, 2], "stride": 4, "overlay": True},
        {
            **latent,
            "name": "open",
            "width": 2048,
            "layers": [1, 2],
            "retain": {"ring": 8},
            "dtype": "float32",
            "overlay": True,
        },
    )
    kv = at(spec, 1001)
    assert [g.role for g in kv.by_group] == ["latent", "latent", "state"]
    assert [g.logical_bytes for g in kv.by_group] == [3 * 128 * 1024, 2 * 251 * 1024, 2 * 8 * 2048 * 4]
    assert (kv.bytes_per_token.numerator, kv.bytes_per_token.denominator) == (512, 1)
    assert kv.fixed_bytes_per_sequence == 3 * 128 * 1024 + 2 * 8 * 2048 * 4


def test_chunked_layers() -> None:
    kv = at(model(2, {**ATTENTION, "layers": 2, "retain": {"chunk": 8192}}), 10_000)
    assert kv.logical_bytes == 2 * 8 * 8192 * 512


def test_page_sizes() -> None:
    from kvplan.formats.grammar import parse_any

    spec = load_model("llama-3.1-8b")
    by_48 = CacheFormats(*[parse_any("int8:channel/48")] * 4)
    groups = cache_groups(spec, by_48)
    assert default_page_size(groups) == 384
    assert check_page_size(groups, 96) == 96
    with pytest.raises(UsageError) as refused:
        check_page_size(groups, 100)
    assert "96 or 144" in refused.value.hint


def test_a_prefix_hit_s_scratch_is_the_largest_quantised_layer_in_16_bit() -> None:
    full = {**ATTENTION, "name": "full", "layers": [0, 1]}
    windowed = {**ATTENTION, "name": "windowed", "kv_heads": 16, "layers": [2, 3], "retain": {"window": 100}}
    spec = model(4, full, windowed)
    int8 = parse_kv("int8")
    formats = CacheFormats(int8, int8, int8, int8)
    groups = cache_groups(spec, formats)
    for tokens, want in ((50, 50 * 16 * 512), (1000, 1000 * 8 * 512)):
        term = prefix_scratch(groups, tokens)
        assert term is not None and term.nbytes == want
    halved = prefix_scratch(cache_groups(spec, formats, 2), 1000, sequences=3)
    assert halved is not None and halved.nbytes == 3 * 1000 * 4 * 512
    assert prefix_scratch(cache_groups(spec, CacheFormats.native(spec)), 1000) is None
    deepseek = load_model("deepseek-v3")
    assert prefix_scratch(cache_groups(deepseek, CacheFormats.native(deepseek)), 1000) is None
