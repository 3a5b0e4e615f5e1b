"""Which rows of the cache a query sees: ends of the causal order and edges of the window, column by column.

Row r of R stands at position length - R + r, or at length + r where the rows' own keys are not in the cache.
"""

import triton
import triton.language as tl


@triton.jit
def seen_by_all(end, length, MODE: tl.constexpr):
    """Rows before this one, at most `end`, are seen by all queries as far as the causal order goes."""
    if MODE.causal:
        return tl.maximum(tl.minimum(end, length - (MODE.rows - 1)), 0)
    else:
        return end


@triton.jit
def left_of_all(length, reach, MODE: tl.constexpr):
    """The first row that the windows of all queries reach."""
    return tl.maximum(length - reach + MODE.rows - 1, 0)


@triton.jit
def columns(o_head, i_block, length, reach, HKV: tl.constexpr, MODE: tl.constexpr):
    """(query row of each column, counted from the first of this KV head; whether the column exists; what it sees).

    What it sees: (first row, end), each [columns], or (0, 0) where all columns see the same.
    """
    if MODE.rows == 1 and MODE.blocks == 1:
        o_query = o_head
        i_row = o_head * 0
        m_column = o_head < MODE.group
    else:
        o_column = i_block * MODE.columns + o_head
        i_row = o_column // MODE.group
        o_query = i_row * (HKV * MODE.group) + o_column % MODE.group
        m_column = (o_head < MODE.columns) & (o_column < MODE.rows * MODE.group)
    begin, end = 0, 0
    if MODE.windowed:
        begin = length - reach + i_row
    if MODE.causal:
        end = length - (MODE.rows - 1) + i_row
    return o_query, m_column, (begin, end)


@triton.jit
def hide(s, o_row, sight, NOTHING: tl.constexpr, MODE: tl.constexpr):
    """Scores [rows, columns] of the cache rows `o_row`, NOTHING where a column does not see the row."""
    if MODE.windowed:
        s = tl.where(o_row[:, None] >= sight[0][None, :], s, NOTHING)
    if MODE.causal:
        s = tl.where(o_row[:, None] < sight[1][None, :], s, NOTHING)
    return s


@triton.jit
def soften(s, softcap, shift, MODE: tl.constexpr):
    """Scores in base 2 after what is common to a query's scores and, with a softcap, softcap * tanh(logits / softcap).

    `shift` [columns]: left out of the scores because a softmax alone would ignore it.
    """
    if MODE.shifted:
        s = s + shift[None, :]
    if MODE.softcap:
        # tanh(x) = 1 - 2 / (exp(2 x) + 1); 1.4427 turns natural units into base 2.
        grown = tl.math.exp2(s * (2.0 / softcap))
        s = (softcap * 1.4426950408889634) * (1.0 - 2.0 / (grown + 1.0))
    return s
