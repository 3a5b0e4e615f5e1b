"""The work list: tiles of all requests in one row, cut into equal ranges, one per program.

Tiles are ordered by request, KV head, block of query columns (mode.py), tile. With H heads times blocks, request b owns
tiles `H * starts[b]` to `H * starts[b + 1]`; program i of P takes tiles `[i * TT // P, (i + 1) * TT // P)`. In a format
with a residual the tiles of a head are first those of packed values, BN tokens each, then short ones of values that
wait: 16 rows of 16 bit are about as many bytes. Everything that depends on lengths stays on the device, so one CUDA
graph serves all lengths, and the list is computed once per step for all layers.
"""

import torch
import triton
import triton.language as tl

from kvplan.formats.layout import TensorView
from kvplan_kernels.codecs.split import packed_tokens
from kvplan_kernels.dialect import INTERPRET, loop_bound

SCAN = 128
# Tokens of a tile of waiting rows: the least a matrix step takes, so that they divide among many programs.
RECENT_TOKENS = tl.constexpr(16)


@triton.jit
def packed_tiles(length, BN: tl.constexpr, V: tl.constexpr):
    """Tiles of one head that hold packed values."""
    return (packed_tokens(length, V) + BN - 1) // BN


@triton.jit
def first_tile(length, reach, BN: tl.constexpr, V: tl.constexpr, WINDOWED: tl.constexpr):
    """First tile of one head that the window of any query reaches, at most the number of packed ones."""
    if WINDOWED:
        return tl.minimum(tl.maximum(length - reach, 0) // BN, packed_tiles(length, BN, V))
    else:
        return 0


@triton.jit
def count_tiles(length, reach, BN: tl.constexpr, V: tl.constexpr, WINDOWED: tl.constexpr):
    """Tiles of one head in all; the first one of waiting values may begin with packed ones."""
    tiles = packed_tiles(length, BN, V) - first_tile(length, reach, BN, V, WINDOWED)
    if V.recent:
        packed = packed_tokens(length, V)
        waiting = (length + RECENT_TOKENS - 1) // RECENT_TOKENS - packed // RECENT_TOKENS
        tiles += tl.where(packed < length, waiting, 0)
    return tiles


@triton.jit(do_not_specialize=["num_requests", "reach"])
def tile_starts_kernel(
    LENGTHS, TILE_STARTS, num_requests, reach,
    V: tl.constexpr, BN: tl.constexpr, WINDOWED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Exclusive prefix sum of the tiles of a head: LENGTHS [B] -> TILE_STARTS [B + 1], int32."""
    o_block = tl.arange(0, BLOCK)
    carry = 0
    tl.store(TILE_STARTS, 0)
    for first in range(0, loop_bound(num_requests), BLOCK):
        m_request = first + o_block < num_requests
        b_length = tl.load(LENGTHS + first + o_block, mask=m_request, other=0)
        b_tiles = count_tiles(b_length, reach, BN, V, WINDOWED)
        tl.store(TILE_STARTS + 1 + first + o_block, carry + tl.cumsum(b_tiles, 0), mask=m_request)
        carry += tl.sum(b_tiles, 0)


@triton.jit
def busy_programs(total):
    """Programs that get work: never more than tiles, so that each of them owns at least one."""
    return tl.minimum(tl.num_programs(0), total)


@triton.jit
def find_request(TILE_STARTS, LENGTHS, num_requests, tile, BLOCK: tl.constexpr):
    """(request b with TILE_STARTS[b] <= tile < TILE_STARTS[b + 1], TILE_STARTS[b], its length).

    Reads all of them at once: waiting for the request before its length is read would cost as much as a search.
    """
    o_block = tl.arange(0, BLOCK)
    request, start, length = 0, 0, 0
    for first in range(0, loop_bound(num_requests), BLOCK):
        o_request = first + o_block
        m_request = o_request < num_requests
        b_starts = tl.load(TILE_STARTS + o_request, mask=m_request, other=2147483647)
        b_ends = tl.load(TILE_STARTS + 1 + o_request, mask=m_request, other=0)
        b_lengths = tl.load(LENGTHS + o_request, mask=m_request, other=0)
        # Requests without tiles begin where they end.
        mine = (b_starts <= tile) & (tile < b_ends)
        request += tl.sum(tl.where(mine, o_request, 0), 0)
        start += tl.sum(tl.where(mine, b_starts, 0), 0)
        length += tl.sum(tl.where(mine, b_lengths, 0), 0)
    return request, start, length


@triton.jit
def next_page(p_table, i_page, i_tile, end, PAGE: tl.constexpr, BN: tl.constexpr):
    """Page of tile `i_tile`, the one before it lying in `i_page`; tile `end` and later ones do not count.

    The table is read only where a page begins: whatever else a warp waits for meanwhile would wait for that, too.
    """
    p_page = p_table + tl.minimum(i_tile, end - 1) * BN // PAGE
    if BN == PAGE or INTERPRET:
        return tl.load(p_page)
    else:
        # A conditional load that the compiler can neither pipeline nor split the loop for.
        return tl.inline_asm_elementwise(
            "{ .reg .pred p; setp.eq.s32 p, $3, 0; mov.b32 $0, $2; @p ld.global.b32 $0, [$1]; }",
            "=&r,l,r,r",
            [p_page, i_page, i_tile * BN % PAGE],
            dtype=tl.int32,
            # The table does not change while a kernel reads it.
            is_pure=True,
            pack=1,
        )


def tile_starts(
    lengths: torch.Tensor,
    block_tokens: int,
    values: TensorView,
    out: torch.Tensor | None = None,
    reach: int | None = None,
) -> torch.Tensor:
    """Tiles before each request.

    Args:
        lengths: int32 `(B,)`, tokens stored.
        block_tokens: tokens of a tile.
        values: `layout.view("v")`, whose residual has tiles of its own.
        out: int32 `(B + 1,)`.
        reach: `window_reach` of the launch: tiles left of every window are left out.

    Returns:
        int32 `(B + 1,)` on the device of `lengths`; nothing is copied to the host.
    """
    if out is None:
        out = torch.empty(lengths.shape[0] + 1, dtype=torch.int32, device=lengths.device)
    tile_starts_kernel[(1,)](
        lengths, out, lengths.shape[0], reach or 0,
        V=values, BN=block_tokens, WINDOWED=reach is not None, BLOCK=SCAN, num_warps=1,
    )  # fmt: skip
    return out
