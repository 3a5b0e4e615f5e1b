"""Tile functions of the write kernel: rows of one head to codes and scales in a page.

Rows come from the new ones, in a format with a residual also from the ring that waited (`load_rows`). Codes are
bit-exact with the reference codec: scales are rounded to their storage first, divisions are correctly rounded, halves
go to even.
"""

import triton
import triton.language as tl

from kvplan_kernels.codecs.convert import round_code, round_to, to_fp32


@triton.jit
def write_rows(
    p_x, stride_t, o_token, p_ring, o_slot, o_row, m_token, i_head, p_codes, p_meta, p_scale, p_zero, p_saturated,
    L: tl.constexpr, G: tl.constexpr,
):  # fmt: skip
    """Encode the rows of one tile of one head, one group of channels that share a scale after the other.

    Row `o_token` of the new ones, or slot `o_slot` of the ring where that is negative, goes to row `o_row` of the
    pages.
    """
    GROUPS: tl.constexpr = G.groups
    WIDTH: tl.constexpr = G.width
    WIDE: tl.constexpr = G.tile
    DIM: tl.constexpr = L.dim
    STORAGE: tl.constexpr = L.number
    PLANAR: tl.constexpr = L.planar
    scales = ()
    for i_group in tl.static_range(GROUPS):
        o_channel = i_group * WIDTH + tl.arange(0, WIDE)
        # (TILE, WIDE)
        m = m_token[:, None] & (tl.arange(0, WIDE) < WIDTH)[None, :]
        x = load_rows(p_x, stride_t, o_token, p_ring, o_slot, m, o_channel, L)
        p_out = p_codes + o_row[:, None] * DIM + o_channel[None, :]
        if L.quantised:
            x = to_number(x)
            if L.has_row_scale:
                scale, zero = _scale(x, m, p_meta + o_row * L.meta_stride + i_group, m_token, 1, L, G)
                if PLANAR:
                    scales = scales + ((scale, zero),)
                else:
                    tl.store(p_out, _codes(x, scale, zero, 1, L, G), mask=m)
            elif not PLANAR:
                tl.store(p_out, _encode_static(x, m, o_channel, i_head, p_scale, p_zero, p_saturated, L, G), mask=m)
        elif p_out.dtype.element_ty == x.dtype:
            tl.store(p_out, x, mask=m)
        else:
            tl.store(p_out, round_to(to_fp32(x), STORAGE), mask=m)
    if PLANAR:
        write_words(
            p_x, stride_t, o_token, p_ring, o_slot, o_row, m_token, i_head, p_codes, scales, p_scale, p_zero,
            p_saturated, L, G,
        )  # fmt: skip


@triton.jit
def write_words(
    p_x, stride_t, o_token, p_ring, o_slot, o_row, m_token, i_head, p_codes, scales, p_scale, p_zero, p_saturated,
    L: tl.constexpr, G: tl.constexpr,
):  # fmt: skip
    """Codes below 8 bits: the channels of one field after the other are read again and put into their words.

    `scales` holds (scale, zero) of each group, fp32 (TILE,); it is empty for static formats.
    """
    WORDS: tl.constexpr = L.words
    STRIPES: tl.constexpr = L.stripes
    STRIPE: tl.constexpr = L.stripe_words
    FIELDS: tl.constexpr = L.fields_per_word
    WIDTH: tl.constexpr = G.width
    o_word = tl.arange(0, triton.next_power_of_2(STRIPE))
    m = m_token[:, None] & (o_word < STRIPE)[None, :]
    for i_stripe in tl.static_range(STRIPES):
        # (TILE, STRIPE padded)
        words = tl.zeros(m.shape, tl.int32)
        for j in tl.static_range(FIELDS):
            o_channel = j * WORDS + i_stripe * STRIPE + o_word
            x = to_number(load_rows(p_x, stride_t, o_token, p_ring, o_slot, m, o_channel, L))
            if L.has_row_scale:
                group = scales[(j * WORDS + i_stripe * STRIPE) // WIDTH]
                code = _codes(x, group[0], group[1], 1, L, G)
            else:
                code = _encode_static(x, m, o_channel, i_head, p_scale, p_zero, p_saturated, L, G)
            words |= (code.to(tl.int32) + G.excess) << (L.bits * j)
        p_out = p_codes + o_row[:, None] * WORDS + (i_stripe * STRIPE + o_word)[None, :]
        tl.store(p_out, words.to(tl.int16), mask=m)


@triton.jit
def write_group(
    p_x, stride_t, o_token, p_ring, o_slot, row, m_token, p_codes, p_meta, L: tl.constexpr, G: tl.constexpr
):  # fmt: skip
    """Encode one group of L.group tokens of one head with a scale per channel, G.chunk channels or words at a time.

    `row`: of the pages, where the group begins; `m_token` masks the padding of the group to a power of two.
    """
    WORDS: tl.constexpr = L.words if L.planar else L.dim
    FIELDS: tl.constexpr = L.fields_per_word if L.planar else 1
    CHUNK: tl.constexpr = G.chunk
    o_row = row + tl.arange(0, o_token.shape[0])
    p_slot = p_meta + row // L.group * L.meta_stride
    for first in range(0, WORDS, CHUNK):
        o_word = first + tl.arange(0, CHUNK)
        m_word = o_word < WORDS
        # (group padded, CHUNK)
        m = m_token[:, None] & m_word[None, :]
        words = tl.zeros(m.shape, tl.int32)
        for j in tl.static_range(FIELDS):
            o_channel = j * WORDS + o_word
            x = to_number(load_rows(p_x, stride_t, o_token, p_ring, o_slot, m, o_channel, L))
            scale, zero = _scale(x, m, p_slot + o_channel, m_word, 0, L, G)
            code = _codes(x, scale, zero, 0, L, G).to(tl.int32)
            words |= (code + G.excess) << (L.bits * j) if L.planar else code
        p_out = p_codes + o_row[:, None] * WORDS + o_word[None, :]
        tl.store(p_out, words.to(p_codes.dtype.element_ty), mask=m)


@triton.jit
def load_rows(p_x, stride_t, o_token, p_ring, o_slot, m, o_channel, L: tl.constexpr):
    """Values (tokens, channels) of the new rows `o_token`, or of the ring's slots `o_slot` where that is negative.

    New rows are rounded to the ring's dtype, as if each had waited there.
    """
    p_new = p_x + o_token.to(tl.int64)[:, None] * stride_t + o_channel[None, :]
    STORAGE: tl.constexpr = L.recent_storage
    if L.recent:
        waited = (o_token < 0)[:, None]
        x = to_fp32(round_to(to_fp32(tl.load(p_new, mask=m & (o_token >= 0)[:, None], other=0.0)), STORAGE))
        old = tl.load(p_ring + o_slot[:, None] * L.dim + o_channel[None, :], mask=m & waited, other=0.0)
        return tl.where(waited, to_fp32(old), x)
    else:
        return tl.load(p_new, mask=m, other=0.0)


@triton.jit
def copy_rows(p_x, stride_t, o_token, p_ring, o_slot, m_token, L: tl.constexpr, WIDE: tl.constexpr):
    """New rows `o_token` into the ring's slots `o_slot`."""
    STORAGE: tl.constexpr = L.recent_storage
    o_channel = tl.arange(0, WIDE)
    m = m_token[:, None] & (o_channel < L.dim)[None, :]
    x = tl.load(p_x + o_token.to(tl.int64)[:, None] * stride_t + o_channel[None, :], mask=m, other=0.0)
    if x.dtype != p_ring.dtype.element_ty:
        x = round_to(to_fp32(x), STORAGE)
    tl.store(p_ring + o_slot[:, None] * L.dim + o_channel[None, :], x, mask=m)


@triton.jit
def to_number(x):
    """Rows in fp32, NaN as 0."""
    x = to_fp32(x)
    return tl.where(x == x, x, 0.0)


@triton.jit
def _scale(x, m, p_meta, m_kept, AXIS: tl.constexpr, L: tl.constexpr, G: tl.constexpr):
    """Scale and zero from the values along AXIS that share them, stored; returns what was stored as fp32.

    `m_kept`: of those scales, which exist.
    """
    STORAGE: tl.constexpr = L.meta_storage
    if L.asym:
        # + 0.0 makes -0 into 0: which of the two is the minimum depends on the order of reduction.
        low = tl.where(m_kept, tl.min(tl.where(m, x, float("inf")), AXIS), 0.0) + 0.0
        high = tl.where(m_kept, tl.max(tl.where(m, x, float("-inf")), AXIS), 0.0)
        zero = round_to(tl.minimum(tl.maximum(low, -G.zero_max), G.zero_max), STORAGE)
        tl.store(p_meta + L.zero_at, zero, mask=m_kept)
        zero = to_fp32(zero)
        # Values that are all one infinity have no range: inf - inf, and devices differ in a minimum of NaN.
        span = tl.where(high == low, 0.0, high - low)
    else:
        span = tl.max(tl.abs(x), AXIS)
        zero = tl.zeros(span.shape, tl.float32)
    scale = tl.div_rn(span, tl.full(span.shape, G.divisor, tl.float32))
    scale = round_to(tl.minimum(tl.maximum(scale, G.scale_min), G.scale_max), STORAGE)
    tl.store(p_meta + L.scale_at, scale, mask=m_kept)
    return to_fp32(scale), zero


@triton.jit
def _codes(x, scale, zero, AXIS: tl.constexpr, L: tl.constexpr, G: tl.constexpr):
    """Codes of `x` with the scale and zero that were stored for what lies along AXIS."""
    if L.asym:
        x = x - tl.expand_dims(zero, AXIS)
    return round_code(tl.div_rn(x, tl.broadcast_to(tl.expand_dims(scale, AXIS), x.shape)), G)


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
        clipped = m & ((q < G.clip_low) | (q > G.clip_high))
        total = tl.sum(tl.sum(clipped.to(tl.int32), 1), 0)
        if total > 0:
            tl.atomic_add(p_saturated + i_head, total.to(tl.int64))
    return round_code(q, G)
