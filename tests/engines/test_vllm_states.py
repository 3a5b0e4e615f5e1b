"""vLLM: states in blocks of the pool, the attention block that holds one, copies, number types."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kvplan.engines.vllm.states import StateMode, aligned_block, checkpoint_alignment, state_blocks, state_layout
from kvplan.errors import UnsupportedError, UsageError
from kvplan.specs.load import load_model
from kvplan.specs.states import Mamba2State

sys.path.insert(0, str(Path(__file__).parent))

from vllm_specs import GDN, MAMBA, attention, cache, hybrid, kv, latent, make, shown, state

STATE = 32 * 128 * 128
CONV = 3 * (2 * 16 * 128 + 32 * 128)
TOKEN = 2 * (256 + 256) * 2
"""Attention of one token and layer: 2 heads of 256 channels, K and V in bf16."""


def test_a_gated_delta_net_in_the_models_number_type() -> None:
    """State of 1,097,728 bytes: 64-token units (FlashInfer's checkpoints), 9 of 131,072 bytes: blocks of 576 tokens."""
    assert (STATE + CONV) * 2 == 1_097_728
    made = cache(hybrid(model_type="qwen3_next"), context=1000, gpu="h100-80gb")
    spec = next(m.spec for m in made.declared.layers if m.spec.kind == "mamba")
    assert made.declared.block_size == 576 and spec.page_bytes == 576 * TOKEN and spec.unpadded == 1_097_728
    # One attention block of 576 tokens for each 576, three states: running, cached, checkpoint.
    assert made.pool.blocks_per_group(1000) == (3, 3, 3, 2)
    found = kv(hybrid(model_type="qwen3_next"), context=1000, batch=2, gpu="h100-80gb")
    states = found.by_group[0]
    assert states.allocated_bytes == 2 * 3 * 3 * 576 * TOKEN
    assert states.reserved_bytes == 2 * 3 * 2 * 576 * TOKEN
    # The spec has a float32 state; 16 bit spare half of it.
    assert states.engine_saves_bytes == 2 * 3 * STATE * 2
    assert states.padding_bytes == 2 * 3 * (576 * TOKEN - 1_097_728)


@pytest.mark.parametrize(
    ("options", "gpu", "block", "copies"),
    [
        ((), "h100-80gb", 576, 3),
        (("gdn_prefill_backend=triton",), "h100-80gb", 544, 2),
        ((), "b200", 544, 2),
        (("enable_prefix_caching=off",), "h100-80gb", 544, 1),
        (("mamba_cache_mode=none", "num_speculative_tokens=2"), "h100-80gb", 560, 3),
        (("num_speculative_tokens=2",), "h100-80gb", 576, 5),
        (("block_size=64", "mamba_cache_mode=none"), "h100-80gb", 576, 1),
        (("block_size=2048",), "h100-80gb", 2048, 3),
        # float32: (524,288 x 4 + 24,576 x 2) / 2,048 = 1,048 tokens, in units of 64.
        (("mamba_ssm_cache_dtype=float32",), "h100-80gb", 1088, 3),
    ],
)
def test_block_and_copies(options: tuple[str, ...], gpu: str, block: int, copies: int) -> None:
    made = cache(hybrid(model_type="qwen3_next"), *options, context=5000, gpu=gpu)
    assert made.declared.block_size == block
    assert made.pool.blocks_per_group(5000)[0] == copies


def test_speculation_lengthens_the_convolution() -> None:
    """Two drafted tokens: 5 rows instead of 3; (524,288 + 5 x 8,192) x 2 bytes over 2,048 are 552 tokens."""
    assert (STATE + 5 * 8192) * 2 == 552 * TOKEN
    options = ("num_speculative_tokens=2", "mamba_cache_mode=none")
    spec = cache(hybrid(model_type="qwen3_next"), *options, context=100).declared.layers[0].spec
    assert spec.unpadded == 552 * TOKEN and spec.page_bytes == 560 * TOKEN


def test_mode_all_keeps_a_state_for_every_block() -> None:
    """Units of lcm(16, 256) tokens: 768."""
    options = ("mamba_cache_mode=all", "mamba_block_size=256")
    made = cache(hybrid(MAMBA, heads=8), *options, context=10000)
    assert made.pool.blocks_per_group(10000) == (-(-10000 // made.declared.block_size),) * 4
    assert made.declared.block_size % 256 == 0
    with pytest.raises(UsageError, match="chunk size") as caught:
        cache(hybrid(MAMBA), "mamba_cache_mode=all", context=10000)
    assert "mamba_block_size" in caught.value.hint


def test_nemotron_h_is_float32_and_granite_is_not() -> None:
    inner = 128 * 64 * 128
    rows = 3 * (128 * 64 + 2 * 8 * 128)
    for model_type, width in (("nemotron_h", 4), ("granitemoehybrid", 2), (None, 2)):
        spec = cache(hybrid(MAMBA, model_type=model_type), context=100).declared.layers[0].spec
        assert spec.unpadded == inner * width + rows * 2


def test_the_checkpoints_number_type_for_qwen_3_5() -> None:
    for model_type, width in (("qwen3_5", 4), ("qwen3_5_moe", 4), ("qwen3_next", 2)):
        spec = cache(hybrid(model_type=model_type), context=100).declared.layers[0].spec
        assert spec.unpadded == STATE * width + CONV * 2


def test_an_option_may_store_more_than_the_model() -> None:
    found = kv(hybrid(GDN), "mamba_ssm_cache_dtype=float32", context=100)
    assert found.by_group[0].engine_saves_bytes == 0


def test_kda_is_float32_and_says_what_is_not_counted() -> None:
    dims = {"type": "kda", "heads": 32, "head_dim": 128, "conv_kernel": 4}
    spec = make(4, state([0, 1, 2], dims), latent([3], 512, 64), model_type="kimi_linear")
    made = cache(spec, context=1000, gpu="h100-80gb")
    assert made.declared.layers[0].spec.unpadded == 32 * 128 * 128 * 4 + 3 * 3 * 32 * 128 * 2
    # With MLA the unit is 128 tokens: 2,170,880 bytes over 128 x 1,152 are 15.
    assert made.declared.block_size == 15 * 128
    assert any("FlashKDA" in note for note in made.notes)


def test_groups_of_mamba_2_are_extended_to_one_per_rank() -> None:
    """1 group over 4 ranks, and 8 over 16: each rank stores one."""
    for groups, tp in ((1, 4), (8, 16)):
        dims = Mamba2State(type="mamba2", heads=128, head_dim=64, d_state=128, n_groups=groups, conv_kernel=4)
        inner = 128 // tp * 64
        assert state_layout(dims, tp, "fp32", "bf16").fixed_bytes("state") == (
            inner * 128 * 4 + 3 * (inner + 2 * 128) * 2
        )


def test_units_and_copies() -> None:
    none, align = StateMode("none"), StateMode("align", 1, 64)
    assert aligned_block(1000, 10, 16, none) == 112  # 7 units of 160 bytes
    assert aligned_block(1000, 10, 16, align) == 128  # 2 units of 64 tokens
    assert aligned_block(1000, 10, 16, none, kernel_blocks=(16, 32)) == 128
    assert aligned_block(1000, 10, 16, StateMode("all"), chunk=24) == 144  # lcm 48, three
    assert [state_blocks(m) for m in (none, StateMode("none", 2), StateMode("align"), align)] == [1, 3, 2, 4]
    assert checkpoint_alignment(frozenset({"mamba2"}), "triton") == 1
    assert checkpoint_alignment(frozenset({"mamba2", "kda"}), "triton") is None
    assert checkpoint_alignment(frozenset({"gated_deltanet"}), "flashinfer") == 64


def test_a_model_of_states_only_has_one_group() -> None:
    made = cache(load_model("falcon-mamba-7b"), context=1000)
    assert made.pool.blocks_per_group(1000) == (3,) or made.pool.blocks_per_group(1000) == (2,)
    assert shown(load_model("falcon-mamba-7b"))["attention backend"] == "MAMBA1_ATTN"


def test_states_that_vllm_has_no_rule_for() -> None:
    with pytest.raises(UnsupportedError, match="rwkv7"):
        cache(load_model("rwkv7-g1j-1.5b"), context=100)
    mixed = make(
        3, state([0], GDN), attention([1], 2, 256, name="full"),
        attention([2], 4, 256, name="wide", retain={"window": 64}),
    )  # fmt: skip
    with pytest.raises(UnsupportedError, match="block-outermost"):
        cache(mixed, "kv_cache_layout=BLHNC", context=100)
    # Pages of one size are grouped as elsewhere.
    assert cache(hybrid(), "kv_cache_layout=BLHNC", context=100).pool.block_bytes() == 576 * TOKEN
    with pytest.raises(UsageError, match="hybrid KV cache manager"):
        cache(hybrid(), "disable_hybrid_kv_cache_manager=on", context=100)
