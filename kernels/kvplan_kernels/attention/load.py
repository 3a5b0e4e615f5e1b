"""What a program of the attention kernels loads: query planes once, words and metadata of each tile of tokens.

Tiles of words are `[words, BN]`, one per stripe of the row. Padding and rows beyond the length read 0, whatever the
page holds there.
"""

import triton
import triton.language as tl

from kvplan_kernels.attention.by_channel import load_channel_scales
from kvplan_kernels.codecs.convert import round_e4m3
from kvplan_kernels.codecs.grid_tiles import centre, channels, load_meta
from kvplan_kernels.codecs.planar_tiles import plane_weight, query_plane
from kvplan_kernels.codecs.rows import meta_offset, word_offset
from kvplan_kernels.dialect import cast


@triton.jit
def load_meta_rows(META, row, o_token, m_token, T: tl.constexpr, PAGE: tl.constexpr, MASKED: tl.constexpr):
    """Metadata of the part's rows, all items [PART, items padded], fp16; 0 where none is needed.

    With `meta_twice` only what moves the codes, group after group, again and again.
    """
    if T.meta_dot:
        WIDE: tl.constexpr = T.meta_stride > 16 and not T.meta_twice
        ITEMS: tl.constexpr = triton.next_power_of_2(T.meta_stride) if WIDE else 16
        o_item = tl.arange(0, ITEMS)
        p_item = META.to(tl.pointer_type(tl.float16)) + meta_offset(row, T, PAGE)
        if T.meta_twice:
            p_item += (T.shift_at + o_item % T.groups)[:, None] + o_token[None, :] * T.meta_stride
            return tl.trans(tl.load(p_item, mask=m_token[None, :], other=0.0) if MASKED else tl.load(p_item))
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
def shift_queries(q_sum, b_unit, sm_scale, K: tl.constexpr):
    """(high, low, factor): the zeros' part of the scores is the rows of metadata times (high + low), times `factor`.

    Rows that are read twice need no more than `high`, whose second half then is low.
    high, low: [items, HEADS], fp16, of the query divided by `b_unit` so that no query overflows them.
    """
    WIDE: tl.constexpr = K.meta_stride > 16 and not K.meta_twice
    ITEMS: tl.constexpr = triton.next_power_of_2(K.meta_stride) if WIDE else 16
    GROUPS: tl.constexpr = K.groups
    o_item = tl.arange(0, ITEMS)
    # Sums of up to 256 values below 2, times 128: a 16th of that fits.
    inverse = tl.where(b_unit > 0, 0.0625 / b_unit, 0.0)
    total = tl.zeros([ITEMS, q_sum[0].shape[0]], tl.float32)
    for g in tl.static_range(GROUPS):
        if K.meta_twice:
            mine = (o_item == g) | (o_item == GROUPS + g)
        else:
            mine = o_item == K.shift_at + g
        total = tl.where(mine[:, None], q_sum[g][None, :] * inverse, total)
    if not K.asym:
        total = total * -centre(K)
    high = total.to(tl.float16)
    low = (total - high.to(tl.float32)).to(tl.float16)
    if K.meta_twice:
        high = tl.where((o_item < GROUPS)[:, None], high, low)
    return high, low, b_unit * sm_scale * 16.0


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
def load_stripes(
    WORDS, HIGH, row, o_words, o_word, o_token, m_token, T: tl.constexpr, PAGE: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """One tile of words per stripe; a row has several stripes where groups are narrower than planes.

    Codes in two parts: a tile and its third bits, see `load_high`.
    """
    STRIPES: tl.constexpr = T.stripes
    p_row = WORDS + word_offset(row, T, PAGE)
    tiles = ()
    for i_stripe in tl.static_range(STRIPES):
        tile = load_words(p_row + i_stripe * T.stripe_words, o_words, o_word, m_token, T, MASKED)
        if T.two_parts:
            p_high = HIGH + row * T.high_words
            tiles = tiles + ((tile, load_high(p_high, i_stripe, o_word, o_token, m_token, T, MASKED)),)
        else:
            tiles = tiles + (tile,)
    return tiles


@triton.jit
def load_high(p_row, i_stripe: tl.constexpr, o_word, o_token, m_token, T: tl.constexpr, MASKED: tl.constexpr):
    """Words of third bits [padded words, BN] that belong to a stripe's words, as two tiles, 0 where the other counts.

    Word w of codes has its third bits in word `w % high_words`: in the even bits if w lies in the lower half of the
    row, else in the odd ones. Two loads, because a tile of shifts would cost the loads their asynchronous copies.
    """
    o_at = i_stripe * T.stripe_words + o_word
    p_word = p_row + o_token[None, :] * T.high_words + o_at[:, None]
    m_lower = ((o_word < T.stripe_words) & (o_at < T.high_words))[:, None]
    m_upper = ((o_word < T.stripe_words) & (o_at >= T.high_words))[:, None]
    if MASKED:
        m_lower = m_lower & m_token[None, :]
        m_upper = m_upper & m_token[None, :]
    return tl.load(p_word, mask=m_lower, other=0), tl.load(p_word - T.high_words, mask=m_upper, other=0)


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
def load_scales(
    META, row, o_token, o_word, m_token, exists, SHIFTS: tl.constexpr, T: tl.constexpr, PAGE: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """(scales, zeros) of the tile that begins at `row`: words of `load_row_meta`, or vectors of `load_channel_scales`,
    which leave out the zeros without SHIFTS.
    """
    if T.by_channel:
        SHORT: tl.constexpr = T.words <= 32 and T.words % 2 == 0
        PAIRS: tl.constexpr = not SHIFTS and T.planar and SHORT and T.meta_storage == "fp16"
        scales = load_channel_scales(META, row, o_word, exists, T.scale_at, PAIRS, T, MASKED)
        zeros = ()
        if SHIFTS and T.asym:
            zeros = load_channel_scales(META, row, o_word, exists, T.zero_at, False, T, MASKED)
        return scales, zeros
    else:
        return load_row_meta(META, row, o_token, m_token, T, PAGE, MASKED)


@triton.jit
def load_row_meta(META, row, o_token, m_token, T: tl.constexpr, PAGE: tl.constexpr, MASKED: tl.constexpr):
    """(scales, zeros): per group the words of metadata [BN] of the tile that begins at `row`; empty without."""
    GROUPS: tl.constexpr = T.groups
    scales = ()
    zeros = ()
    if T.has_row_scale:
        p_meta = META + meta_offset(row, T, PAGE) // (32 // T.meta_bits)
        for g in tl.static_range(GROUPS):
            scales = scales + (load_meta(p_meta, o_token, m_token, T.scale_at + g, T, MASKED),)
        if T.asym and not T.meta_dot:
            for g in tl.static_range(GROUPS):
                zeros = zeros + (load_meta(p_meta, o_token, m_token, T.zero_at + g, T, MASKED),)
    return scales, zeros


@triton.jit
def load_query(
    p_query, K_SCALE, K_ZERO, i_head, K_WORDS, o_word, o_query, m_column, K: tl.constexpr, MODE: tl.constexpr
):  # fmt: skip
    """Query rows of one KV head as planes [words, HEADS] in the compute dtype, divided by a power of two.

    Returns (planes, per group the sum over its channels [HEADS] of the undivided rows, what the scores must be
    multiplied by, what static zeros add to all scores [HEADS] where MODE wants it). The power of two makes the
    conversion of bf16 rows exact and keeps fp16 from overflowing.
    """
    STRIPES: tl.constexpr = K.stripes
    PLANES: tl.constexpr = K.fields_per_word
    GROUPS: tl.constexpr = K.groups
    DTYPE: tl.constexpr = tl.bfloat16 if K.number == "bf16" else tl.float16
    m_query = (o_word < K.stripe_words)[:, None] & m_column[None, :]
    rows = ()
    top = 0.0
    shift = tl.zeros([o_query.shape[0]], tl.float32)
    for i_stripe in tl.static_range(STRIPES):
        for j in tl.static_range(PLANES):
            o_channel = channels(o_word, i_stripe, j, K)
            p_row = p_query + o_query[None, :] * K.dim + o_channel[:, None]
            x = tl.load(p_row, mask=m_query, other=0.0).to(tl.float32)
            if MODE.shifted and K.has_static_scale and K.asym:
                o_zero = o_channel * (1 if K.static_items > 1 else 0)
                o_zero += i_head * K.static_items if K.static_per_head else 0
                b_zero = tl.load(K_ZERO + o_zero, mask=o_word < K.stripe_words, other=0.0).to(tl.float32)
                shift += tl.sum(x * b_zero[:, None], 0)
            if K.static_items > 1:
                p_scale = K_SCALE + (i_head * K.static_items if K.static_per_head else 0) + o_channel
                x = x * tl.load(p_scale, mask=o_word < K.words, other=0.0).to(tl.float32)[:, None]
            rows = rows + (x,)
            top = tl.maximum(top, tl.max(tl.max(tl.abs(x), 1), 0))
    unit, inverse = power_of_two(top)
    planes = ()
    for i_stripe in tl.static_range(STRIPES):
        for j in tl.static_range(PLANES):
            x = query_plane(rows, i_stripe * PLANES + j, j, K) * inverse
            if MODE.fp8:
                # Below 2, so below the largest e4m3 after this.
                x = round_e4m3(x * 128.0) * 0.0078125
            planes = planes + (cast(x, DTYPE),)
    # Where codes are in excess notation, of the planes as they were rounded: a code that stands for 0 then adds just 0.
    sums = ()
    for g in tl.static_range(GROUPS):
        total = tl.zeros([o_query.shape[0]], tl.float32)
        for i_stripe in tl.static_range(STRIPES):
            for j in tl.static_range(PLANES):
                if (j * K.field_step + i_stripe * K.stripe_step) // K.group_width == g:
                    if centre(K) > 0:
                        b_plane = planes[i_stripe * PLANES + j].to(tl.float32)
                        total += tl.sum(b_plane, 0) * (unit * plane_weight(j, K))
                    else:
                        total += tl.sum(rows[i_stripe * PLANES + j], 0)
        sums = sums + (total,)
    if K.static_items == 1:
        b_scale = tl.load(K_SCALE + (i_head if K.static_per_head else 0)).to(tl.float32)
        unit = unit * b_scale
        shift -= sums[0] * (b_scale * centre(K))
    elif K.has_static_scale:
        shift -= sums[0] * centre(K)
    if K.has_global:
        unit = unit * tl.load(K_SCALE)
    return planes, sums, unit, shift


@triton.jit
def power_of_two(top):
    """The power of two in `top` >= 0 and its inverse, both exact."""
    exponent = top.to(tl.int32, bitcast=True) & 0x7F800000
    return exponent.to(tl.float32, bitcast=True), (0x7F000000 - exponent).to(tl.float32, bitcast=True)
