"""One step of the running softmax: a tile of packed tokens, or a short one of tokens whose values wait."""

import triton
import triton.language as tl

from kvplan_kernels.attention.by_channel import load_shifts, zero_scores
from kvplan_kernels.attention.load import load_meta_rows, load_scales, load_stripes, word_offsets
from kvplan_kernels.attention.recent import recent_outputs, recent_scores
from kvplan_kernels.attention.sight import hide, soften
from kvplan_kernels.attention.tile import (
    add_zeros,
    outputs,
    scale_exponent,
    scale_tops,
    scores,
    unpack_stripes,
    zero_sums,
)
from kvplan_kernels.attention.work import RECENT_TOKENS
from kvplan_kernels.codecs.convert import round_e4m3

NO_SCORE = tl.constexpr(-1.0e30)
# Where the running maximum starts: above NO_SCORE, so that hidden tokens weigh 0 even before the first visible one.
LEAST_MAX = tl.constexpr(-1.0e29)
# Probabilities are kept times 2**P_SHIFT, so that fp16 does not lose small ones.
P_SHIFT = tl.constexpr(8.0)


@triton.jit
def attend(
    i_tile, m, l, acc, q, q_sum, k_factor, q_plain, plain_factor, K_WORDS, V_WORDS, K_HIGH, V_HIGH, K_META,
    V_META, K_RING, i_page, i_pair, i_head, k_end, v_end, limit, o_k, o_v, o_kw, o_vw, o_token,
    K: tl.constexpr, V: tl.constexpr, MODE: tl.constexpr, HKV: tl.constexpr, PAGE: tl.constexpr, BN: tl.constexpr,
    K_UNIT: tl.constexpr, V_UNIT: tl.constexpr, NATIVE_FP8: tl.constexpr,
    LATE_KEYS: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Add one tile of BN tokens to the running softmax: m [HEADS], l [8, HEADS], acc planes [VW, HEADS].

    A tile has several parts of `o_token`'s length where scales serve all tokens of a part (channel/N), else it is one.
    `k_end`, `v_end`: packed tokens of K and V; in a masked tile those from v_end on do not count, and with LATE_KEYS
    the keys from k_end on wait in K_RING. `limit`: (first token that any column sees, softcap, shift of the scores,
    sight), see sight.py. m is the largest score, raised by the exponent of values' scales that are far from 1.
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
        if MODE.windowed:
            m_k = m_k & (o_token >= limit[0] - i_token - i * PART)
            m_v = m_v & (o_token >= limit[0] - i_token - i * PART)
        k_words = load_stripes(K_WORDS, K_HIGH, at, o_k, o_kw, o_token, m_k, K, PAGE, MASKED)
        exists = i_token + i * PART < k_end
        k_scales, k_zeros = load_scales(K_META, at, o_token, o_kw, m_k, exists, False, K, PAGE, MASKED)
        v_words = load_stripes(V_WORDS, V_HIGH, at, o_v, o_vw, o_token, m_v, V, PAGE, MASKED)
        exists = i_token + i * PART < v_end
        v_scales, v_zeros = load_scales(V_META, at, o_token, o_vw, m_v, exists, True, V, PAGE, MASKED)
        k_meta = load_meta_rows(K_META, at, o_token, m_k, K, PAGE, MASKED)
        v_meta = load_meta_rows(V_META, at, o_token, m_v, V, PAGE, MASKED)
        loaded = loaded + ((m_k, m_v, k_words, k_scales, k_zeros, v_words, v_scales, v_zeros, k_meta, v_meta),)
    if K.by_channel and K.is_int:
        q_sum = zero_scores(q, load_shifts(K_META, row, o_kw, k_end - i_token, BN, PART, K, MASKED), K, K_UNIT)
    logits = ()
    m_new = m
    raise_by = 0.0
    if V.has_row_scale:
        tops = scale_tops(loaded[0][6], o_token, V)
        for i in tl.static_range(1, PARTS):
            tops = tl.maximum(tops, scale_tops(loaded[i][6], o_token, V))
        raise_by = scale_exponent(tl.max(tops, 0), V)
    for i in tl.static_range(PARTS):
        part = loaded[i]
        k = unpack_stripes(part[2], K, NATIVE_FP8)
        s = scores(k, q, q_sum, k_factor, part[3], part[4], part[8], o_token, i, K)
        if MASKED:
            if LATE_KEYS:
                o_late = i_token + i * PART + o_token
                late = recent_scores(q_plain, plain_factor, K_RING, i_pair, o_late, part[1] & (o_late >= k_end), K)
                s = tl.where((o_late < k_end)[:, None], s, late)
        s = soften(s, limit[1], limit[2], MODE)
        if MASKED:
            s = tl.where(part[1][:, None], s, NO_SCORE)
            s = hide(s, i_token + i * PART + o_token, limit[3], NO_SCORE, MODE)
        m_new = tl.maximum(m_new, tl.max(s, 0) + raise_by)
        logits = logits + (s,)
    if MODE.fp8:
        m_new = tl.ceil(m_new)
    keep = tl.math.exp2(m - m_new)
    # Eight partial sums per head, so that the loop needs no exchange between threads for l.
    l = l * keep[None, :]
    sums = tl.zeros([16, m.shape[0]], tl.float32)
    for i in tl.static_range(PARTS):
        part = loaded[i]
        p = tl.math.exp2(logits[i] - (m_new - P_SHIFT)[None, :])
        if V.is_int and V.has_static_scale:
            # The same probabilities in the sum as in the product: their centre is added back with weight 1.
            p = p.to(tl.float16).to(tl.float32)
        l = l + tl.sum(p.reshape(PART // 8, 8, m.shape[0]), 0)
        v = unpack_stripes(part[5], V, NATIVE_FP8)
        if MODE.fp8:
            p = round_e4m3(p)
        acc = outputs(v, acc, p, keep, part[6], part[7], part[9], o_token, V, V_UNIT, i == 0)
        sums = zero_sums(part[9], p, sums, V)
    return m_new, l, add_zeros(acc, sums, V, V_UNIT)


@triton.jit
def attend_recent(
    i_token, m, l, acc, q, q_sum, k_factor, q_plain, plain_factor, K_WORDS, K_HIGH, K_META, K_RING, V_RING, p_table,
    i_pair, i_head, k_end, v_end, length, limit, o_kw, o_vw, K: tl.constexpr, V: tl.constexpr, MODE: tl.constexpr,
    HKV: tl.constexpr, PAGE: tl.constexpr, K_UNIT: tl.constexpr, NATIVE_FP8: tl.constexpr,
    EARLY_KEYS: tl.constexpr, LATE_KEYS: tl.constexpr,
):  # fmt: skip
    """`attend` for RECENT_TOKENS tokens from `i_token` on, of which those from v_end on wait in V_RING and count.

    `acc`: natural planes. With EARLY_KEYS the keys before k_end are packed all the same,
    with LATE_KEYS those from it on wait, too.
    """
    o_token = tl.arange(0, RECENT_TOKENS)
    o_row = i_token + o_token
    m_row = (o_row >= v_end) & (o_row < length)
    if MODE.windowed:
        m_row = m_row & (o_row >= limit[0])
    if LATE_KEYS:
        s = recent_scores(q_plain, plain_factor, K_RING, i_pair, o_row, m_row & (o_row >= k_end), K)
    if EARLY_KEYS:
        exists = i_token < k_end
        i_page = tl.load(p_table + i_token // PAGE, mask=exists, other=0)
        row = (i_page.to(tl.int64) * HKV + i_head) * PAGE + i_token % PAGE
        m_k = m_row & (o_row < k_end)
        o_k = word_offsets(K, o_kw.shape[0], RECENT_TOKENS)
        words = load_stripes(K_WORDS, K_HIGH, row, o_k, o_kw, o_token, m_k, K, PAGE, True)
        k_scales, k_zeros = load_scales(K_META, row, o_token, o_kw, m_k, exists, False, K, PAGE, True)
        if K.by_channel and K.is_int:
            shifts = load_shifts(K_META, row, o_kw, k_end - i_token, RECENT_TOKENS, RECENT_TOKENS, K, True)
            q_sum = zero_scores(q, shifts, K, K_UNIT)
        k_meta = load_meta_rows(K_META, row, o_token, m_k, K, PAGE, True)
        k = unpack_stripes(words, K, NATIVE_FP8)
        early = scores(k, q, q_sum, k_factor, k_scales, k_zeros, k_meta, o_token, 0, K)
        if LATE_KEYS:
            s = tl.where((o_row < k_end)[:, None], early, s)
        else:
            s = early
    s = tl.where(m_row[:, None], soften(s, limit[1], limit[2], MODE), NO_SCORE)
    s = hide(s, o_row, limit[3], NO_SCORE, MODE)
    m_new = tl.maximum(m, tl.max(s, 0))
    p = tl.math.exp2(s - (m_new - P_SHIFT)[None, :])
    keep = tl.math.exp2(m - m_new)
    l = l * keep[None, :] + tl.sum(p.reshape(RECENT_TOKENS // 8, 8, m.shape[0]), 0)
    return m_new, l, recent_outputs(V_RING, i_pair, o_row, m_row, o_vw, acc, p, keep, V)
