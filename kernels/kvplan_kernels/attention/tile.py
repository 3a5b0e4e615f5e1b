"""One tile of tokens in registers: query planes, scores, softmax step, outputs. Shared by the attention kernels.

Tokens lie on the MMA's M axis and query heads on N: scores are `[BN, HEADS]`, outputs `[words, HEADS]`, one tile per
plane of channels. Both K and V tiles are loaded as `[words, BN]`; other spellings cost the asynchronous copies.
"""

import triton
import triton.language as tl

from kvplan_kernels.codecs.grid_tiles import centre, channels, load_meta, meta_value, scale_columns, unpack
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
    K_PLANES: tl.constexpr = K.fields_per_word
    V_PLANES: tl.constexpr = V.fields_per_word
    i_token = i_tile * BN
    row = (i_page.to(tl.int64) * HKV + i_head) * PAGE + i_token % PAGE
    m_token = o_token < length - i_token
    b_kw = load_words(K_WORDS + row * K.words, o_k, o_kw, m_token, K, MASKED)
    if K.has_row_scale:
        p_meta = K_META + row * K.meta_stride // (1 if K.meta_storage == "fp32" else 2)
        b_kmeta = load_meta(p_meta, o_token, m_token, K.scale_at, K, MASKED)
        if K.asym:
            b_kzero = load_meta(p_meta, o_token, m_token, K.zero_at, K, MASKED)
    b_vw = load_words(V_WORDS + row * V.words, o_v, o_vw, m_token, V, MASKED)
    if V.has_row_scale:
        p_meta = V_META + row * V.meta_stride // (1 if V.meta_storage == "fp32" else 2)
        b_vmeta = load_meta(p_meta, o_token, m_token, V.scale_at, V, MASKED)
        if V.asym:
            b_vzero = load_meta(p_meta, o_token, m_token, V.zero_at, V, MASKED)

    # Scores [BN, HEADS], base 2.
    k = unpack(b_kw, K, NATIVE_FP8)
    s = tl.zeros([BN, m.shape[0]], tl.float32)
    for j in tl.static_range(K_PLANES):
        s = dot(tl.trans(k[j]), q[j], s)
    if K.has_row_scale:
        b_kscale = meta_value(b_kmeta, o_token, K.scale_at, K).to(tl.float32)
        s = s * (b_kscale * k_factor)[:, None]
        if K.asym:
            s += meta_value(b_kzero, o_token, K.zero_at, K).to(tl.float32)[:, None] * q_sum[None, :]
        elif K.is_int:
            s -= (b_kscale * centre(K))[:, None] * q_sum[None, :]
    else:
        # A static zero, or the centre of static codes, moves all scores of a head alike: softmax does not see it.
        s = s * k_factor
    if MASKED:
        s = tl.where(m_token[:, None], s, NO_SCORE)

    m_new = tl.maximum(m, tl.max(s, 0))
    p = tl.math.exp2(s - (m_new - P_SHIFT)[None, :])
    keep = tl.math.exp2(m - m_new)
    # Eight partial sums per head, so that the loop needs no exchange between threads for l.
    l = l * keep[None, :] + tl.sum(p.reshape(BN // 8, 8, m.shape[0]), 0)

    # Outputs [VW, HEADS]; integer codes are centred tile by tile, or the matrix unit's truncation would drift.
    if V.has_row_scale:
        b_p = scale_columns(p, meta_value(b_vmeta, o_token, V.scale_at, V))
    elif V.number == "bf16":
        b_p = cast(p, tl.bfloat16)
    else:
        b_p = p.to(tl.float16)
    v = unpack(b_vw, V, NATIVE_FP8)
    new = ()
    for j in tl.static_range(V_PLANES):
        start = acc[j] * keep[None, :]
        if V.is_int:
            if V.has_row_scale and V.asym:
                b_zero = meta_value(b_vzero, o_token, V.zero_at, V).to(tl.float32)
                start += (tl.sum(p * b_zero[:, None], 0) * (2.0**V_UNIT))[None, :]
            else:
                start -= (tl.sum(b_p.to(tl.float32), 0) * (128.0 * 2.0**V_UNIT))[None, :]
        new = new + (dot(v[j], b_p, start),)
    return m_new, l, new


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
def load_words(p_row, o_words, o_word, m_token, T: tl.constexpr, MASKED: tl.constexpr):
    """Tile of words [padded words, BN]; padding and rows beyond the length read 0, whatever the page holds there."""
    PADDED: tl.constexpr = o_word.shape[0] != T.words
    if MASKED and PADDED:
        return tl.load(p_row + o_words, mask=m_token[None, :] & (o_word < T.words)[:, None], other=0)
    elif MASKED:
        return tl.load(p_row + o_words, mask=m_token[None, :], other=0)
    elif PADDED:
        return tl.load(p_row + o_words, mask=(o_word < T.words)[:, None], other=0)
    else:
        return tl.load(p_row + o_words)


@triton.jit
def load_query(p_query, K_SCALE, i_head, K_WORDS, o_word, o_head, K: tl.constexpr, G: tl.constexpr):
    """Query rows of one KV head as planes [words, HEADS] in the compute dtype, divided by a power of two.

    Returns (planes, sum over channels [HEADS] of the undivided rows, what the scores must be multiplied by).
    The power of two makes the conversion of bf16 rows exact and keeps fp16 from overflowing.
    """
    PLANES: tl.constexpr = K.fields_per_word
    DTYPE: tl.constexpr = tl.bfloat16 if K.number == "bf16" else tl.float16
    m_query = (o_word < K.words)[:, None] & (o_head < G)[None, :]
    rows = ()
    top = 0.0
    total = tl.zeros([o_head.shape[0]], tl.float32)
    for j in tl.static_range(PLANES):
        o_channel = channels(o_word, j, K)
        x = tl.load(p_query + o_head[None, :] * K.dim + o_channel[:, None], mask=m_query, other=0.0).to(tl.float32)
        if K.static_items > 1:
            p_scale = K_SCALE + (i_head * K.static_items if K.static_per_head else 0) + o_channel
            x = x * tl.load(p_scale, mask=o_word < K.words, other=0.0).to(tl.float32)[:, None]
        rows = rows + (x,)
        top = tl.maximum(top, tl.max(tl.max(tl.abs(x), 1), 0))
        total += tl.sum(x, 0)
    exponent = top.to(tl.int32, bitcast=True) & 0x7F800000
    unit = exponent.to(tl.float32, bitcast=True)
    inverse = (0x7F000000 - exponent).to(tl.float32, bitcast=True)
    planes = ()
    for j in tl.static_range(PLANES):
        planes = planes + (cast(rows[j] * inverse, DTYPE),)
    if K.static_items == 1:
        unit = unit * tl.load(K_SCALE + (i_head if K.static_per_head else 0)).to(tl.float32)
    return planes, total, unit


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
            # The codes were centred on 128 in the loop.
            b_zero = tl.load(V_ZERO + o_static, mask=m_word, other=0.0).to(tl.float32)
            b_out += (b_zero + 128.0 * b_scale)[:, None]
    return b_out
