"""What appending means in a format with a residual: the ring of waiting rows, and the tokens that leave it.

Token t waits in slot t % capacity of the ring. Appending up to length `end` packs the tokens [split(start),
split(end)): those before `start` come out of the ring, the others from the new rows. All of it is one launch, so a slot
that one program reads must not be overwritten by another: the program that packs a waiting token also puts the newest
row into its slot, afterwards; slots out of which nothing is packed belong to the program of the new row.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kvplan.formats.tensors import BoundTensor
from kvplan.units import cdiv
from kvplan_kernels.codecs.split import packed_tokens
from kvplan_kernels.store.encode import copy_rows, write_group, write_rows


def units_to_pack(tensor: BoundTensor, new: int, tile: int) -> int:
    """Programs needed to pack what `new` rows may release: one per group of channel/N, else one per tile of tokens."""
    by_channel = tensor.granularity == "channel" and tensor.group
    return cdiv(tensor.most_packed(new), tensor.group if by_channel else tile)


@triton.jit
def append_waiting(
    p_x, stride_t, start, end, i_seq, i_head, p_pages, p_codes, p_meta, p_ring,
    L: tl.constexpr, G: tl.constexpr, HKV: tl.constexpr, PAGE: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """One program's share: one tile (or group) of the tokens to pack, and one tile of the new rows to keep."""
    WIDE: tl.constexpr = triton.next_power_of_2(L.dim)
    UNIT: tl.constexpr = L.group if L.by_channel else TILE
    i_tile = tl.program_id(0)
    old = packed_tokens(start, L)
    new = packed_tokens(end, L)
    p_ring += (i_seq * HKV + i_head) * (L.recent * L.dim)
    first = old + i_tile * UNIT
    if first < new:
        o_token = first + tl.arange(0, triton.next_power_of_2(UNIT))
        m_token = (o_token < new) & (o_token < first + UNIT)
        if L.by_channel:
            # page_size is a multiple of the group.
            page = tl.load(p_pages + first // PAGE).to(tl.int64)
            row = (page * HKV + i_head) * PAGE + first % PAGE
            write_group(p_x, stride_t, o_token - start, p_ring, o_token % L.recent, row, m_token, p_codes, p_meta, L, G)
        else:
            page = tl.load(p_pages + o_token // PAGE, mask=m_token, other=0).to(tl.int64)
            o_row = (page * HKV + i_head) * PAGE + o_token % PAGE
            write_rows(
                p_x, stride_t, o_token - start, p_ring, o_token % L.recent, o_row, m_token, i_head, p_codes, p_meta,
                None, None, None, L, G,
            )  # fmt: skip
        if first < start:
            # All threads have read before any of them overwrites.
            tl.debug_barrier()
            for at in range(0, UNIT, TILE):
                o_old = first + at + tl.arange(0, TILE)
                o_latest = o_old + (end - 1 - o_old) // L.recent * L.recent
                m_row = (o_old < start) & (o_old < first + UNIT) & (o_old < new) & (o_latest >= start)
                copy_rows(p_x, stride_t, o_latest - start, p_ring, o_old % L.recent, m_row, L, WIDE)
    o_row = tl.maximum(start, end - L.recent) + i_tile * TILE + tl.arange(0, TILE)
    m_row = (o_row < end) & ((o_row - old) % L.recent >= start - old)
    copy_rows(p_x, stride_t, o_row - start, p_ring, o_row % L.recent, m_row, L, WIDE)
