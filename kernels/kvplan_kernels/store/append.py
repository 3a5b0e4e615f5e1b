"""Quantise and append: new K and V rows go to their pages in one launch, at any offset, one token or many.

Loads rows `(B, T, HKV, D)` of fp16, bf16 or fp32; stores codes and row scales where the page table says, `(page, head,
slot, items)`. One program per (tile of tokens, K or V and head, sequence). Codes are bit-exact with the reference
codec: scales are rounded to their storage first, divisions are correctly rounded, halves go to even.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from kvplan_kernels.cache import Cache
from kvplan_kernels.codecs.block_tiles import full_scale, scale_byte
from kvplan_kernels.codecs.convert import round_code, round_to, to_fp32
from kvplan_kernels.codecs.limits import check_kernel, grid_of
from kvplan_kernels.codecs.rotation import rotate
from kvplan_kernels.codecs.rows import code_offset, meta_offset
from kvplan_kernels.store.door import check_append, code_bits, meta_bits

# Tokens per program of a bulk write; 32 rows of 128 channels are one coalesced 4 KiB run of codes.
TILE_TOKENS = 32
# Where each row is read field by field: 32 tokens then take 128 registers and spill.
PLANAR_TILE_TOKENS = 16


@triton.jit
def _append_kernel(
    p_k, p_v, p_k_codes, p_v_codes, p_k_meta, p_v_meta, p_k_scale, p_v_scale, p_k_zero, p_v_zero,
    p_k_high, p_v_high, p_table, p_lengths, p_counts, p_saturated,
    stride_kb, stride_kt, stride_kh, stride_vb, stride_vt, stride_vh, num_tokens, max_pages,
    K: tl.constexpr, V: tl.constexpr, KG: tl.constexpr, VG: tl.constexpr,
    HKV: tl.constexpr, PAGE: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    i_side = tl.program_id(1) // HKV
    i_head = tl.program_id(1) % HKV
    i_seq = tl.program_id(2).to(tl.int64)
    count = num_tokens
    if p_counts is not None:
        count = tl.minimum(tl.load(p_counts + i_seq), num_tokens)
    # (TILE,)
    o_token = tl.program_id(0) * TILE + tl.arange(0, TILE)
    position = tl.load(p_lengths + i_seq) + o_token
    m_token = (o_token < count) & (position < max_pages * PAGE)
    page = tl.load(p_table + i_seq * max_pages + position // PAGE, mask=m_token, other=0).to(tl.int64)
    o_part, o_slot = page * HKV + i_head, position % PAGE
    if i_side == 0:
        b_x = p_k + i_seq * stride_kb + i_head.to(tl.int64) * stride_kh
        _write_rows(b_x, stride_kt, o_token, o_part, o_slot, m_token, i_head, p_k_codes, p_k_high, p_k_meta, p_k_scale,
                    p_k_zero, p_saturated, K, KG, PAGE)  # fmt: skip
    else:
        b_x = p_v + i_seq * stride_vb + i_head.to(tl.int64) * stride_vh
        if p_saturated is not None:
            p_saturated += HKV
        _write_rows(b_x, stride_vt, o_token, o_part, o_slot, m_token, i_head, p_v_codes, p_v_high, p_v_meta, p_v_scale,
                    p_v_zero, p_saturated, V, VG, PAGE)  # fmt: skip


@triton.jit
def _write_rows(
    p_x, stride_t, o_token, o_part, o_slot, m_token, i_head, p_codes, p_high, p_meta, p_scale, p_zero, p_saturated,
    L: tl.constexpr, G: tl.constexpr, PAGE: tl.constexpr,
):  # fmt: skip
    """Encode the rows of one tile of one head, one group of channels that share a scale after the other."""
    GROUPS: tl.constexpr = G.groups
    WIDTH: tl.constexpr = G.width
    WIDE: tl.constexpr = G.tile
    STORAGE: tl.constexpr = L.number
    PLANAR: tl.constexpr = L.planar
    o_code, o_meta = code_offset(o_part, o_slot, L, PAGE), meta_offset(o_part, o_slot, L, PAGE)
    scales = ()
    for i_group in tl.static_range(GROUPS):
        o_channel = i_group * WIDTH + tl.arange(0, WIDE)
        # (TILE, WIDE)
        m = m_token[:, None] & (tl.arange(0, WIDE) < WIDTH)[None, :]
        x = tl.load(p_x + o_token.to(tl.int64)[:, None] * stride_t + o_channel[None, :], mask=m, other=0.0)
        p_out = p_codes + o_code[:, None] + o_channel[None, :]
        if L.quantised:
            x = to_number(x)
            if L.has_row_scale:
                scale, zero = _row_scale(x, m, p_meta + o_meta + i_group, p_scale, m_token, L, G)
                if PLANAR:
                    scales = scales + ((scale, zero),)
                else:
                    tl.store(p_out, _row_codes(x, m, scale, zero, i_head, p_saturated, L, G), mask=m)
            elif not PLANAR:
                tl.store(p_out, _encode_static(x, m, o_channel, i_head, p_scale, p_zero, p_saturated, L, G), mask=m)
        elif p_out.dtype.element_ty == x.dtype:
            tl.store(p_out, x, mask=m)
        else:
            tl.store(p_out, round_to(to_fp32(x), STORAGE), mask=m)
    if PLANAR:
        _write_words(p_x, stride_t, o_token, o_code, m_token, i_head, p_codes, scales, p_scale, p_zero, p_saturated,
                     L.stripe_words, L.words, 0, L.field_bits, L, G)  # fmt: skip
        if L.two_parts:
            o_high = (o_part * PAGE + o_slot) * L.high_words
            _write_words(p_x, stride_t, o_token, o_high, m_token, i_head, p_high, scales, p_scale, p_zero, None,
                         L.high_stripe_words, L.high_words, L.field_bits, 1, L, G)  # fmt: skip


@triton.jit
def _write_words(
    p_x, stride_t, o_token, o_code, m_token, i_head, p_codes, scales, p_scale, p_zero, p_saturated,
    STRIPE: tl.constexpr, WORDS: tl.constexpr, FIRST: tl.constexpr, BITS: tl.constexpr,
    L: tl.constexpr, G: tl.constexpr,
):  # fmt: skip
    """Codes below 8 bits: the channels of one field after the other are read again and put into their words.

    Of each code the BITS from bit FIRST on are written, into WORDS words a row. `scales` holds (scale, zero) of each
    group, fp32 (TILE,); it is empty for static formats.
    """
    STRIPES: tl.constexpr = WORDS // STRIPE
    FIELDS: tl.constexpr = 16 // BITS
    WIDTH: tl.constexpr = G.width
    o_word = tl.arange(0, triton.next_power_of_2(STRIPE))
    m = m_token[:, None] & (o_word < STRIPE)[None, :]
    for i_stripe in tl.static_range(STRIPES):
        # (TILE, STRIPE padded)
        words = tl.zeros(m.shape, tl.int32)
        for j in tl.static_range(FIELDS):
            o_channel = j * WORDS + i_stripe * STRIPE + o_word
            p_channel = p_x + o_token.to(tl.int64)[:, None] * stride_t + o_channel[None, :]
            x = to_number(tl.load(p_channel, mask=m, other=0.0))
            if L.has_row_scale:
                group = scales[(j * WORDS + i_stripe * STRIPE) // WIDTH]
                code = _row_codes(x, m, group[0], group[1], i_head, p_saturated, L, G)
            else:
                code = _encode_static(x, m, o_channel, i_head, p_scale, p_zero, p_saturated, L, G)
            whole = code.to(tl.int32) + G.excess
            if L.two_parts:
                whole = (whole >> FIRST) & ((1 << BITS) - 1)
            words |= whole << (BITS * j)
        p_out = p_codes + o_code[:, None] + (i_stripe * STRIPE + o_word)[None, :]
        tl.store(p_out, words.to(tl.int16), mask=m)


@triton.jit
def to_number(x):
    """Rows in fp32, NaN as 0."""
    x = to_fp32(x)
    return tl.where(x == x, x, 0.0)


@triton.jit
def _row_scale(x, m, p_meta, p_global, m_token, L: tl.constexpr, G: tl.constexpr):
    """Scale and zero of each row from the row itself, stored; returns what was stored as fp32, (TILE,) each."""
    STORAGE: tl.constexpr = L.meta_storage
    if L.asym:
        # + 0.0 makes -0 into 0: which of the two is the minimum depends on the order of reduction.
        low = tl.where(m_token, tl.min(tl.where(m, x, float("inf")), 1), 0.0) + 0.0
        high = tl.where(m_token, tl.max(tl.where(m, x, float("-inf")), 1), 0.0)
        zero = round_to(tl.minimum(tl.maximum(low, -G.zero_max), G.zero_max), STORAGE)
        tl.store(p_meta + L.zero_at, zero, mask=m_token)
        zero = to_fp32(zero)
        # A row of one infinity has no range: inf - inf, and devices differ in what a minimum makes of NaN.
        span = tl.where(high == low, 0.0, high - low)
    else:
        span = tl.max(tl.abs(x), 1)
        zero = tl.zeros(span.shape, tl.float32)
    if L.meta_bits == 8:
        byte = scale_byte(span, p_global, L, G)
        tl.store(p_meta + L.scale_at, byte, mask=m_token)
        return full_scale(byte, p_global, L), zero
    else:
        scale = tl.div_rn(span, tl.full(span.shape, G.divisor, tl.float32))
        scale = round_to(tl.minimum(tl.maximum(scale, G.scale_min), G.scale_max), STORAGE)
        tl.store(p_meta + L.scale_at, scale, mask=m_token)
        return to_fp32(scale), zero


@triton.jit
def _row_codes(x, m, scale, zero, i_head, p_saturated, L: tl.constexpr, G: tl.constexpr):
    """Codes (TILE, WIDE) of rows with the scale and zero that were stored."""
    if L.asym:
        x = x - zero[:, None]
    q = tl.div_rn(x, tl.broadcast_to(scale[:, None], x.shape))
    if L.has_global and p_saturated is not None:
        _count_clipped(q, m, p_saturated + i_head, G)
    return round_code(q, G)


@triton.jit
def _count_clipped(q, m, p_count, G: tl.constexpr):
    """Add the values more than half a step beyond the last code."""
    clipped = m & ((q < G.clip_low) | (q > G.clip_high))
    total = tl.sum(tl.sum(clipped.to(tl.int32), 1), 0)
    if total > 0:
        tl.atomic_add(p_count, total.to(tl.int64))


@triton.jit
def _encode_static(x, m, o_channel, i_head, p_scale, p_zero, p_saturated, L: tl.constexpr, G: tl.constexpr):
    """Codes (TILE, WIDE) with the layer's scales; clipped values are counted per head."""
    ITEMS: tl.constexpr = L.static_items
    o_static = (o_channel if ITEMS > 1 else o_channel * 0) + (i_head * ITEMS if L.static_per_head else 0)
    # Channels beyond the row read a scale that exists, so that nothing divides by 0.
    o_static = tl.where(o_channel < L.dim, o_static, 0)
    if L.asym:
        x = x - to_fp32(tl.load(p_zero + o_static))[None, :]
    q = tl.div_rn(x, tl.broadcast_to(to_fp32(tl.load(p_scale + o_static))[None, :], x.shape))
    if p_saturated is not None:
        _count_clipped(q, m, p_saturated + i_head, G)
    return round_code(q, G)


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
        max_length: upper bound of `cache.lengths` after the write, refused if the page table cannot hold it. Without
            it only T is checked, and rows beyond the page table are dropped on the device.
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
    _append_kernel[(triton.cdiv(tokens, constants["TILE"]), 2 * heads, batch)](*args, **constants, num_warps=num_warps)
    cache.lengths.add_(tokens if counts is None else counts.clamp(max=tokens))
    cache.lengths.clamp_(max=cache.page_table.shape[1] * cache.page_size)


def launch_arguments(
    cache: Cache, k: Tensor, v: Tensor, counts: Tensor | None, saturated: Tensor | None
) -> tuple[list[Any], dict[str, Any], int]:
    """(arguments, constexprs, num_warps) of the kernel; also what the ahead-of-time compile tests compile."""
    planar = any(cache.layout.view(role).planar for role in ("k", "v"))
    tile = min(PLANAR_TILE_TOKENS if planar else TILE_TOKENS, triton.next_power_of_2(k.shape[1]))
    args = [
        k, v, code_bits(cache, "k"), code_bits(cache, "v"), meta_bits(cache, "k"), meta_bits(cache, "v"),
        cache.layer_scale("k"), cache.layer_scale("v"), cache.static("k", "zero"), cache.static("v", "zero"),
        cache.high("k"), cache.high("v"), cache.page_table, cache.lengths, counts, saturated,
        *k.stride()[:3], *v.stride()[:3], k.shape[1], cache.page_table.shape[1],
    ]  # fmt: skip
    k_view, v_view = cache.layout.view("k"), cache.layout.view("v")
    constants = {"K": k_view, "V": v_view, "KG": grid_of(k_view), "VG": grid_of(v_view)}
    constants |= {"HKV": cache.layout.heads, "PAGE": cache.page_size, "TILE": tile}
    return args, constants, 4 if tile > 4 else 1
