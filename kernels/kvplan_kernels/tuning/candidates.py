"""Launch shapes to try: all that obey the rules of attention/config.py, or the few next to the table's entry."""

from __future__ import annotations

from collections.abc import Sequence

from kvplan.formats.layout import Layout
from kvplan_kernels.attention.config import SM_BYTES, DecodeConfig, padded_words

TILES = (32, 64, 128)
# Resident warps per SM are a multiple of 4, equal on all four schedulers.
WARPS_AND_PROGRAMS = ((1, 4), (1, 8), (1, 12), (2, 2), (2, 4), (2, 6), (4, 1), (4, 2), (4, 3))
STAGES = (3, 4)
# (warps, programs per SM, registers): a cap that leaves room for one more program without spills.
CAPPED = ((2, 6, 160), (1, 12, 160))


def candidates(base: DecodeConfig, layout: Layout, page_size: int, heads: int, sms: int) -> list[DecodeConfig]:
    """`base` first, then all others whose tiles divide the page and fit shared memory.

    Args:
        base: the table's entry; its tile is tried with other warps and programs too.
        heads: KV heads of all requests, times blocks of columns: where they nearly fill four programs per SM, one
            program each is tried.
        sms: multiprocessors of the GPU.
    """
    row_bytes = sum(2 * padded_words(layout.view(role).words) for role in ("k", "v"))
    tiles = sorted({base.block_tokens, *(tokens for tokens in TILES if page_size % tokens == 0)})
    found = [base]
    for tokens in tiles:
        found += [DecodeConfig(tokens, w, s, p) for w, p in WARPS_AND_PROGRAMS for s in STAGES]
        found += [DecodeConfig(tokens, w, 3, p, cap) for w, p, cap in CAPPED]
    if 3 * sms <= heads <= 4 * sms:
        found += [DecodeConfig(t, w, s, 4, programs=heads) for t in tiles for w in (1, 2) for s in STAGES]
    fits = [c for c in found if c.ctas_per_sm * c.block_tokens * (c.num_stages - 1) * row_bytes <= SM_BYTES]
    return list(dict.fromkeys([base, *fits]))


def neighbours(base: DecodeConfig, found: Sequence[DecodeConfig]) -> list[DecodeConfig]:
    """Those of `found` that differ from `base` in at most one of the tile, the programs on an SM, and the stages."""

    def parts(c: DecodeConfig) -> tuple[object, ...]:
        return c.block_tokens, (c.num_warps, c.ctas_per_sm, c.maxnreg, c.programs), c.num_stages

    return [c for c in found if sum(a != b for a, b in zip(parts(base), parts(c), strict=True)) <= 1]
