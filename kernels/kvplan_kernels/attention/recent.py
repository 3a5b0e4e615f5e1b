"""Rows that wait unquantised in a residual: scores of keys, outputs of values. Token t is row t % capacity of a ring.

They are few, so these tiles are plain: rows of 16 bit, no pipeline. Tokens lie on the matrix unit's M axis.
"""

import triton
import triton.language as tl

from kvplan_kernels.attention.load import power_of_two
from kvplan_kernels.codecs.grid_tiles import channels
from kvplan_kernels.dialect import cast, dot


@triton.jit
def load_plain_query(p_query, K_RING, o_query, m_column, sm_scale, K: tl.constexpr):
    """(query [channels, HEADS] in the dtype of the waiting keys, divided by a power of two; factor of its scores)."""
    o_channel = tl.arange(0, triton.next_power_of_2(K.dim))
    m = (o_channel < K.dim)[:, None] & m_column[None, :]
    x = tl.load(p_query + o_query[None, :] * K.dim + o_channel[:, None], mask=m, other=0.0).to(tl.float32)
    unit, inverse = power_of_two(tl.max(tl.max(tl.abs(x), 1), 0))
    return cast(x * inverse, K_RING.dtype.element_ty), unit * sm_scale


@triton.jit
def recent_scores(q, q_factor, K_RING, i_pair, o_token, m_token, K: tl.constexpr):
    """Scores [tokens, HEADS] in base 2 of keys that wait; masked tokens get 0.

    `q`, `q_factor`: from `load_plain_query`; `i_pair`: request * KV heads + head.
    """
    o_channel = tl.arange(0, q.shape[0])
    p_row = K_RING + (i_pair * K.recent + o_token % K.recent)[None, :] * K.dim + o_channel[:, None]
    # [channels, tokens]
    k = tl.load(p_row, mask=m_token[None, :] & (o_channel < K.dim)[:, None], other=0.0)
    return dot(tl.trans(k), q, tl.zeros([o_token.shape[0], q.shape[1]], tl.float32)) * q_factor


@triton.jit
def recent_outputs(V_RING, i_pair, o_token, m_token, o_word, acc, p, keep, V: tl.constexpr):
    """Natural planes [VW, HEADS] of the output after one more tile of values that wait; `p` [tokens, HEADS]."""
    STRIPES: tl.constexpr = V.stripes
    PLANES: tl.constexpr = V.fields_per_word
    p_row = V_RING + (i_pair * V.recent + o_token % V.recent)[None, :] * V.dim
    m = m_token[None, :] & (o_word < V.stripe_words)[:, None]
    b_p = cast(p, V_RING.dtype.element_ty)
    new = ()
    for i_stripe in tl.static_range(STRIPES):
        for j in tl.static_range(PLANES):
            v = tl.load(p_row + channels(o_word, i_stripe, j, V)[:, None], mask=m, other=0.0)
            new = new + (dot(v, b_p, acc[i_stripe * PLANES + j] * keep[None, :]),)
    return new
