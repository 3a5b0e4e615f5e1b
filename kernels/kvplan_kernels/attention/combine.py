"""Combine the partial outputs of one query row and head.

Loads PART_OUT fp32 `[slots, columns, DV]` (already divided by its own sum) and PART_LSE fp32 `[slots, columns]` (base
2). A segment is a (request, KV head, block of columns); its slots are consecutive: program + segment, for the programs
whose ranges meet it. A partial result over the rows' own keys, and sinks, join at the end.
"""

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from kvplan_kernels.attention.mode import Mode
from kvplan_kernels.codecs.rotation import turn
from kvplan_kernels.dialect import cast, dependent_launch, loop_bound

NO_SCORE = tl.constexpr(-1.0e30)
# Sums of logs below this are of queries that saw nothing.
NOTHING = tl.constexpr(-1.0e28)
# Partials that one step reads at once; each further step waits for memory once more.
MOST_SPLITS = 256


@triton.jit(do_not_specialize=["num_requests", "num_programs"])
def combine_kernel(
    PART_OUT,
    PART_LSE,
    OWN_OUT,
    OWN_LSE,
    SINKS,
    OUT,
    TILE_STARTS,
    num_requests,
    num_programs,
    MODE: tl.constexpr,
    HKV: tl.constexpr,
    DV: tl.constexpr,
    LOG2_DV: tl.constexpr,
    CHANNELS: tl.constexpr,
    SPLITS: tl.constexpr,
    PDL: tl.constexpr,
    ROTATED: tl.constexpr,
):
    """One program: one segment, one of its columns, CHANNELS channels; SPLITS partials a step.

    OWN_OUT `[B, R, HQ, DV]`, OWN_LSE `[B, R, HQ]` base 2; SINKS `[HQ]`; OUT `[B, R, HQ, DV]`.
    """
    SEGMENTS: tl.constexpr = HKV * MODE.blocks
    i_segment = tl.program_id(0)
    i_column = tl.program_id(1)
    o_channel = tl.program_id(2) * CHANNELS + tl.arange(0, CHANNELS)
    o_split = tl.arange(0, SPLITS)
    i_request = i_segment // SEGMENTS
    start = tl.load(TILE_STARTS + i_request).to(tl.int64)
    tiles = tl.load(TILE_STARTS + i_request + 1).to(tl.int64) - start
    total = tl.load(TILE_STARTS + num_requests).to(tl.int64) * SEGMENTS
    programs = tl.minimum(num_programs, total)
    begin = start * SEGMENTS + (i_segment % SEGMENTS) * tiles
    # Program i owns tile t if i * total // programs <= t < (i + 1) * total // programs: solved for i.
    first = ((begin + 1) * programs - 1) // tl.maximum(total, 1)
    last = ((begin + tiles) * programs - 1) // tl.maximum(total, 1)
    count = tl.where(tiles > 0, last - first + 1, 0).to(tl.int32)
    slot = first + i_segment
    i_head = i_segment % SEGMENTS // MODE.blocks
    i_query = i_segment % MODE.blocks * MODE.columns + i_column
    i_head = i_head * MODE.group + i_query % MODE.group
    o_out = (i_request.to(tl.int64) * MODE.rows + i_query // MODE.group) * (HKV * MODE.group) + i_head
    exists = i_query < MODE.rows * MODE.group
    if PDL:
        tl.extra.cuda.gdc_wait()
    b_max = NO_SCORE
    b_sum = 0.0
    # [CHANNELS]
    b_out = tl.zeros([CHANNELS], tl.float32)
    for i in range(0, loop_bound(count), SPLITS):
        m_split = i + o_split < count
        o_slot = (slot + i + o_split) * MODE.columns + i_column
        b_lse = tl.load(PART_LSE + o_slot, mask=m_split, other=NO_SCORE)
        # [SPLITS, CHANNELS]
        m_part = m_split[:, None] & (o_channel < DV)[None, :]
        b_part = tl.load(PART_OUT + o_slot[:, None] * DV + o_channel[None, :], mask=m_part, other=0.0)
        b_new = tl.maximum(b_max, tl.max(b_lse, 0))
        # Not "below": a sum of NaN is something.
        seen = m_split & ~(b_lse < NOTHING) if MODE.edges or MODE.own else m_split
        b_weight = tl.where(seen, tl.math.exp2(b_lse - b_new), 0.0)
        b_keep = tl.math.exp2(b_max - b_new)
        b_sum = b_sum * b_keep + tl.sum(b_weight, 0)
        b_out = b_out * b_keep + tl.sum(b_part * b_weight[:, None], 0)
        b_max = b_new
    if ROTATED:
        # All channels are here, a power of two.
        b_out = turn(b_out.reshape(1, DV), tl.arange(0, DV), 1, DV, LOG2_DV, True).reshape(DV)
    if MODE.own:
        b_lse = tl.load(OWN_LSE + o_out, mask=exists, other=NO_SCORE)
        b_part = tl.load(OWN_OUT + o_out * DV + o_channel, mask=exists & (o_channel < DV), other=0.0)
        b_new = tl.maximum(b_max, tl.maximum(b_lse, NO_SCORE))
        b_weight = tl.where(b_lse < NOTHING, 0.0, tl.math.exp2(b_lse - b_new))
        b_keep = tl.math.exp2(b_max - b_new)
        b_sum = b_sum * b_keep + b_weight
        b_out = b_out * b_keep + tl.where(b_lse < NOTHING, 0.0, b_part) * b_weight
        b_max = b_new
    if MODE.sinks:
        b_sink = tl.load(SINKS + i_head).to(tl.float32) * 1.4426950408889634
        b_new = tl.maximum(b_max, b_sink)
        b_keep = tl.math.exp2(b_max - b_new)
        b_sum = b_sum * b_keep + tl.math.exp2(b_sink - b_new)
        b_out = b_out * b_keep
    b_out = b_out / tl.where(b_sum == 0, 1.0, b_sum)
    tl.store(OUT + o_out * DV + o_channel, cast(b_out, OUT.dtype.element_ty), mask=exists & (o_channel < DV))


def combine_constants(
    segments: int, num_programs: int, kv_heads: int, mode: Mode, dim_v: int, rotated: bool = False
) -> dict[str, Any]:
    """Constexprs of the kernel from shapes alone; any lengths are correct, equal ones take one step per program."""
    wanted = max(2, triton.next_power_of_2(triton.cdiv(num_programs, segments) + 1))
    splits = min(64 if rotated else MOST_SPLITS, wanted)
    padded = triton.next_power_of_2(dim_v)
    # Some 32 values per thread.
    channels = padded if splits <= 16 or rotated else min(padded, 2048 // splits)
    sizes = {"MODE": mode, "HKV": kv_heads, "DV": dim_v, "LOG2_DV": dim_v.bit_length() - 1}
    return {**sizes, "CHANNELS": channels, "SPLITS": splits, "ROTATED": rotated}


def combine(
    part_out: Tensor,
    part_lse: Tensor,
    out: Tensor,
    starts: Tensor,
    num_programs: int,
    kv_heads: int,
    mode: Mode,
    *,
    pdl: bool,
    rotated: bool = False,
    own: tuple[Tensor, Tensor] | None = None,
    sinks: Tensor | None = None,
) -> None:
    """Write `out` `(B, R, HQ, DV)` from `part_out` `(slots, columns, DV)` and `part_lse` `(slots, columns)`; zeros for
    rows that see nothing.

    Args:
        starts: int32 `(B + 1,)`, see work.py.
        num_programs: grid of the kernel that wrote the partials.
        rotated: V is stored rotated, so the outputs are rotated back.
        pdl: launched by programmatic dependency (sm_90 and later): the prologue overlaps the main kernel's end.
        own, sinks: as given to `decode`, where `mode` says so.
    """
    requests, dim_v = out.shape[0], out.shape[-1]
    segments = requests * kv_heads * mode.blocks
    c = combine_constants(segments, num_programs, kv_heads, mode, dim_v, rotated)
    grid = (segments, mode.columns, triton.cdiv(dim_v, c["CHANNELS"]))
    combine_kernel[grid](
        part_out,
        part_lse,
        part_out if own is None else own[0],
        part_lse if own is None else own[1],
        part_lse if sinks is None else sinks,
        out,
        starts,
        requests,
        num_programs,
        **c,
        PDL=pdl,
        num_warps=1 if c["SPLITS"] <= 4 else 4,
        **dependent_launch(pdl),
    )
