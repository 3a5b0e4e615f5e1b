"""Scales by channel over N tokens: what the attention kernels do with them, one part of a tile after the other.

All tokens of a part share one scale and zero per channel. K's scales are multiplied into the query once per part, its
zeros are one number per query head: both before the codes are read. V's sums over a part are multiplied by its scales
and added to the output. Codes are never multiplied.

Here query heads lie on the matrix unit's M axis: the product with the scales then stays in registers, and so do the
probabilities on their way to the values.
"""

import triton
import triton.language as tl

from kvplan_kernels.codecs.grid_tiles import centre, channels
from kvplan_kernels.codecs.planar_tiles import plane_weight
from kvplan_kernels.dialect import INTERPRET, LEAST_COLUMNS, as_fp16, dot

# Columns of the least matrix step: one per part of a tile.
COLUMNS = tl.constexpr(LEAST_COLUMNS)
# Words of a row up to which an identity matrix of fp16 is small beside shared memory.
WIDEST_IDENTITY = tl.constexpr(128)


@triton.jit
def load_channel_scales(
    META, row, o_word, exists, AT: tl.constexpr, PAIRS: tl.constexpr, T: tl.constexpr, MASKED: tl.constexpr
):
    """Per plane the items [words] from AT on (scales or zeros) of the group that holds `row`, fp16 or fp32.

    `META`: int32 words, so that copies can be asynchronous; with MASKED a group that does not exist reads 0.
    """
    PLANES: tl.constexpr = T.fields_per_word
    PADDED: tl.constexpr = o_word.shape[0] != T.words
    # Groups have an even number of items, so that each begins on a word.
    p_slot = META + row // T.group * (T.meta_stride // (1 if T.meta_storage == "fp32" else 2))
    found = ()
    if PAIRS:
        # Neighbouring channels share a word, and in the matrix unit's operand a register. One copy for all planes.
        o_pair = tl.arange(0, o_word.shape[0] // 2)[:, None]
        p_word = p_slot + AT // 2 + o_pair + tl.arange(0, PLANES)[None, :] * (T.words // 2)
        words = split_planes(load_words_of(p_word, 2 * o_pair, exists, PADDED, T, MASKED), PLANES)
    for j in tl.static_range(PLANES):
        if PAIRS:
            found = found + (tl.join(as_fp16(words[j]), as_fp16(words[j] >> 16)).reshape(o_word.shape[0]),)
        else:
            o_item = AT + channels(o_word, 0, j, T)
            p_word = p_slot + (o_item if T.meta_storage == "fp32" else o_item // 2)
            word = load_words_of(p_word, o_word, exists, PADDED, T, MASKED)
            if T.meta_storage == "fp32":
                found = found + (word.to(tl.float32, bitcast=True),)
            elif T.meta_storage == "fp16":
                found = found + (as_fp16(word >> (o_item % 2 * 16)),)
            else:
                found = found + ((word >> (o_item % 2 * 16) << 16).to(tl.float32, bitcast=True),)
    return found


@triton.jit
def split_planes(x, PLANES: tl.constexpr):
    """Columns of `x` [words, PLANES], PLANES 2, 4 or 8, as a tuple."""
    if PLANES == 2:
        return tl.split(x)
    elif PLANES == 4:
        return split_four(x)
    else:
        even, odd = tl.split(x.reshape(x.shape[0], 4, 2))
        e, o = split_four(even), split_four(odd)
        return (e[0], o[0], e[1], o[1], e[2], o[2], e[3], o[3])


@triton.jit
def split_four(x):
    """Columns of `x` [words, 4]."""
    even, odd = tl.split(x.reshape(x.shape[0], 2, 2))
    a, c = tl.split(even)
    b, d = tl.split(odd)
    return (a, b, c, d)


@triton.jit
def load_words_of(p_word, o_word, exists, PADDED: tl.constexpr, T: tl.constexpr, MASKED: tl.constexpr):
    """Words of metadata at `p_word`, for the words `o_word` of a row; padding reads 0."""
    if MASKED:
        return tl.load(p_word, mask=(o_word < T.words) & exists, other=0)
    elif PADDED:
        return tl.load(p_word, mask=o_word < T.words, other=0)
    else:
        return tl.load(p_word)


@triton.jit
def load_shifts(META, row, o_word, end, BN: tl.constexpr, PART: tl.constexpr, T: tl.constexpr, MASKED: tl.constexpr):
    """Per plane what moves the codes of each part of the BN tokens at `row`: zeros or scales [words, COLUMNS], fp16.

    Columns beyond the tile's parts read 0, with MASKED also parts that begin at token `end` of the tile or later.
    """
    PLANES: tl.constexpr = T.fields_per_word
    o_column = tl.arange(0, COLUMNS)
    slot = (row + o_column * PART) // T.group * T.meta_stride
    m_column = o_column * PART < BN
    if MASKED:
        m_column = m_column & (o_column * PART < end)
    m = m_column[None, :] & (o_word < T.words)[:, None]
    shifts = ()
    if T.bits == 8 and T.meta_storage == "fp16":
        # Both fields' items in one word.
        word = tl.load(META + (slot[None, :] + T.shift_at) // 2 + o_word[:, None], mask=m, other=0)
        shifts = (as_fp16(word), as_fp16(word >> 16))
    else:
        WIDE: tl.constexpr = tl.bfloat16 if T.meta_storage == "bf16" else tl.float32
        STORAGE: tl.constexpr = tl.float16 if T.meta_storage == "fp16" else WIDE
        p_part = META.to(tl.pointer_type(STORAGE)) + slot[None, :]
        for j in tl.static_range(PLANES):
            x = tl.load(p_part + (T.shift_at + channels(o_word, 0, j, T))[:, None], mask=m, other=0.0)
            shifts = shifts + (x.to(tl.float16),)
    return shifts


@triton.jit
def spread_query(planes, K: tl.constexpr):
    """Query planes [words, HEADS] -> [HEADS, words], in the registers that a matrix step leaves its result in.

    There they can be multiplied by scales without an exchange between threads; a product with the identity gets them
    there, unless rows are so long that the identity would not fit shared memory. They are multiplied by
    2**middle_field, so that the weights of the fields lie around 1.
    """
    PLANES: tl.constexpr = K.fields_per_word
    W: tl.constexpr = planes[0].shape[0]
    o_word = tl.arange(0, W)
    spread = ()
    if W <= WIDEST_IDENTITY:
        identity = (o_word[:, None] == o_word[None, :]).to(tl.float16)
    for j in tl.static_range(PLANES):
        x = (planes[j].to(tl.float32) * 2.0**K.middle_field).to(tl.float16)
        if W <= WIDEST_IDENTITY:
            x = dot(tl.trans(x), identity, tl.zeros([x.shape[1], W], tl.float32))
            spread = spread + (x.to(tl.float16),)
        else:
            spread = spread + (tl.trans(x),)
    return spread


@triton.jit
def scores_by_channel(k, q, shift, k_factor, k_scales, PART: tl.constexpr, K: tl.constexpr):
    """Scores [PART, HEADS] in base 2 of planes `k` [words, PART] and `q` [HEADS, words] from `spread_query`.

    `shift` [HEADS]: from `zero_scores`.
    """
    PLANES: tl.constexpr = K.fields_per_word
    s = tl.zeros([q[0].shape[0], PART], tl.float32)
    for j in tl.static_range(PLANES):
        s = dot(times(q[j], k_scales[j]), k[j], s)
    factor = k_factor * 0.5**K.middle_field
    if K.is_int:
        # Added last: the codes' products need not wait for it.
        return tl.trans(s * factor + (shift * factor)[:, None])
    else:
        return tl.trans(s * factor)


@triton.jit
def zero_scores(q, shifts, K: tl.constexpr, K_UNIT: tl.constexpr):
    """The zeros' part of the scores of each part of a tile: [HEADS, COLUMNS], in units of codes."""
    PLANES: tl.constexpr = K.fields_per_word
    FIELDS: tl.constexpr = PLANES // 2 if K.planar else 1
    total = tl.zeros([q[0].shape[0], COLUMNS], tl.float32)
    for i in tl.static_range(FIELDS):
        # Fields do not wait for each other; each weighs 2**bits more than the one before it.
        field = tl.zeros(total.shape, tl.float32)
        for j in tl.static_range(PLANES):
            if j % FIELDS == i:
                field = dot(q[j], shifts[j], field)
        total = total + field * 2.0 ** (K.bits * i)
    return total * (2.0**K_UNIT * (1.0 if K.asym else -centre(K)))


@triton.jit
def column(x, i: tl.constexpr):
    """Column `i` of a tile [HEADS, COLUMNS]."""
    return tl.sum(tl.where((tl.arange(0, COLUMNS) == i)[None, :], x, 0.0), 1)


@triton.jit
def times(x, scale):
    """`x` [HEADS, W] fp16 times a scale per column [W] -> fp16.

    Not declared pure, though it is: the compiler then does not look for the origin of this operand, where it would
    take the joined scales for a reason to give the matrix unit's operand another order.
    """
    if scale.dtype == tl.float16 and not INTERPRET:
        return tl.inline_asm_elementwise(
            "mul.rn.f16x2 $0, $1, $2;",
            "=r,r,r",
            [x, tl.broadcast_to(scale[None, :], x.shape)],
            dtype=tl.float16,
            is_pure=False,
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
