"""Launch shapes to try: all that obey the rules of attention/config.py, or the few near the table's entry."""

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
    """Those of `found` near `base`.

    They differ from it in one of the tile, the programs on an SM and the stages, or trade the tile for programs with as
    many tokens in flight on an SM.
    """

    def near(c: DecodeConfig) -> bool:
        tile, stages = c.block_tokens == base.block_tokens, c.num_stages == base.num_stages
        programs = all(getattr(c, x) == getattr(base, x) for x in ("num_warps", "ctas_per_sm", "maxnreg", "programs"))
        trade = stages and c.block_tokens * c.ctas_per_sm == base.block_tokens * base.ctas_per_sm
        return tile + stages + programs >= 2 or (trade and c.maxnreg is None and c.programs is None)

    return [c for c in found if near(c)]
