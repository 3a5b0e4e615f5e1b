"""One tile of tokens in registers: query planes, scores, softmax step, outputs. Shared by the attention kernels.

Tokens lie on the MMA's M axis and query heads on N: scores are `[BN, HEADS]`, outputs `[words, HEADS]`, one tile per
plane of channels. Both K and V tiles are loaded as `[words, BN]`; other spellings cost the asynchronous copies.
"""

import triton
import triton.language as tl

from kvplan_kernels.codecs.grid_tiles import (
    centre,
    channels,
    load_meta,
    meta_value,
    plane_weight,
    query_plane,
    scale_columns,
    unpack,
)
from kvplan_kernels.dialect import cast, dot

NO_SCORE = tl.constexpr(-1.0e30)
P_SHIFT = tl.constexpr(8.0)


@triton.jit
def attend(
    i_tile, m, l, acc, q, q_sum, k_factor, K_WORDS, V_WORDS, K_META, V_META, i_page, i_head, length,
    o_k, o_v, o_kw, o_vw, o_token, K: tl.constexpr, V: tl.constexpr, HKV: tl.constexpr, PAGE: tl.constexpr,
    BN: tl.constexpr, K_UNIT: tl.constexpr, V_UNIT: tl.constexpr, NATIVE_FP8: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Add one tile of BN tokens to the running softmax: m [HEADS], l [8, HEADS], acc planes [VW, HEADS]."""
    i_token = i_tile * BN
    row = (i_page.to(tl.int64) * HKV + i_head) * PAGE + i_token % PAGE
    m_token = o_token < length - i_token
    k_words = load_stripes(K_WORDS + row * K.words, o_k, o_kw, m_token, K, MASKED)
    k_scales, k_zeros = load_row_meta(K_META, row, o_token, m_token, K, MASKED)
    v_words = load_stripes(V_WORDS + row * V.words, o_v, o_vw, m_token, V, MASKED)
    v_scales, v_zeros = load_row_meta(V_META, row, o_token, m_token, V, MASKED)

    k_meta = load_meta_rows(K_META, row, o_token, m_token, K, MASKED)
    v_meta = load_meta_rows(V_META, row, o_token, m_token, V, MASKED)

    k = unpack_stripes(k_words, K, NATIVE_FP8)
    s = scores(k, q, q_sum, k_factor, k_scales, k_zeros, k_meta, o_token, K)
    if MASKED:
        s = tl.where(m_token[:, None], s, NO_SCORE)

    m_new = tl.maximum(m, tl.max(s, 0))
    p = tl.math.exp2(s - (m_new - P_SHIFT)[None, :])
    keep = tl.math.exp2(m - m_new)
    # Eight partial sums per head, so that the loop needs no exchange between threads for l.
    l = l * keep[None, :] + tl.sum(p.reshape(BN // 8, 8, m.shape[0]), 0)

    v = unpack_stripes(v_words, V, NATIVE_FP8)
    acc = outputs(v, acc, p, keep, v_scales, v_zeros, v_meta, o_token, V, V_UNIT)
    return m_new, l, acc


@triton.jit
def scores(k, q, q_sum, k_factor, k_scales, k_zeros, k_meta, o_token, K: tl.constexpr):
    """Scores [BN, HEADS] in base 2, group by group of channels that share a scale.

    `q_sum`: per group, [HEADS]; `k_scales`, `k_zeros`: per group, words of metadata [BN].
    """
    GROUPS: tl.constexpr = K.groups
    STRIPES: tl.constexpr = K.stripes
    PLANES: tl.constexpr = K.fields_per_word
    total = tl.zeros([o_token.shape[0], q_sum[0].shape[-1]], tl.float32)
    for g in tl.static_range(GROUPS):
        s = tl.zeros(total.shape, tl.float32)
        for i_stripe in tl.static_range(STRIPES):
            for j in tl.static_range(PLANES):
                if (j * K.field_step + i_stripe * K.stripe_step) // K.group_width == g:
                    s = dot(tl.trans(k[i_stripe * PLANES + j]), q[i_stripe * PLANES + j], s)
        if K.has_row_scale:
            b_scale = meta_value(k_scales[g], o_token, K.scale_at + g, K).to(tl.float32)
            s = s * (b_scale * k_factor)[:, None]
            if K.meta_dot:
                if g == 0:
                    s += dot(k_meta, q_sum[1], dot(k_meta, q_sum[0], tl.zeros(total.shape, tl.float32)))
            elif K.asym:
                s += meta_value(k_zeros[g], o_token, K.zero_at + g, K).to(tl.float32)[:, None] * q_sum[g][None, :]
            elif K.is_int:
                s -= (b_scale * centre(K))[:, None] * q_sum[g][None, :]
            total = s if g == 0 else total + s
        else:
            # A static zero, or the centre of static codes, moves all scores of a head alike: softmax ignores it.
            total = s * k_factor
    return total


@triton.jit
def outputs(v, acc, p, keep, v_scales, v_zeros, v_meta, o_token, V: tl.constexpr, V_UNIT: tl.constexpr):
    """Planes [VW, HEADS] of the output after one more tile of probabilities `p` [BN, HEADS].

    Integer codes are centred tile by tile, or the matrix unit's truncation would drift.
    """
    GROUPS: tl.constexpr = V.groups
    STRIPES: tl.constexpr = V.stripes
    PLANES: tl.constexpr = V.fields_per_word
    weighted = ()
    shifts = ()
    if V.meta_dot:
        b_shift = dot(tl.trans(v_meta), p.to(tl.float16), tl.zeros([v_meta.shape[1], p.shape[1]], tl.float32))
        o_item = tl.arange(0, v_meta.shape[1])
    for g in tl.static_range(GROUPS):
        if V.has_row_scale:
            b_p = scale_columns(p, meta_value(v_scales[g], o_token, V.scale_at + g, V))
        elif V.number == "bf16":
            b_p = cast(p, tl.bfloat16)
        else:
            b_p = p.to(tl.float16)
        weighted = weighted + (b_p,)
        if V.meta_dot:
            b_one = tl.sum(tl.where((o_item == V.shift_at + g)[:, None], b_shift, 0.0), 0)
            shifts = shifts + (b_one if V.asym else b_one * -centre(V),)
        elif V.is_int:
            if V.has_row_scale and V.asym:
                b_zero = meta_value(v_zeros[g], o_token, V.zero_at + g, V).to(tl.float32)
                shifts = shifts + (tl.sum(p * b_zero[:, None], 0),)
            else:
                shifts = shifts + (tl.sum(b_p.to(tl.float32), 0) * -(2.0 ** (V.bits - 1)),)
    new = ()
    for i_stripe in tl.static_range(STRIPES):
        for j in tl.static_range(PLANES):
            start = acc[i_stripe * PLANES + j] * keep[None, :]
            if V.is_int:
                start += (
                    shifts[(j * V.field_step + i_stripe * V.stripe_step) // V.group_width]
                    * (plane_weight(j, V) * 2.0**V_UNIT)
                )[None, :]
            new = new + (
                dot(
                    v[i_stripe * PLANES + j],
                    weighted[(j * V.field_step + i_stripe * V.stripe_step) // V.group_width],
                    start,
                ),
            )
    return new


@triton.jit
def load_meta_rows(META, row, o_token, m_token, T: tl.constexpr, MASKED: tl.constexpr):
    """Metadata of the tile's rows, all items [BN, items padded], fp16; 0 where none is needed."""
    if T.meta_dot:
        ITEMS: tl.constexpr = triton.next_power_of_2(T.meta_stride) if T.meta_stride > 16 else 16
        o_item = tl.arange(0, ITEMS)
        p_item = META.to(tl.pointer_type(tl.float16)) + row * T.meta_stride
        p_item += o_item[:, None] + o_token[None, :] * T.meta_stride
        if MASKED:
            m_item = m_token[None, :] & (o_item < T.meta_stride)[:, None]
            return tl.trans(tl.load(p_item, mask=m_item, other=0.0))
        elif T.meta_stride < ITEMS:
            return tl.trans(tl.load(p_item, mask=(o_item < T.meta_stride)[:, None], other=0.0))
        else:
            return tl.trans(tl.load(p_item))
    else:
        return 0


@triton.jit
def shift_queries(q_sum, factor, K: tl.constexpr):
    """(high, low) [items, HEADS], fp16: K's metadata rows times their sum are the zeros' part of the scores."""
    ITEMS: tl.constexpr = triton.next_power_of_2(K.meta_stride) if K.meta_stride > 16 else 16
    GROUPS: tl.constexpr = K.groups
    o_item = tl.arange(0, ITEMS)
    total = tl.zeros([ITEMS, q_sum[0].shape[0]], tl.float32)
    for g in tl.static_range(GROUPS):
        total = tl.where((o_item == K.shift_at + g)[:, None], q_sum[g][None, :] * factor, total)
    if not K.asym:
        total = total * -centre(K)
    high = total.to(tl.float16)
    return high, (total - high.to(tl.float32)).to(tl.float16)


@triton.jit
def word_offsets(T: tl.constexpr, W: tl.constexpr, BN: tl.constexpr):
    """Offsets [W, BN] of a tile's words, from its first. W: words of a row, padded."""
    if T.words == W:
        # One range, reshaped: addresses then differ by constants, which the compiler puts into the copy instructions.
        # As token * words + word it would keep a register pair and two additions for each copy.
        flat = tl.trans(tl.arange(0, BN * W).reshape(BN, W))
        return tl.max_contiguous(tl.multiple_of(flat, (8, 1)), (8, 1))
    else:
        return tl.arange(0, BN)[None, :] * T.words + tl.arange(0, W)[:, None]


@triton.jit
def load_stripes(p_row, o_words, o_word, m_token, T: tl.constexpr, MASKED: tl.constexpr):
    """One tile of words per stripe; a row has several stripes where groups are narrower than planes."""
    STRIPES: tl.constexpr = T.stripes
    tiles = ()
    for i_stripe in tl.static_range(STRIPES):
        tiles = tiles + (load_words(p_row + i_stripe * T.stripe_words, o_words, o_word, m_token, T, MASKED),)
    return tiles


@triton.jit
def load_words(p_row, o_words, o_word, m_token, T: tl.constexpr, MASKED: tl.constexpr):
    """Tile of words [padded words, BN]; padding and rows beyond the length read 0, whatever the page holds there."""
    PADDED: tl.constexpr = o_word.shape[0] != T.stripe_words
    if MASKED and PADDED:
        return tl.load(p_row + o_words, mask=m_token[None, :] & (o_word < T.stripe_words)[:, None], other=0)
    elif MASKED:
        return tl.load(p_row + o_words, mask=m_token[None, :], other=0)
    elif PADDED:
        return tl.load(p_row + o_words, mask=(o_word < T.stripe_words)[:, None], other=0)
    else:
        return tl.load(p_row + o_words)


@triton.jit
def unpack_stripes(tiles, T: tl.constexpr, NATIVE_FP8: tl.constexpr):
    """Planes of all stripes, `stripe * fields_per_word + field`."""
    STRIPES: tl.constexpr = T.stripes
    planes = ()
    for i_stripe in tl.static_range(STRIPES):
        planes = planes + unpack(tiles[i_stripe], T, NATIVE_FP8)
    return planes


@triton.jit
def load_row_meta(META, row, o_token, m_token, T: tl.constexpr, MASKED: tl.constexpr):
    """(scales, zeros): per group the words of metadata [BN] of the tile that begins at `row`; empty without."""
    GROUPS: tl.constexpr = T.groups
    scales = ()
    zeros = ()
    if T.has_row_scale:
        p_meta = META + row * T.meta_stride // (1 if T.meta_storage == "fp32" else 2)
        for g in tl.static_range(GROUPS):
            scales = scales + (load_meta(p_meta, o_token, m_token, T.scale_at + g, T, MASKED),)
        if T.asym and not T.meta_dot:
            for g in tl.static_range(GROUPS):
                zeros = zeros + (load_meta(p_meta, o_token, m_token, T.zero_at + g, T, MASKED),)
    return scales, zeros


@triton.jit
def load_query(p_query, K_SCALE, i_head, K_WORDS, o_word, o_head, K: tl.constexpr, G: tl.constexpr):
    """Query rows of one KV head as planes [words, HEADS] in the compute dtype, divided by a power of two.

    Returns (planes, per group the sum over its channels [HEADS] of the undivided rows, what the scores must be
    multiplied by). The power of two makes the conversion of bf16 rows exact and keeps fp16 from overflowing.
    """
    STRIPES: tl.constexpr = K.stripes
    PLANES: tl.constexpr = K.fields_per_word
    GROUPS: tl.constexpr = K.groups
    DTYPE: tl.constexpr = tl.bfloat16 if K.number == "bf16" else tl.float16
    m_query = (o_word < K.stripe_words)[:, None] & (o_head < G)[None, :]
    rows = ()
    top = 0.0
    for i_stripe in tl.static_range(STRIPES):
        for j in tl.static_range(PLANES):
            o_channel = channels(o_word, i_stripe, j, K)
            p_row = p_query + o_head[None, :] * K.dim + o_channel[:, None]
            x = tl.load(p_row, mask=m_query, other=0.0).to(tl.float32)
            if K.static_items > 1:
                p_scale = K_SCALE + (i_head * K.static_items if K.static_per_head else 0) + o_channel
                x = x * tl.load(p_scale, mask=o_word < K.words, other=0.0).to(tl.float32)[:, None]
            rows = rows + (x,)
            top = tl.maximum(top, tl.max(tl.max(tl.abs(x), 1), 0))
    sums = ()
    for g in tl.static_range(GROUPS):
        total = tl.zeros([o_head.shape[0]], tl.float32)
        for i_stripe in tl.static_range(STRIPES):
            for j in tl.static_range(PLANES):
                if (j * K.field_step + i_stripe * K.stripe_step) // K.group_width == g:
                    total += tl.sum(rows[i_stripe * PLANES + j], 0)
        sums = sums + (total,)
    exponent = top.to(tl.int32, bitcast=True) & 0x7F800000
    unit = exponent.to(tl.float32, bitcast=True)
    inverse = (0x7F000000 - exponent).to(tl.float32, bitcast=True)
    planes = ()
    for i_stripe in tl.static_range(STRIPES):
        for j in tl.static_range(PLANES):
            planes = planes + (cast(query_plane(rows, i_stripe * PLANES + j, j, K) * inverse, DTYPE),)
    if K.static_items == 1:
        unit = unit * tl.load(K_SCALE + (i_head if K.static_per_head else 0)).to(tl.float32)
    return planes, sums, unit


@triton.jit
def zero_planes(W: tl.constexpr, HEADS: tl.constexpr, PLANES: tl.constexpr):
    """Tuple of PLANES zero tiles [W, HEADS]."""
    planes = ()
    for _ in tl.static_range(PLANES):
        planes = planes + (tl.zeros([W, HEADS], tl.float32),)
    return planes


@triton.jit
def finish_output(acc, b_inverse, V_SCALE, V_ZERO, i_head, o_channel, m_word, V: tl.constexpr, V_UNIT: tl.constexpr):
    """One plane [VW, HEADS] divided by the softmax sum, with the static scale and zero of V."""
    b_out = acc * (b_inverse * (2.0**-V_UNIT))[None, :]
    if V.has_static_scale:
        o_static = o_channel * (1 if V.static_items > 1 else 0) + (i_head * V.static_items if V.static_per_head else 0)
        b_scale = tl.load(V_SCALE + o_static, mask=m_word, other=0.0).to(tl.float32)
        b_out = b_out * b_scale[:, None]
        if V.asym:
            # The codes were centred in the loop.
            b_zero = tl.load(V_ZERO + o_static, mask=m_word, other=0.0).to(tl.float32)
            b_out += (b_zero + 2.0 ** (V.bits - 1) * b_scale)[:, None]
    return b_out
