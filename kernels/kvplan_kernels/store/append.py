"""Quantise and append: new K and V rows go to their pages in one launch, at any offset, one token or many.

Loads rows `(B, T, HKV, D)` of fp16, bf16 or fp32; stores codes and row scales where the page table says, `(page, head,
slot, items)`. One program per (tile of tokens, K or V and head, sequence). In a format with a residual the new rows go
to the ring `(B, HKV, capacity, D)`, and those that its split law releases are packed (ring.py).
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from kvplan.units import cdiv
from kvplan_kernels.cache import Cache
from kvplan_kernels.codecs.limits import check_kernel, grid_of
from kvplan_kernels.codecs.rotation import rotate
from kvplan_kernels.store.door import check_append, code_bits, meta_bits
from kvplan_kernels.store.encode import write_rows
from kvplan_kernels.store.ring import append_waiting, units_to_pack

# Tokens per program of a bulk write; 32 rows of 128 channels are one coalesced 4 KiB run of codes.
TILE_TOKENS = 32
# Where each row is read field by field, or rotated and so fp32: 32 tokens then take 128 registers and spill.
WIDE_TILE_TOKENS = 16


@triton.jit
def _append_kernel(
    p_k, p_v, p_k_codes, p_v_codes, p_k_meta, p_v_meta, p_k_scale, p_v_scale, p_k_zero, p_v_zero,
    p_k_high, p_v_high, p_k_ring, p_v_ring, p_table, p_lengths, p_counts, p_saturated,
    stride_kb, stride_kt, stride_kh, stride_vb, stride_vt, stride_vh, num_tokens, max_pages, max_tokens,
    K: tl.constexpr, V: tl.constexpr, KG: tl.constexpr, VG: tl.constexpr,
    HKV: tl.constexpr, PAGE: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    i_side = tl.program_id(1) // HKV
    i_head = tl.program_id(1) % HKV
    i_seq = tl.program_id(2).to(tl.int64)
    count = num_tokens
    if p_counts is not None:
        count = tl.minimum(tl.load(p_counts + i_seq), num_tokens)
    start = tl.load(p_lengths + i_seq)
    end = tl.minimum(start + tl.maximum(count, 0), max_tokens)
    p_pages = p_table + i_seq * max_pages
    # Where new rows go that need not wait. (TILE,)
    o_token = tl.program_id(0) * TILE + tl.arange(0, TILE)
    position = start + o_token
    m_token = (o_token < count) & (position < max_pages * PAGE)
    page = tl.load(p_pages + position // PAGE, mask=m_token, other=0).to(tl.int64)
    o_row = (page * HKV + i_head) * PAGE + position % PAGE
    # Two names: rotated rows are fp32 whatever the other side is.
    if i_side == 0:
        b_k = p_k + i_seq * stride_kb + i_head.to(tl.int64) * stride_kh
        if K.recent:
            append_waiting(b_k, stride_kt, start, end, i_seq, i_head, p_pages, p_k_codes, p_k_meta, p_k_ring,
                           K, KG, HKV, PAGE, TILE)  # fmt: skip
        else:
            write_rows(b_k, stride_kt, o_token, None, o_row, o_row, m_token, i_head, p_k_codes, p_k_high, p_k_meta,
                       p_k_scale, p_k_zero, p_saturated, K, KG, PAGE)  # fmt: skip
    else:
        b_v = p_v + i_seq * stride_vb + i_head.to(tl.int64) * stride_vh
        if p_saturated is not None:
            p_saturated += HKV
        if V.recent:
            append_waiting(b_v, stride_vt, start, end, i_seq, i_head, p_pages, p_v_codes, p_v_meta, p_v_ring,
                           V, VG, HKV, PAGE, TILE)  # fmt: skip
        else:
            write_rows(b_v, stride_vt, o_token, None, o_row, o_row, m_token, i_head, p_v_codes, p_v_high, p_v_meta,
                       p_v_scale, p_v_zero, p_saturated, V, VG, PAGE)  # fmt: skip


def append(
    cache: Cache,
    k: Tensor,
    v: Tensor,
    *,
    counts: Tensor | None = None,
    max_length: int | None = None,
    saturated: Tensor | None = None,
) -> None:
    """Quantise new rows into the cache behind each sequence's stored tokens, and advance `cache.lengths`.

    Static formats read their scales from the cache's layer planes (see `store.static`). Rows of `rot` formats are
    rotated first, into an fp32 copy that lives as long as the call. Nothing synchronises with the
    host, so the call can be captured in a CUDA graph.

    Args:
        k, v: `(B, T, HKV, Dk)` and `(B, T, HKV, Dv)`, fp16, bf16 or fp32, channels contiguous.
        counts: int32 `(B,)`, rows of each sequence that are real (the first ones); default all T.
        max_length: upper bound of `cache.lengths` after the write, refused if the cache cannot hold it. Without it only
            T is checked, and rows beyond `cache.max_tokens` are dropped on the device.
        saturated: int64 `(2, HKV)`, incremented by the values that static formats, and row scales below a calibrated
            global one, clip; K in row 0, V in row 1.

    Raises:
        UnsupportedError: a format without a write kernel.
        ValueError: shapes, dtypes, strides or capacity that do not fit.
    """
    check_kernel(cache.layout)
    check_append(cache, k, v, counts, max_length, saturated)
    batch, tokens, heads, _ = k.shape
    if tokens == 0 or batch == 0:
        return
    k, v = (rotate(x) if cache.layout.view(role).rot else x for role, x in (("k", k), ("v", v)))
    args, constants, num_warps = launch_arguments(cache, k, v, counts, saturated)
    grid = (num_tiles(cache, tokens, constants["TILE"]), 2 * heads, batch)
    _append_kernel[grid](*args, **constants, num_warps=num_warps)
    cache.lengths.add_(tokens if counts is None else counts.clamp(max=tokens))
    cache.lengths.clamp_(max=cache.max_tokens)


def num_tiles(cache: Cache, tokens: int, tile: int) -> int:
    """Programs along the tokens: enough for the new rows and for all that they may release from a residual."""
    return max(cdiv(tokens, tile), *(units_to_pack(t, tokens, tile) for t in cache.layout.tensors))


def launch_arguments(
    cache: Cache, k: Tensor, v: Tensor, counts: Tensor | None, saturated: Tensor | None
) -> tuple[list[Any], dict[str, Any], int]:
    """(arguments, constexprs, num_warps) of the kernel; also what the ahead-of-time compile tests compile."""
    k_view, v_view = cache.layout.view("k"), cache.layout.view("v")
    tile = WIDE_TILE_TOKENS if any(t.planar or t.rot for t in (k_view, v_view)) else TILE_TOKENS
    if not (k_view.recent or v_view.recent):
        # One token may release many from a residual; without one, a tile holds new tokens only.
        tile = min(tile, triton.next_power_of_2(k.shape[1]))
    args = [
        k, v, code_bits(cache, "k"), code_bits(cache, "v"), meta_bits(cache, "k"), meta_bits(cache, "v"),
        cache.layer_scale("k"), cache.layer_scale("v"), cache.static("k", "zero"), cache.static("v", "zero"),
        cache.high("k"), cache.high("v"), cache.residual("k"), cache.residual("v"),
        cache.page_table, cache.lengths, counts, saturated,
        *k.stride()[:3], *v.stride()[:3], k.shape[1], cache.page_table.shape[1], cache.max_tokens,
    ]  # fmt: skip
    constants = {"K": k_view, "V": v_view, "KG": grid_of(k_view), "VG": grid_of(v_view)}
    constants |= {"HKV": cache.layout.heads, "PAGE": cache.page_size, "TILE": tile}
    return args, constants, 4 if tile > 4 else 1
