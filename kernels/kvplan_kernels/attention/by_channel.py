"""Scales by channel over N tokens: what the attention kernels do with them, one part of a tile after the other.

All tokens of a part share one scale and zero per channel. K's scales are multiplied into the query once per part, its
zeros are one number per query head: both before the codes are read. V's sums over a part are multiplied by its scales
and added to the output. Codes are never multiplied.
"""

import triton
import triton.language as tl

from kvplan_kernels.codecs.grid_tiles import centre, channels
from kvplan_kernels.codecs.planar_tiles import plane_weight
from kvplan_kernels.dialect import INTERPRET, as_fp16, dot

# Rows of the least matrix step.
ROWS = tl.constexpr(16)


@triton.jit
def load_channel_scales(META, row, o_word, exists, T: tl.constexpr, MASKED: tl.constexpr):
    """(scales, zeros): per plane the items [words] of the group that holds `row`; zeros are empty without.

    `META`: int32 words; with MASKED a group that does not exist reads 0.
    """
    PLANES: tl.constexpr = T.fields_per_word
    scales = ()
    zeros = ()
    p_slot = META
    slot = row // T.group * T.meta_stride
    for j in tl.static_range(PLANES):
        o_item = channels(o_word, 0, j, T)
        m_item = o_word < T.words
        if MASKED:
            m_item = m_item & exists
        scales = scales + (load_items(p_slot, slot, T.scale_at + o_item, m_item, T, MASKED or o_word.shape[0] != T.words),)
        if T.asym:
            zeros = zeros + (
                load_items(p_slot, slot, T.zero_at + o_item, m_item, T, MASKED or o_word.shape[0] != T.words),
            )
    return scales, zeros


@triton.jit
def load_items(META, slot, o_item, m_item, T: tl.constexpr, MASKED: tl.constexpr):
    """Metadata items `slot + o_item` as fp16 or fp32, read as 32-bit words so that the copy can be asynchronous."""
    if T.meta_storage == "fp32":
        p_word = META + slot + o_item
    else:
        p_word = META + (slot + o_item) // 2
    if MASKED:
        word = tl.load(p_word, mask=m_item, other=0)
    else:
        word = tl.load(p_word)
    if T.meta_storage == "fp32":
        return word.to(tl.float32, bitcast=True)
    half = word >> ((slot + o_item) % 2 * 16).to(tl.int32)
    if T.meta_storage == "fp16":
        return as_fp16(half)
    else:
        return (half << 16).to(tl.float32, bitcast=True)


@triton.jit
def query_shift(K: tl.constexpr):
    """log2 of what query planes are multiplied by, so that the weights of the fields lie around 1."""
    return K.bits * (K.fields_per_word // 2 - 1) // 2 if K.planar else 0


@triton.jit
def spread_query(planes, K: tl.constexpr):
    """Query planes [words, HEADS] -> [HEADS, words], in the registers that a matrix step leaves its result in.

    There they can be multiplied by scales without an exchange between threads; a product with the identity gets them
    there.
    """
    PLANES: tl.constexpr = K.fields_per_word
    W: tl.constexpr = planes[0].shape[0]
    o_word = tl.arange(0, W)
    identity = (o_word[:, None] == o_word[None, :]).to(tl.float16)
    spread = ()
    for j in tl.static_range(PLANES):
        x = (planes[j].to(tl.float32) * 2.0 ** query_shift(K)).to(tl.float16)
        x = dot(tl.trans(x), identity, tl.zeros([x.shape[1], W], tl.float32))
        spread = spread + (x.to(tl.float16),)
    return spread


@triton.jit
def scores_by_channel(k, q, k_factor, k_scales, k_zeros, PART: tl.constexpr, K: tl.constexpr, K_UNIT: tl.constexpr):
    """Scores [PART, HEADS] in base 2 of planes `k` [words, PART] and `q` [HEADS, words] from `spread_query`."""
    PLANES: tl.constexpr = K.fields_per_word
    HEADS: tl.constexpr = q[0].shape[0]
    s = tl.zeros([PART, HEADS], tl.float32)
    if K.is_int:
        # Equal rows: the same number for each token of the part.
        b_zero = zero_scores(q, k_scales, k_zeros, K) * 2.0**K_UNIT
        s = tl.broadcast_to(b_zero[None, :, :], (PART // ROWS, ROWS, HEADS)).reshape(PART, HEADS)
    for j in tl.static_range(PLANES):
        s = dot(tl.trans(k[j]), tl.trans(times(q[j], k_scales[j])), s)
    return s * (k_factor * 0.5 ** query_shift(K))


@triton.jit
def zero_scores(q, k_scales, k_zeros, K: tl.constexpr):
    """The zeros' part of the scores: [ROWS, HEADS], all rows equal."""
    PLANES: tl.constexpr = K.fields_per_word
    FIELDS: tl.constexpr = PLANES // 2 if K.planar else 1
    W: tl.constexpr = q[0].shape[1]
    total = tl.zeros([ROWS, q[0].shape[0]], tl.float32)
    for i in tl.static_range(FIELDS):
        # Fields from the last to the first: each weighs 2**bits more than the one before it.
        if i > 0:
            total = total * 2.0**K.bits
        for j in tl.static_range(PLANES):
            if j % FIELDS == FIELDS - 1 - i:
                zero = k_zeros[j] if K.asym else k_scales[j]
                rows = tl.broadcast_to(zero.to(tl.float16)[None, :], (ROWS, W))
                total = dot(rows, tl.trans(q[j]), total)
    return total if K.asym else total * -centre(K)


@triton.jit
def times(x, scale):
    """`x` [HEADS, W] fp16 times a scale per column [W] -> fp16."""
    if scale.dtype == tl.float16 and not INTERPRET:
        return tl.inline_asm_elementwise(
            "mul.rn.f16x2 $0, $1, $2;",
            "=r,r,r",
            [x, tl.broadcast_to(scale[None, :], x.shape)],
            dtype=tl.float16,
            is_pure=True,
            pack=2,
        )
    else:
        return (x.to(tl.float32) * scale.to(tl.float32)[None, :]).to(tl.float16)


@triton.jit
def outputs_by_channel(v, acc, p, keep, v_scales, v_zeros, V: tl.constexpr, V_UNIT: tl.constexpr, FIRST: tl.constexpr):
    """Planes [VW, HEADS] of the output after one more part of probabilities `p` [PART, HEADS]."""
    PLANES: tl.constexpr = V.fields_per_word
    b_p = p.to(tl.float16)
    b_sum = tl.sum(b_p.to(tl.float32), 0)
    new = ()
    for j in tl.static_range(PLANES):
        start = tl.zeros(acc[j].shape, tl.float32)
        if V.is_int and not V.asym:
            start += (b_sum * -(centre(V) * plane_weight(j, V) * 2.0**V_UNIT))[None, :]
        part = dot(v[j], b_p, start) * v_scales[j].to(tl.float32)[:, None]
        if V.asym:
            part += v_zeros[j].to(tl.float32)[:, None] * (b_sum * (plane_weight(j, V) * 2.0**V_UNIT))[None, :]
        new = new + ((acc[j] * keep[None, :] if FIRST else acc[j]) + part,)
    return new
