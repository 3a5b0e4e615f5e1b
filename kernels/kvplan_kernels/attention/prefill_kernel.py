"""Causal flash attention of a chunk of new 16-bit rows, behind a dense 16-bit prefix or none.

A program holds BM query rows of one request and KV head: row m is query head m % G of token m // G, so all heads of a
group share the tiles of keys. It walks the prefix `(B, HKV, T, D)`, then the chunk's own keys `(B, R, HKV, D)`, BN rows
at a time; tiles that no row sees are not visited, tiles that every row sees have no mask. A row of channels is read as
the largest power of two and a padded rest (192 = 128 + 64, 80 = 64 + 16). Softmax in base 2, sums in fp32.
"""

import triton
import triton.language as tl

from kvplan_kernels.attention.step import NO_SCORE, P_SHIFT
from kvplan_kernels.dialect import cast, dot, loop_bound

LOG2_E = tl.constexpr(1.4426950408889634)
# Strides are given in units of 8 elements: the compiler then knows that rows start at multiples of 16 bytes.
STRIDE_UNIT = 8


@triton.jit(
    do_not_specialize=[
        "q_batch", "q_row", "q_head", "k_batch", "k_row", "k_head", "v_batch", "v_row", "v_head", "pk_batch", "pk_row",
        "pk_head", "pv_batch", "pv_row", "pv_head", "num_rows", "prefix_rows", "inner", "factor", "window",
    ]
)  # fmt: skip
def prefill_kernel(
    Q, K, V, PREFIX_K, PREFIX_V, OUT, LSE, LENGTHS, COUNTS, SINKS,
    q_batch, q_row, q_head, k_batch, k_row, k_head, v_batch, v_row, v_head,
    pk_batch, pk_row, pk_head, pv_batch, pv_row, pv_head,
    num_rows, prefix_rows, inner, factor, window,
    G: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr,
    K_FIRST: tl.constexpr, K_REST: tl.constexpr, V_FIRST: tl.constexpr, V_REST: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, STAGES: tl.constexpr, SOFTCAP: tl.constexpr, WINDOW: tl.constexpr,
):  # fmt: skip
    """One program: BM query rows of one (request, KV head).

    Q `[B, R, HKV * G, DK]`, K `[B, R, HKV, DK]`, V alike; PREFIX_K, PREFIX_V `[B, HKV, T, D]` or None with LENGTHS
    `[B]`; OUT dense `[B, R, HKV * G, DV]`; LSE `[B, R, HKV * G]` or None; COUNTS `[B]` or None; SINKS `[HKV * G]` or
    None. Logits are q k * factor, or tanh(q k * inner) * factor with SOFTCAP; factor includes log2(e). K_FIRST, K_REST,
    V_FIRST, V_REST: channels of the two parts of a row, rest 0 if one is enough.
    """
    # Tiles that see most come first, so that no long one is left for the end.
    i_tile = tl.num_programs(0) - 1 - tl.program_id(0)
    i_head = tl.program_id(1)
    i_batch = tl.program_id(2).to(tl.int64)
    heads = tl.num_programs(1) * G
    count = num_rows
    if COUNTS is not None:
        count = tl.minimum(tl.load(COUNTS + i_batch), num_rows)
    o_m = i_tile * BM + tl.arange(0, BM)
    # [BM]
    o_row = o_m // G
    o_q_head = i_head * G + o_m % G
    m_row = o_row < count
    first = i_tile * BM // G
    last = tl.minimum((i_tile * BM + BM - 1) // G, count - 1)
    lives = first < count
    p_q = Q + i_batch * (q_batch * 8) + o_row.to(tl.int64) * (q_row * 8) + o_q_head * (q_head * 8)
    q = load_parts(p_q, m_row, DK, K_FIRST, K_REST, True)
    m = tl.full([BM], NO_SCORE, tl.float32)
    l = tl.zeros([BM], tl.float32)
    if SINKS is not None:
        sink = tl.load(SINKS + o_q_head) * LOG2_E
        m = tl.maximum(m, sink)
        l = tl.math.exp2(sink - m + P_SHIFT)
    if V_REST:
        acc = (tl.zeros([BM, V_FIRST], tl.float32), tl.zeros([BM, V_REST], tl.float32))
    else:
        acc = (tl.zeros([BM, V_FIRST], tl.float32),)
    if PREFIX_K is not None:
        length = tl.load(LENGTHS + i_batch)
        end = tl.where(lives, tl.minimum(length, prefix_rows), 0)
        p_k = PREFIX_K + i_batch * (pk_batch * 8) + i_head.to(tl.int64) * (pk_head * 8)
        p_v = PREFIX_V + i_batch * (pv_batch * 8) + i_head.to(tl.int64) * (pv_head * 8)
        m, l, acc = attend_source(
            m, l, acc, q, p_k, p_v, pk_row * 8, pv_row * 8, -length, end, first, last, o_row, inner, factor, window,
            DK, DV, K_FIRST, K_REST, V_FIRST, V_REST, BN, STAGES, SOFTCAP, WINDOW,
        )  # fmt: skip
    p_k = K + i_batch * (k_batch * 8) + i_head.to(tl.int64) * (k_head * 8)
    p_v = V + i_batch * (v_batch * 8) + i_head.to(tl.int64) * (v_head * 8)
    m, l, acc = attend_source(
        m, l, acc, q, p_k, p_v, k_row * 8, v_row * 8, 0, tl.where(lives, last + 1, 0), first, last, o_row, inner,
        factor, window, DK, DV, K_FIRST, K_REST, V_FIRST, V_REST, BN, STAGES, SOFTCAP, WINDOW,
    )  # fmt: skip
    m_out = o_row < num_rows
    # Rows beyond the count have no sum.
    b_sum = tl.where(m_row, l, 1.0)
    o_out = (i_batch * num_rows + o_row) * heads + o_q_head
    if LSE is not None:
        tl.store(LSE + o_out, tl.where(m_row, m - P_SHIFT + tl.math.log2(b_sum), float("-inf")), mask=m_out)
    b_inverse = 1.0 / b_sum
    store_part(OUT, o_out, acc[0], b_inverse, m_row, m_out, 0, V_FIRST, DV)
    if V_REST:
        store_part(OUT, o_out, acc[1], b_inverse, m_row, m_out, V_FIRST, V_REST, DV)


@triton.jit
def attend_source(
    m, l, acc, q, p_k, p_v, k_row, v_row, origin, end, first, last, o_row, inner, factor, window,
    DK: tl.constexpr, DV: tl.constexpr, K_FIRST: tl.constexpr, K_REST: tl.constexpr, V_FIRST: tl.constexpr,
    V_REST: tl.constexpr, BN: tl.constexpr, STAGES: tl.constexpr, SOFTCAP: tl.constexpr, WINDOW: tl.constexpr,
):  # fmt: skip
    """Add the keys 0 to end - 1 of one source, key j being `origin + j` rows after the chunk's first, to the softmax.

    m, l [BM], acc tiles [BM, channels]; `o_row` [BM] from `first` to `last` are the rows of the chunk in this program.
    """
    # Tiles [begin, full) cross a window's start, [full, edge) are seen whole by every row, [edge, tiles) cross an end.
    tiles = (end + BN - 1) // BN
    full = tiles * 0
    if WINDOW:
        begin = tl.maximum(first - window + 1 - origin, 0) // BN
        full = tl.minimum((tl.maximum(last - window + 1 - origin, 0) + BN - 1) // BN, tiles)
    edge = tl.maximum(tl.minimum(end, first + 1 - origin) // BN, full)
    if WINDOW:
        for i_tile in tl.range(loop_bound(begin), loop_bound(full), num_stages=STAGES):
            m, l, acc = attend_tile(
                i_tile * BN, m, l, acc, q, p_k, p_v, k_row, v_row, origin, end, first, o_row, inner, factor, window,
                DK, DV, K_FIRST, K_REST, V_FIRST, V_REST, BN, SOFTCAP, WINDOW, True,
            )  # fmt: skip
    for i_tile in tl.range(loop_bound(full), loop_bound(edge), num_stages=STAGES):
        m, l, acc = attend_tile(
            i_tile * BN, m, l, acc, q, p_k, p_v, k_row, v_row, origin, end, first, o_row, inner, factor, window,
            DK, DV, K_FIRST, K_REST, V_FIRST, V_REST, BN, SOFTCAP, WINDOW, False,
        )  # fmt: skip
    for i_tile in tl.range(loop_bound(edge), loop_bound(tiles), num_stages=STAGES):
        m, l, acc = attend_tile(
            i_tile * BN, m, l, acc, q, p_k, p_v, k_row, v_row, origin, end, first, o_row, inner, factor, window,
            DK, DV, K_FIRST, K_REST, V_FIRST, V_REST, BN, SOFTCAP, WINDOW, True,
        )  # fmt: skip
    return m, l, acc


@triton.jit
def attend_tile(
    i_key, m, l, acc, q, p_k, p_v, k_row, v_row, origin, end, first, o_row, inner, factor, window,
    DK: tl.constexpr, DV: tl.constexpr, K_FIRST: tl.constexpr, K_REST: tl.constexpr, V_FIRST: tl.constexpr,
    V_REST: tl.constexpr, BN: tl.constexpr, SOFTCAP: tl.constexpr, WINDOW: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """One step of the running softmax: the BN keys from `i_key` on. What no row of the program sees is not read."""
    o_key = tl.arange(0, BN)
    position = i_key + o_key + origin
    m_key = i_key + o_key < end
    if WINDOW:
        m_key = m_key & (position > first - window)
    # 64 bits to the tile, 32 inside it.
    k = load_parts(p_k + i_key * k_row.to(tl.int64) + o_key * k_row, m_key, DK, K_FIRST, K_REST, MASKED)
    v = load_parts(p_v + i_key * v_row.to(tl.int64) + o_key * v_row, m_key, DV, V_FIRST, V_REST, MASKED)
    # [BM, BN]
    s = dot(q[0], tl.trans(k[0]), tl.zeros([q[0].shape[0], BN], tl.float32))
    if K_REST:
        s = dot(q[1], tl.trans(k[1]), s)
    if SOFTCAP:
        s = tanh(s * inner)
    if MASKED:
        visible = m_key[None, :] & (position[None, :] <= o_row[:, None])
        if WINDOW:
            visible = visible & (position[None, :] > o_row[:, None] - window)
        s = tl.where(visible, s, float("-inf"))
    # `factor` is above 0, so the largest score stays the largest; m is finite, so no row is -inf minus -inf.
    m_new = tl.maximum(m, tl.max(s, 1) * factor)
    p = tl.math.exp2(s * factor - (m_new - P_SHIFT)[:, None])
    keep = tl.math.exp2(m - m_new)
    l = l * keep + tl.sum(p, 1)
    p = cast(p, v[0].dtype)
    if V_REST:
        acc = (dot(p, v[0], acc[0] * keep[:, None]), dot(p, v[1], acc[1] * keep[:, None]))
    else:
        acc = (dot(p, v[0], acc[0] * keep[:, None]),)
    return m_new, l, acc


@triton.jit
def load_parts(p_row, m_row, DIM: tl.constexpr, FIRST: tl.constexpr, REST: tl.constexpr, MASKED: tl.constexpr):
    """Rows of DIM channels at `p_row` [N] as tiles [N, FIRST] and, unless REST is 0, [N, REST] padded with zeros."""
    p_first = p_row[:, None] + tl.arange(0, FIRST)[None, :]
    if MASKED:
        parts = (tl.load(p_first, mask=m_row[:, None], other=0.0),)
    else:
        parts = (tl.load(p_first),)
    if REST:
        o_rest = FIRST + tl.arange(0, REST)
        p_rest = p_row[:, None] + o_rest[None, :]
        if MASKED:
            parts = parts + (tl.load(p_rest, mask=m_row[:, None] & (o_rest < DIM)[None, :], other=0.0),)
        elif FIRST + REST > DIM:
            parts = parts + (tl.load(p_rest, mask=(o_rest < DIM)[None, :], other=0.0),)
        else:
            parts = parts + (tl.load(p_rest),)
    return parts


@triton.jit
def store_part(
    OUT, o_out, acc, b_inverse, m_row, m_out, START: tl.constexpr, WIDTH: tl.constexpr, DV: tl.constexpr
):  # fmt: skip
    """Divide by the sums and store channels START to START + WIDTH; rows beyond the count are zeros."""
    o_channel = START + tl.arange(0, WIDTH)
    b_out = tl.where(m_row[:, None], acc * b_inverse[:, None], 0.0)
    p_out = OUT + o_out[:, None] * DV + o_channel[None, :]
    tl.store(p_out, cast(b_out, OUT.dtype.element_ty), mask=m_out[:, None] & (o_channel < DV)[None, :])


@triton.jit
def tanh(x):
    """From one exponential; its overflow gives 1, its underflow -1."""
    return 1.0 - 2.0 / (tl.math.exp2(x * (2.0 * LOG2_E)) + 1.0)
