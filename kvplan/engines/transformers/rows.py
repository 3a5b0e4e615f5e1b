"""Rows that a layer of transformers' caches has and holds, by replaying calls (tokens of each forward pass).

A tensor may be a view: `kept` rows are the tensor's, `held` rows lie in the storage behind it.
Source: transformers 5.24.0, src/transformers/cache_utils.py and models/deepseek_v4/modeling_deepseek_v4.py, read.
"""

from __future__ import annotations

from collections.abc import Sequence

QUANTISED_TOGETHER = (5, 20)
"""Since this version the flush of a quantised cache counts all new tokens, before that one."""


def sliding_rows(calls: Sequence[int], window: int) -> tuple[int, int]:
    """(kept, held) rows of a DynamicSlidingWindowLayer: the last window - 1, a view of these and the last call's."""
    kept = held = 0
    for tokens in calls:
        held = kept + tokens
        # A window of 1 slices from -0 and so keeps everything.
        kept = min(held, window - 1) if window > 1 else held
    return kept, held


def quantised_rows(calls: Sequence[int], residual_length: int, version: tuple[int, ...]) -> tuple[int, int, list[int]]:
    """(quantised, waiting) rows of a QuantizedLayer, and the rows of every quantisation on the way.

    The first call is quantised whole. Later ones wait in the model's dtype until residual_length would be reached;
    then everything is quantised again.
    """
    packed = waiting = 0
    flushed = []
    for i, tokens in enumerate(calls):
        if i == 0:
            full = True
        elif version[:2] >= QUANTISED_TOGETHER:
            full = waiting + tokens >= residual_length
        else:
            full = waiting > 0 and waiting + 1 >= residual_length
        waiting += tokens
        if full:
            packed, waiting = packed + waiting, 0
            flushed.append(packed)
    return packed, waiting, flushed


def fullest_residual(calls: Sequence[int], residual_length: int, version: tuple[int, ...]) -> int:
    """Of these calls, how many lead to the moment at which a quantised cache holds most 16-bit rows."""
    best = (0, len(calls))
    for n in range(max(len(calls) - 2 * residual_length - 1, 1), len(calls) + 1):
        waiting = quantised_rows(calls[:n], residual_length, version)[1]
        best = max(best, (waiting, n))
    return best[1]


def open_rows(calls: Sequence[int], rate: int) -> tuple[int, int]:
    """(kept, held) rows of a compressor's buffer: tokens of the group of `rate` that is not complete."""
    kept = held = 0
    for tokens in calls:
        held = kept + tokens
        kept = held % rate
    return kept, held
