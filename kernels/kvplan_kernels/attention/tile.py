"""One tile of tokens in registers: scores, softmax step, outputs. Shared by the attention kernels.

Tokens lie on the MMA's M axis and query heads on N: scores are `[BN, HEADS]`, outputs `[words, HEADS]`, one tile per
plane of channels. Both K and V tiles are loaded as `[words, BN]`; other spellings cost the asynchronous copies.
"""

import triton
import triton.language as tl

from kvplan_kernels.attention.by_channel import column, load_shifts, outputs_by_channel, scores_by_channel, zero_scores
from kvplan_kernels.attention.load import load_meta_rows, load_scales, load_stripes, word_offsets
from kvplan_kernels.attention.recent import recent_outputs, recent_scores
from kvplan_kernels.attention.work import RECENT_TOKENS
from kvplan_kernels.codecs.grid_tiles import centre, meta_value, scale_columns, unpack
from kvplan_kernels.codecs.planar_tiles import output_plane, plane_weight
from kvplan_kernels.dialect import cast, dot

NO_SCORE = tl.constexpr(-1.0e30)
P_SHIFT = tl.constexpr(8.0)


@triton.jit
def attend(
    i_tile, m, l, acc, q, q_sum, k_factor, q_plain, plain_factor, K_WORDS, V_WORDS, K_META, V_META, K_RING, i_page,
    i_pair, i_head, k_end, v_end, o_k, o_v, o_kw, o_vw, o_token, K: tl.constexpr, V: tl.constexpr, HKV: tl.constexpr,
    PAGE: tl.constexpr, BN: tl.constexpr, K_UNIT: tl.constexpr, V_UNIT: tl.constexpr, NATIVE_FP8: tl.constexpr,
    LATE_KEYS: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Add one tile of BN tokens to the running softmax: m [HEADS], l [8, HEADS], acc planes [VW, HEADS].

    A tile has several parts of `o_token`'s length where scales serve all tokens of a part (channel/N), else it is one.
    `k_end`, `v_end`: packed tokens of K and V; in a masked tile those from v_end on do not count, and with LATE_KEYS
    the keys from k_end on wait in K_RING.
    """
    PART: tl.constexpr = o_token.shape[0]
    PARTS: tl.constexpr = BN // PART
    i_token = i_tile * BN
    row = (i_page.to(tl.int64) * HKV + i_head) * PAGE + i_token % PAGE
    loaded = ()
    for i in tl.static_range(PARTS):
        at = row + i * PART
        m_k = o_token < k_end - i_token - i * PART
        m_v = o_token < v_end - i_token - i * PART
        k_words = load_stripes(K_WORDS + at * K.words, o_k, o_kw, m_k, K, MASKED)
        k_scales, k_zeros = load_scales(
            K_META, at, o_token, o_kw, m_k, i_token + i * PART < k_end, False, K, MASKED
        )
        v_words = load_stripes(V_WORDS + at * V.words, o_v, o_vw, m_v, V, MASKED)
        v_scales, v_zeros = load_scales(
            V_META, at, o_token, o_vw, m_v, i_token + i * PART < v_end, True, V, MASKED
        )
        k_meta = load_meta_rows(K_META, at, o_token, m_k, K, MASKED)
        v_meta = load_meta_rows(V_META, at, o_token, m_v, V, MASKED)
        loaded = loaded + ((m_k, m_v, k_words, k_scales, k_zeros, v_words, v_scales, v_zeros, k_meta, v_meta),)
    if K.by_channel and K.is_int:
        q_sum = zero_scores(q, load_shifts(K_META, row, o_kw, k_end - i_token, BN, PART, K, MASKED), K, K_UNIT)
    logits = ()
    m_new = m
    for i in tl.static_range(PARTS):
        part = loaded[i]
        k = unpack_stripes(part[2], K, NATIVE_FP8)
        s = scores(k, q, q_sum, k_factor, part[3], part[4], part[8], o_token, i, K)
        if MASKED:
            if LATE_KEYS:
                o_late = i_token + i * PART + o_token
                late = recent_scores(q_plain, plain_factor, K_RING, i_pair, o_late, part[1] & (o_late >= k_end), K)
                s = tl.where(part[0][:, None], s, late)
            s = tl.where(part[1][:, None], s, NO_SCORE)
        m_new = tl.maximum(m_new, tl.max(s, 0))
        logits = logits + (s,)
    keep = tl.math.exp2(m - m_new)
    # Eight partial sums per head, so that the loop needs no exchange between threads for l.
    l = l * keep[None, :]
    for i in tl.static_range(PARTS):
        part = loaded[i]
        p = tl.math.exp2(logits[i] - (m_new - P_SHIFT)[None, :])
        l = l + tl.sum(p.reshape(PART // 8, 8, m.shape[0]), 0)
        v = unpack_stripes(part[5], V, NATIVE_FP8)
        acc = outputs(v, acc, p, keep, part[6], part[7], part[9], o_token, V, V_UNIT, i == 0)
    return m_new, l, acc


@triton.jit
def attend_recent(
    i_token, m, l, acc, q, q_sum, k_factor, q_plain, plain_factor, K_WORDS, K_META, K_RING, V_RING, p_table,
    i_pair, i_head, k_end, v_end, length, o_kw, o_vw, K: tl.constexpr, V: tl.constexpr, HKV: tl.constexpr,
    PAGE: tl.constexpr, K_UNIT: tl.constexpr, NATIVE_FP8: tl.constexpr, EARLY_KEYS: tl.constexpr,
):  # fmt: skip
    """`attend` for RECENT_TOKENS tokens from `i_token` on, of which those from v_end on wait in V_RING and count.

    `acc`: natural planes. With EARLY_KEYS their keys may be packed all the same, those before k_end.
    """
    o_token = tl.arange(0, RECENT_TOKENS)
    o_row = i_token + o_token
    m_row = (o_row >= v_end) & (o_row < length)
    if K.recent:
        s = recent_scores(q_plain, plain_factor, K_RING, i_pair, o_row, m_row & (o_row >= k_end), K)
    if EARLY_KEYS:
        exists = i_token < k_end
        i_page = tl.load(p_table + i_token // PAGE, mask=exists, other=0)
        row = (i_page.to(tl.int64) * HKV + i_head) * PAGE + i_token % PAGE
        m_k = m_row & (o_row < k_end)
        words = load_stripes(
            K_WORDS + row * K.words, word_offsets(K, o_kw.shape[0], RECENT_TOKENS), o_kw, m_k, K, True
        )
        k_scales, k_zeros = load_scales(K_META, row, o_token, o_kw, m_k, exists, False, K, True)
        if K.by_channel and K.is_int:
            shifts = load_shifts(K_META, row, o_kw, k_end - i_token, RECENT_TOKENS, RECENT_TOKENS, K, True)
            q_sum = zero_scores(q, shifts, K, K_UNIT)
        k_meta = load_meta_rows(K_META, row, o_token, m_k, K, True)
        k = unpack_stripes(words, K, NATIVE_FP8)
        early = scores(k, q, q_sum, k_factor, k_scales, k_zeros, k_meta, o_token, 0, K)
        if K.recent:
            s = tl.where((o_row < k_end)[:, None], early, s)
        else:
            s = early
    s = tl.where(m_row[:, None], s, NO_SCORE)
    m_new = tl.maximum(m, tl.max(s, 0))
    p = tl.math.exp2(s - (m_new - P_SHIFT)[None, :])
    keep = tl.math.exp2(m - m_new)
    l = l * keep[None, :] + tl.sum(p.reshape(RECENT_TOKENS // 8, 8, m.shape[0]), 0)
    return m_new, l, recent_outputs(V_RING, i_pair, o_row, m_row, o_vw, acc, p, keep, V)


@triton.jit
def scores(k, q, q_sum, k_factor, k_scales, k_zeros, k_meta, o_token, i: tl.constexpr, K: tl.constexpr):
    """Scores [BN, HEADS] in base 2, group by group of channels that share a scale.

    `q_sum`: per group, [HEADS], or with `meta_dot` what `shift_queries` returns, or with channel/N of the tile what
    `zero_scores` returns, of which this is part `i`; `k_scales`, `k_zeros`: per group, [PART] words of metadata, or with
    channel/N per plane what `load_channel_scales` returns.
    """
    if K.by_channel:
        shift = column(q_sum, i) if K.is_int else 0
        return scores_by_channel(k, q, shift, k_factor, k_scales, o_token.shape[0], K)
    else:
        return scores_by_row(k, q, q_sum, k_factor, k_scales, k_zeros, k_meta, o_token, K)


@triton.jit
def scores_by_row(k, q, q_sum, k_factor, k_scales, k_zeros, k_meta, o_token, K: tl.constexpr):
    """`scores` of formats whose scales belong to a row, or to a layer."""
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
                    s += dot(k_meta, q_sum[1], dot(k_meta, q_sum[0], tl.zeros(total.shape, tl.float32))) * q_sum[2]
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
def outputs(
    v, acc, p, keep, v_scales, v_zeros, v_meta, o_token, V: tl.constexpr, V_UNIT: tl.constexpr, FIRST: tl.constexpr
):  # fmt: skip
    """Planes [VW, HEADS] of the output after one more part of probabilities `p` [PART, HEADS]; the FIRST part of a tile
    also takes `keep` of what was there before.
    """
    if V.by_channel:
        return outputs_by_channel(v, acc, p, keep, v_scales, v_zeros, V, V_UNIT, FIRST)
    else:
        return outputs_by_row(v, acc, p, keep, v_scales, v_zeros, v_meta, o_token, V, V_UNIT, FIRST)


@triton.jit
def outputs_by_row(
    v, acc, p, keep, v_scales, v_zeros, v_meta, o_token, V: tl.constexpr, V_UNIT: tl.constexpr, FIRST: tl.constexpr
):  # fmt: skip
    """`outputs` of formats whose scales belong to a row, or to a layer.

    Integer codes are centred part by part, or the matrix unit's truncation would drift.
    """
    GROUPS: tl.constexpr = V.groups
    STRIPES: tl.constexpr = V.stripes
    PLANES: tl.constexpr = V.fields_per_word
    weighted = ()
    shifts = ()
    if V.meta_dot:
        b_items = dot(tl.trans(v_meta), p.to(tl.float16), tl.zeros([v_meta.shape[1], p.shape[1]], tl.float32))
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
            b_one = tl.sum(tl.where((o_item == V.shift_at + g)[:, None], b_items, 0.0), 0)
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
            start = acc[i_stripe * PLANES + j]
            if FIRST:
                start = start * keep[None, :]
            if V.is_int:
                b_shift = shifts[(j * V.field_step + i_stripe * V.stripe_step) // V.group_width]
                start += (b_shift * (plane_weight(j, V) * 2.0**V_UNIT))[None, :]
            new = new + (
                dot(
                    v[i_stripe * PLANES + j],
                    weighted[(j * V.field_step + i_stripe * V.stripe_step) // V.group_width],
                    start,
                ),
            )
    return new


@triton.jit
def unpack_stripes(tiles, T: tl.constexpr, NATIVE_FP8: tl.constexpr):
    """Planes of all stripes, `stripe * fields_per_word + field`."""
    STRIPES: tl.constexpr = T.stripes
    planes = ()
    for i_stripe in tl.static_range(STRIPES):
        planes = planes + unpack(tiles[i_stripe], T, NATIVE_FP8)
    return planes


@triton.jit
def natural_planes(acc, V: tl.constexpr, V_UNIT: tl.constexpr):
    """Sums over the fields of packed values as sums over channels, to which waiting values can be added."""
    STRIPES: tl.constexpr = V.stripes
    PLANES: tl.constexpr = V.fields_per_word
    planes = ()
    for i_stripe in tl.static_range(STRIPES):
        for j in tl.static_range(PLANES):
            planes = planes + (output_plane(acc, i_stripe * PLANES + j, j, V) * 2.0**-V_UNIT,)
    return planes


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
