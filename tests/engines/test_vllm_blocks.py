"""vLLM: bytes of a block, blocks of a request and page groups, with the arithmetic written out."""

from __future__ import annotations

import sys
from fractions import Fraction
from pathlib import Path

import pytest

from kvplan.engines.vllm import blocks
from kvplan.engines.vllm.blocks import total_blocks
from kvplan.engines.vllm.groups import group_size
from kvplan.errors import UsageError

sys.path.insert(0, str(Path(__file__).parent))

from vllm_specs import DENSE, attention, cache, chunked, kv, latent, make, nothing, ranks, shown, sparse, windowed

ROW = 8 * (128 + 128) * 2
"""K and V of one token, 8 heads of 128 channels, bf16."""


def test_a_uniform_model() -> None:
    """4 layers x 16 tokens a block; the null block is reserved."""
    found = kv(DENSE, context=1000, batch=3)
    block = 4 * 16 * ROW
    assert found.allocated_bytes == 3 * 63 * block + block
    assert found.logical_bytes == 3 * 1000 * 4 * ROW
    assert found.reserved_bytes == block
    # 63 blocks hold 1,008 tokens.
    assert found.padding_bytes == 3 * 8 * 4 * ROW


def test_before_any_request_only_the_null_block_is_taken() -> None:
    assert cache(DENSE, context=1000).held(1000, 0) == 4 * 16 * ROW


def test_kv_heads_are_copied_beyond_their_number_and_latents_everywhere() -> None:
    spec = make(1, attention([0], 2, 128, q_heads=16))
    assert shown(spec, tp=8)["bytes per block"] == 16 * 1 * 256 * 2
    assert shown(make(1, latent([0], 512, 64)), tp=8)["bytes per block"] == 16 * 576 * 2


def test_a_window_takes_in_flight_tokens_and_one_block_more() -> None:
    spec = make(1, attention([0], 8, 128, retain={"window": 128}))
    found = kv(spec, "max_num_batched_tokens=2048", context=8192)
    # Two batches are in flight: ceil((127 + 4096) / 16) + 1 = 265 blocks, 8 of them for the window's own 128 rows.
    assert found.allocated_bytes == 265 * 16 * ROW + 16 * ROW
    assert found.logical_bytes == 128 * ROW
    assert found.reserved_bytes == (265 - 8) * 16 * ROW + 16 * ROW
    assert found.padding_bytes == 0
    # Never more than the context: ceil(1000 / 16) + 1.
    short = kv(spec, "max_num_batched_tokens=2048", context=1000)
    assert short.allocated_bytes == (64 + 1) * 16 * ROW


@pytest.mark.parametrize(
    ("options", "pp", "batches"),
    [((), 1, 2), (("async_scheduling=off",), 1, 1), ((), 2, 3), (("async_scheduling=off",), 2, 2)],
)
def test_batches_in_flight(options: tuple[str, ...], pp: int, batches: int) -> None:
    spec = make(2, attention([0, 1], 8, 128, retain={"window": 128}))
    made = cache(spec, "max_num_batched_tokens=1024", *options, context=65536, pp=pp)
    assert made.settings.in_flight == batches * 1024
    assert made.pool.blocks_per_request(65536) == -(-(127 + batches * 1024) // 16) + 1


@pytest.mark.parametrize(
    ("gpu", "tokens"), [("h100-80gb", 8192), ("b200", 16384), ("a100-80gb", 2048), ("rtx-4090", 2048), (None, 8192)]
)
def test_batched_tokens_by_gpu(gpu: str | None, tokens: int) -> None:
    made = cache(windowed(), context=1000, gpu=gpu)
    assert made.settings.batched_tokens == tokens
    assert (gpu is None) == any("max_num_batched_tokens 8192" in note for note in made.notes)


def test_blocks_of_every_kind() -> None:
    assert total_blocks(blocks.FULL, 16, 1000) == 63
    # Four ranks share the tokens: ceil(250 / 16).
    assert total_blocks(blocks.FULL, 16, 1000, ranks=4) == 16
    assert total_blocks(blocks.SLIDING, 16, 100000, limit=1024, in_flight=8192) == 576 + 1  # ceil(9215 / 16)
    assert total_blocks(blocks.SLIDING, 16, 100000, limit=1024, in_flight=8192, retained=3) == 577 + 1  # ceil(9218/16)
    assert total_blocks(blocks.CHUNKED, 16, 100000, limit=2048, in_flight=8192) == 640
    assert total_blocks(blocks.CROSS, 16, 5, limit=1500) == 94
    assert total_blocks(blocks.ENCODER, 16, 5) == 0
    assert total_blocks(blocks.MAMBA, 16, 100000, states=3) == 3
    assert total_blocks(blocks.MAMBA, 16, 100, states=0) == 7


def test_chunks_keep_their_chunk_and_what_is_in_flight() -> None:
    option = "max_num_batched_tokens=1024"
    made = cache(chunked(), option, context=65536)
    # ceil((8192 + 2048) / 16) without one more, and all of the full layer.
    assert made.pool.blocks_per_group(65536) == (640, 4096)
    # The same blocks without the hybrid manager: one group, rows beyond the chunk are padding.
    for off in ("disable_hybrid_kv_cache_manager=on", "allow_chunked_local_attn_with_hybrid_kv_cache=off"):
        assert cache(chunked(), option, off, context=65536).pool.blocks_per_group(65536) == (4096,)
    found = kv(chunked(), option, "disable_hybrid_kv_cache_manager=on", context=65536)
    assert found.by_group[0].padding_bytes == (65536 - 8192) * ROW
    # Speculation switches the chunks off too, and says so.
    drafting = cache(chunked(), option, "num_speculative_tokens=1", context=65536)
    assert drafting.pool.blocks_per_group(65536) == (4096,)
    assert any("chunked" in note for note in drafting.notes)


def test_page_groups_deal_layers_and_leave_slots_empty() -> None:
    """1 full and 5 sliding layers: groups of one layer. 2 and 5: groups of two, the third sliding one half empty."""
    assert shown(windowed(1, 5))["layers per group"] == "1, 1, 1, 1, 1, 1"
    made = cache(windowed(2, 5), "max_num_batched_tokens=1024", context=32768)
    assert [b.layers_per_group() for b in made.pool.buckets] == [(2, 2, 1), (2,)]
    assert made.pool.block_bytes() == 2 * 16 * ROW
    sliding = -(-(127 + 2048) // 16) + 1
    found = kv(windowed(2, 5), "max_num_batched_tokens=1024", context=32768)
    assert found.allocated_bytes == (3 * sliding + 2048 + 1) * 2 * 16 * ROW
    # Of the 8 blocks of 16 tokens that hold the window, one slot of six is empty.
    assert found.by_group[0].padding_bytes == 8 * 16 * ROW


def test_near_equal_counts_share_the_larger() -> None:
    """12 sliding layers and 13 full ones are two groups, not three; half as many again are not near."""
    assert group_size([12, 13], Fraction(3, 2)) == 13
    assert group_size([12, 18], Fraction(3, 2)) == 12
    assert group_size([12, 13], None) == 12
    assert group_size([12, 16], Fraction(5, 4)) == 12
    assert shown(windowed(3, 2))["layers per group"] == "2, 2, 1"
    assert shown(windowed(4, 3))["layers per group"] == "3, 4"
    assert shown(windowed(4, 3), engine_version="0.11")["layers per group"] == "3, 2, 2"


def test_smaller_pages_get_larger_blocks_or_padding() -> None:
    """A head dimension of 256 and one of 128: the second's blocks double. 192: no divisor, so it is padded."""
    for dim, size, padded in ((128, 32, 0), (192, 16, 1)):
        spec = make(
            2, attention([0], 8, dim, name="sliding", retain={"window": 64}), attention([1], 8, 256, name="full")
        )
        made = cache(spec, "max_num_batched_tokens=1024", context=8192)
        sliding, full = (b.members[0].spec for b in made.pool.buckets)
        assert (sliding.block_size, full.block_size, full.page_bytes) == (size, 16, 16 * 8 * 512 * 2)
        assert sliding.page_bytes == full.page_bytes
        assert (sliding.unpadded < sliding.page_bytes) == bool(padded)
        # Blocks that hold the 64 rows, each short of the page by what its own tokens leave.
        found = kv(spec, "max_num_batched_tokens=1024", context=8192).by_group[0]
        needed = -(-64 // size)
        assert found.padding_bytes == needed * full.page_bytes - 64 * 8 * dim * 2 * 2


def test_index_keys_share_the_latents_blocks() -> None:
    """Latent of 576 bf16 and index key of 132 bytes, blocks of 64: one group, bytes by member."""
    found = kv(sparse(), context=640, gpu="h100-80gb")
    assert [g.allocated_bytes for g in found.by_group[:2]] == [2 * 10 * 64 * 1152, 2 * 10 * 64 * 132]
    assert found.reserved_bytes == 2 * 64 * (1152 + 132)
    assert found.padding_bytes == 0


def test_context_parallel_ranks_share_latents_and_index_keys() -> None:
    """A block spans 64 x 4 tokens; of 1,000 tokens a rank holds 250 in 4 blocks, 744 index rows lie elsewhere."""
    found = kv(sparse(), context=1000, tp=4, dcp=4, gpu="h100-80gb")
    latents, keys = found.by_group[:2]
    assert latents.allocated_bytes == 2 * 4 * 64 * 1152
    assert keys.allocated_bytes == 2 * 4 * 64 * 132
    assert keys.engine_saves_bytes == 2 * (1000 - 256) * 132


def test_block_outermost_rounds_blocks_to_whole_rows() -> None:
    """61 x 64 x (1152 + 132) = 5,012,736 bytes are no multiple of the 1,152-byte row: 5,013,504 are."""
    outer = shown(sparse(61), "kv_cache_layout=BLHNC", gpu="h100-80gb")
    assert outer["bytes per block"] == 5_013_504 == 4352 * 1152
    assert shown(sparse(61), gpu="h100-80gb")["bytes per block"] == 5_012_736
    scaled = shown(sparse(61), "kv_cache_layout=BLHNC", kv="fp8_ds_mla", gpu="h100-80gb")
    assert scaled["bytes per block"] == 61 * 64 * (656 + 132)


def test_stages_hold_their_layers_and_the_fewest_blocks_decide() -> None:
    """61 layers over 4 stages: 15, 15, 16, 15; equal pools hold fewest blocks on the third."""
    made = ranks(make(61, attention("rest", 8, 128)), context=1000, pp=4)
    block = 16 * ROW
    assert [c.pool.block_bytes(c.case.stage) for c in made] == [15 * block, 15 * block, 16 * block, 15 * block]
    pool = made[0].pool
    assert pool.num_blocks([GIB_64] * 4) == GIB_64 // (16 * block)
    assert pool.num_blocks([GIB_64, GIB_64 // 2, GIB_64, GIB_64]) == GIB_64 // 2 // (15 * block)
    for stage, one in enumerate(made):
        assert one.held(1000, 2) == (2 * 63 + 1) * pool.block_bytes(stage)


def test_a_stage_without_a_type_still_gives_its_groups_blocks() -> None:
    """Two sliding layers on the first stage, one full on the second: every block costs the wider group."""
    spec = make(4, attention([0, 1], 8, 128, name="sliding", retain={"window": 64}), attention([2, 3], 8, 128))
    first, second = ranks(spec, "max_num_batched_tokens=64", context=1000, pp=2)
    per_request = first.pool.blocks_per_request(1000)
    for one in (first, second):
        assert one.pool.block_bytes(one.case.stage) == 2 * 16 * ROW
        assert one.held(1000, 1) == (per_request + 1) * 2 * 16 * ROW


def test_layers_that_read_others_have_no_cache() -> None:
    spec = make(4, attention([0, 1], 8, 128), nothing([2, 3], reads=("attention",)))
    assert shown(spec)["bytes per block"] == 2 * 16 * ROW


def test_cross_attention_takes_the_encoder_budget() -> None:
    """1,500 encoder tokens are read, but blocks are there for 8,192, the batch's budget."""
    cross = {"kind": "cross", "name": "cross", "layers": [1], "q_heads": 8, "kv_heads": 8, "head_dim": 128}
    spec = make(2, attention([0], 8, 128), cross | {"encoder_tokens": {"per": "audio", "count": 1500}})
    assert cache(spec, context=400).pool.blocks_per_group(400) == (25, 512)
    found = kv(spec, "max_num_encoder_input_tokens=1500", context=400)
    assert found.by_group[1].allocated_bytes == 94 * 16 * ROW and found.by_group[1].reserved_bytes == 0
    assert kv(spec, context=400).by_group[1].reserved_bytes == (512 - 94) * 16 * ROW


def test_deepseek_v4_packs_pages_of_several_sizes() -> None:
    """Compressed rows, index keys, windows and compressor states side by side in blocks of 1,002,240 bytes."""
    from kvplan.specs.load import load_model

    made = cache(load_model("deepseek-v4-flash"), "max_num_batched_tokens=8192", context=272000, gpu="h100-80gb")
    groups = {
        n: size for b in made.pool.buckets for n, size in zip(b.layers_per_group(), b.group_bytes(0), strict=True)
    }
    row, key, block = 65 * 576, 15 * 576, 256
    # Windows of 43 layers in two groups; 21 + 21 + 20 layers of rows and keys; 42 and 20 states.
    assert groups == {
        22: 22 * row, 21: 21 * row, 62: 21 * row + 21 * key + 20 * 3 * 576, 42: 21 * (57 * 576 + key),
        20: 20 * 57 * 576,
    }  # fmt: skip
    assert made.pool.block_bytes() == 1_002_240
    swa = -(-(127 + 16384) // 64) + 1
    wanted = {swa, -(-272000 // block), -(-(7 + 16384) // 4) + 1, -(-(127 + 16384) // 8) + 1}
    assert set(made.pool.blocks_per_group(272000)) == wanted


def test_what_cannot_be_laid_out_is_refused() -> None:
    with pytest.raises(UsageError, match="kernel block of FLASHMLA"):
        cache(make(1, latent([0], 512, 64)), "block_size=32", "attention_backend=FLASHMLA", context=100)
    with pytest.raises(UsageError, match="MLA pages"):
        cache(
            make(2, latent([0], 512, 64), attention([1], 8, 128, retain={"chunk": 64})),
            "attention_backend=TRITON_MLA",
            context=100,
        )


def test_mla_beside_a_window_that_does_not_fit_keeps_the_window_in_full() -> None:
    spec = make(2, latent([0], 512, 64), attention([1], 8, 128, retain={"window": 64}))
    made = cache(spec, "attention_backend=TRITON_MLA", context=8192)
    assert made.pool.blocks_per_group(8192) == (512,)
    assert made.pool.block_bytes() == 16 * (1152 + ROW)


GIB_64 = 64 * 2**30
