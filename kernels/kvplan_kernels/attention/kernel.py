"""Fused dequantise + decode attention over a paged, quantised KV cache, split over the context.

Loads tiles of BN tokens of one KV head: K and V words `[words, BN]` (tokens on the MMA's M axis, query heads on N), one
32-bit word of metadata per token. Scores are `[BN, HEADS]`, outputs `[words, HEADS]` per plane of channels. Codes are
unpacked to fp16 in registers; scales never touch them: K's go on the scores, V's on the probabilities, static ones on
the softmax scale and the output. Softmax in base 2, probabilities kept times 256 so that fp16 does not lose small ones.
"""

import triton
import triton.language as tl

from kvplan_kernels.attention.by_channel import spread_query
from kvplan_kernels.attention.load import load_query, shift_queries, word_offsets
from kvplan_kernels.attention.recent import load_plain_query
from kvplan_kernels.attention.sight import columns, left_of_all, seen_by_all
from kvplan_kernels.attention.step import LEAST_MAX, P_SHIFT, attend, attend_recent
from kvplan_kernels.attention.tile import finish_output, natural_planes, zero_planes
from kvplan_kernels.attention.work import (
    RECENT_TOKENS,
    busy_programs,
    count_tiles,
    find_request,
    first_tile,
    next_page,
    packed_tiles,
)
from kvplan_kernels.codecs.grid_tiles import channels
from kvplan_kernels.codecs.planar_tiles import output_plane
from kvplan_kernels.codecs.split import packed_tokens
from kvplan_kernels.dialect import loop_bound


@triton.jit(do_not_specialize=["sm_scale", "num_requests", "max_pages", "reach", "softcap"])
def decode_kernel(
    Q,
    K_WORDS,
    V_WORDS,
    K_HIGH,
    V_HIGH,
    K_META,
    V_META,
    K_SCALE,
    V_SCALE,
    K_ZERO,
    V_ZERO,
    K_RING,
    V_RING,
    PART_OUT,
    PART_LSE,
    PAGE_TABLE,
    LENGTHS,
    TILE_STARTS,
    sm_scale,
    num_requests,
    max_pages,
    reach,
    softcap,
    K: tl.constexpr,
    V: tl.constexpr,
    MODE: tl.constexpr,
    HKV: tl.constexpr,
    HEADS: tl.constexpr,
    PAGE: tl.constexpr,
    BN: tl.constexpr,
    PART: tl.constexpr,
    KW: tl.constexpr,
    VW: tl.constexpr,
    K_UNIT: tl.constexpr,
    V_UNIT: tl.constexpr,
    ONE_META: tl.constexpr,
    EARLY_KEYS: tl.constexpr,
    LATE_KEYS: tl.constexpr,
    MIXED_KEYS: tl.constexpr,
    NATIVE_FP8: tl.constexpr,
    STAGES: tl.constexpr,
    SCAN: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program: its range of the work list, one (request, KV head, block of columns) segment after the other.

    Q `[B, R, HKV * G, K.dim]`; *_WORDS `[pages, HKV, PAGE, words]`; *_HIGH `[pages, HKV, PAGE, high_words]`, third
    bits; *_META int32 view of `[pages, HKV, slots, items]` (page planes: see rows.py); *_SCALE, *_ZERO
    `[HKV or 1, items]`, or the global scale; *_RING `[B, HKV, capacity, dim]`; PART_OUT `[slots, columns, V.dim]`,
    PART_LSE `[slots, columns]`; PAGE_TABLE `[B, max_pages]`; TILE_STARTS `[B + 1]`. `sm_scale` includes log2(e);
    `reach`: newest rows that a window reaches. PART: tokens that share every scale; KW, VW: words of a stripe, padded;
    EARLY_KEYS, LATE_KEYS: whether keys may be packed where values wait, or wait where values are packed; MIXED_KEYS:
    whether a tile of waiting values may have both.
    """
    # One pointer for one plane, so that loads of the same words are merged.
    if ONE_META:
        V_META = K_META
    V_PLANES: tl.constexpr = V.fields_per_word
    V_STRIPES: tl.constexpr = V.stripes
    K_GROUPS: tl.constexpr = K.groups
    WAITING: tl.constexpr = K.recent + V.recent > 0
    # The few tiles that not all rows see whole: part by part where scales serve a part, so that the code stays small.
    STEP: tl.constexpr = PART if WAITING else BN
    SEGMENTS: tl.constexpr = HKV * MODE.blocks
    COLUMNS: tl.constexpr = MODE.columns
    i_program = tl.program_id(0)
    if PDL:
        # Whatever follows may take its places as these programs leave theirs, and then waits for all of them.
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    total = tl.load(TILE_STARTS + num_requests).to(tl.int64) * SEGMENTS
    programs = busy_programs(total)
    at = i_program * total // tl.maximum(programs, 1)
    end = tl.where(i_program < programs, (i_program + 1) * total // tl.maximum(programs, 1), at)
    o_head = tl.arange(0, HEADS)
    o_token = tl.arange(0, PART)
    o_kw = tl.arange(0, KW)
    o_vw = tl.arange(0, VW)
    o_k = word_offsets(K, KW, PART)
    o_v = word_offsets(V, VW, PART)
    while at < end:
        i_request, begin, length = find_request(TILE_STARTS, LENGTHS, num_requests, (at // SEGMENTS).to(tl.int32), SCAN)
        k_end = packed_tokens(length, K)
        v_end = packed_tokens(length, V)
        tiles = count_tiles(length, reach, BN, V, MODE.windowed)
        inside = (at - begin.to(tl.int64) * SEGMENTS).to(tl.int32)
        i_segment = inside // tiles
        i_head = i_segment // MODE.blocks
        start = first_tile(length, reach, BN, V, MODE.windowed)
        first = start + inside % tiles
        last = tl.minimum(start + tiles, first + (end - at).to(tl.int32))
        # Tiles [first, left) have the edge of a window in them, [left, full) are whole, [full, packed) have an end in
        # them, [packed, last) hold values that wait.
        packed = tl.minimum(last, packed_tiles(length, BN, V)) if V.recent else last
        full = tl.minimum(packed, seen_by_all(tl.minimum(k_end, v_end), length, MODE) // BN)
        left = first
        if MODE.windowed:
            left = tl.maximum(first, tl.minimum((left_of_all(length, reach, MODE) + BN - 1) // BN, packed))
        if WAITING or MODE.edges:
            full = tl.maximum(full, left)
        i_pair = i_request.to(tl.int64) * HKV + i_head
        p_table = PAGE_TABLE + i_request.to(tl.int64) * max_pages
        # A page is looked up one tile ahead: its latency would otherwise cost the pipeline a stage.
        if WAITING or MODE.edges:
            i_page = tl.load(p_table + left * BN // PAGE, mask=left < full, other=0)
        else:
            i_page = tl.load(p_table + left * BN // PAGE)
        o_query, m_column, sight = columns(o_head, i_segment % MODE.blocks, length, reach, HKV, MODE)
        p_query = Q + (i_request.to(tl.int64) * (HKV * MODE.rows * MODE.group) + i_head * MODE.group) * K.dim
        q, b_qsum, b_unit, b_shift = load_query(
            p_query, K_SCALE, K_ZERO, i_head, K_WORDS, o_kw, o_query, m_column, K, MODE
        )
        b_shift = b_shift * sm_scale
        limit = (tl.maximum(length - reach, 0) if MODE.windowed else 0, softcap, b_shift, sight)
        k_factor = sm_scale * b_unit * (2.0**-K_UNIT)
        q_sum = ()
        if K.meta_dot:
            q_sum = shift_queries(b_qsum, b_unit, sm_scale, K)
        else:
            for g in tl.static_range(K_GROUPS):
                q_sum = q_sum + (b_qsum[g] * sm_scale,)
        if K.by_channel:
            q = spread_query(q, K)
        m = tl.full([HEADS], LEAST_MAX, tl.float32)
        l = tl.zeros([8, HEADS], tl.float32)
        acc = zero_planes(VW, HEADS, V_STRIPES * V_PLANES)
        q_plain, plain_factor = 0, 0
        for i_tile in tl.range(loop_bound(left), loop_bound(full), num_stages=STAGES):
            m, l, acc = attend(
                i_tile, m, l, acc, q, q_sum, k_factor, q_plain, plain_factor, K_WORDS, V_WORDS, K_HIGH, V_HIGH,
                K_META, V_META, K_RING, i_page, i_pair, i_head, k_end, v_end, limit, o_k, o_v, o_kw, o_vw, o_token,
                K, V, MODE, HKV, PAGE, BN, K_UNIT, V_UNIT, NATIVE_FP8, LATE_KEYS, False,
            )  # fmt: skip
            i_page = next_page(p_table, i_page, i_tile + 1, packed, PAGE, BN)
        if K.recent:
            q_plain, plain_factor = load_plain_query(p_query, K_RING, o_query, m_column, sm_scale, K)
        if WAITING or MODE.edges:
            i_full = full * (BN // STEP)
            n_left = (left - first) * (BN // STEP)
            n_right = tl.maximum(tl.minimum(packed * (BN // STEP), (v_end + STEP - 1) // STEP) - i_full, 0)
            for i in tl.range(0, loop_bound(n_left + n_right), num_stages=1):
                i_part = tl.where(i < n_left, first * (BN // STEP) + i, i_full - n_left + i)
                i_page = tl.load(p_table + i_part * STEP // PAGE)
                m, l, acc = attend(
                    i_part, m, l, acc, q, q_sum, k_factor, q_plain, plain_factor, K_WORDS, V_WORDS, K_HIGH,
                    V_HIGH, K_META, V_META, K_RING, i_page, i_pair, i_head, k_end, v_end, limit, o_k, o_v, o_kw, o_vw,
                    o_token, K, V, MODE, HKV, PAGE, STEP, K_UNIT, V_UNIT, NATIVE_FP8, LATE_KEYS, True,
                )  # fmt: skip
        else:
            if last > full:
                m, l, acc = attend(
                    full, m, l, acc, q, q_sum, k_factor, q_plain, plain_factor, K_WORDS, V_WORDS, K_HIGH,
                    V_HIGH, K_META, V_META, K_RING, i_page, i_pair, i_head, k_end, v_end, limit, o_k, o_v, o_kw, o_vw,
                    o_token, K, V, MODE, HKV, PAGE, BN, K_UNIT, V_UNIT, NATIVE_FP8, LATE_KEYS, True,
                )  # fmt: skip
        if V.recent:
            acc = natural_planes(acc, V, V_UNIT)
            # Tile i begins with token (waiting + i) * RECENT_TOKENS.
            waiting = v_end // RECENT_TOKENS - packed_tiles(length, BN, V)
            i_late = tl.maximum(first, packed)
            if EARLY_KEYS:
                # Tiles that begin before the first key that waits, and end before it unless there are MIXED_KEYS.
                i_early = tl.cdiv(k_end, RECENT_TOKENS) - waiting
                i_early = tl.minimum(tl.maximum(i_early, i_late), last) if K.recent else last
                for i_tile in tl.range(loop_bound(i_late), loop_bound(i_early), num_stages=STAGES):
                    m, l, acc = attend_recent(
                        (waiting + i_tile) * RECENT_TOKENS, m, l, acc, q, q_sum, k_factor, q_plain, plain_factor,
                        K_WORDS, K_HIGH, K_META, K_RING, V_RING, p_table, i_pair, i_head, k_end, v_end, length, limit,
                        o_kw, o_vw, K, V, MODE, HKV, PAGE, K_UNIT, NATIVE_FP8, True, MIXED_KEYS,
                    )  # fmt: skip
                i_late = i_early
            if K.recent:
                for i_tile in tl.range(loop_bound(i_late), loop_bound(last), num_stages=STAGES):
                    m, l, acc = attend_recent(
                        (waiting + i_tile) * RECENT_TOKENS, m, l, acc, q, q_sum, k_factor, q_plain, plain_factor,
                        K_WORDS, K_HIGH, K_META, K_RING, V_RING, p_table, i_pair, i_head, k_end, v_end, length, limit,
                        o_kw, o_vw, K, V, MODE, HKV, PAGE, K_UNIT, NATIVE_FP8, False, True,
                    )  # fmt: skip
        slot = i_program + i_request.to(tl.int64) * SEGMENTS + i_segment
        b_sum = tl.sum(l, 0)
        tl.store(PART_LSE + slot * COLUMNS + o_head, m + (tl.math.log2(b_sum) - P_SHIFT), mask=o_head < COLUMNS)
        b_inverse = tl.where(b_sum == 0, 0.0, 1.0 / b_sum) if MODE.edges or MODE.own else 1.0 / b_sum
        m_word = o_vw < V.stripe_words
        for i_stripe in tl.static_range(V_STRIPES):
            for j in tl.static_range(V_PLANES):
                o_channel = channels(o_vw, i_stripe, j, V)
                if V.recent:
                    b_out = acc[i_stripe * V_PLANES + j] * b_inverse[None, :]
                else:
                    b_out = output_plane(acc, i_stripe * V_PLANES + j, j, V)
                    b_out = finish_output(b_out, b_inverse, V_SCALE, V_ZERO, i_head, o_channel, m_word, V, V_UNIT)
                p_out = PART_OUT + (slot * COLUMNS + o_head[None, :]) * V.dim + o_channel[:, None]
                tl.store(p_out, b_out, mask=(o_head < COLUMNS)[None, :] & m_word[:, None])
        at += last - first
