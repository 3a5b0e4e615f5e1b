"""Combine the partial outputs of one request and query head.

Loads PART_OUT fp32 `[slots, G, DV]` (already divided by its own sum) and PART_LSE fp32 `[slots, G]` (base 2). The slots
of a (request, KV head) pair are consecutive: program + request * HKV + head, for the programs whose ranges meet it.
"""

import torch
import triton
import triton.language as tl

from kvplan_kernels.codecs.rotation import turn
from kvplan_kernels.dialect import cast, loop_bound

NO_SCORE = tl.constexpr(-1.0e30)


@triton.jit(do_not_specialize=["num_requests", "num_programs"])
def combine_kernel(
    PART_OUT,
    PART_LSE,
    OUT,
    TILE_STARTS,
    num_requests,
    num_programs,
    HKV: tl.constexpr,
    G: tl.constexpr,
    DV: tl.constexpr,
    LOG2_DV: tl.constexpr,
    CHANNELS: tl.constexpr,
    SPLITS: tl.constexpr,
    PDL: tl.constexpr,
    ROTATED: tl.constexpr,
):
    """One program: one (request, KV head), one query head of its group, CHANNELS channels; SPLITS partials a step."""
    i_pair = tl.program_id(0)
    i_row = tl.program_id(1)
    o_channel = tl.program_id(2) * CHANNELS + tl.arange(0, CHANNELS)
    o_split = tl.arange(0, SPLITS)
    i_request = i_pair // HKV
    start = tl.load(TILE_STARTS + i_request).to(tl.int64)
    tiles = tl.load(TILE_STARTS + i_request + 1).to(tl.int64) - start
    total = tl.load(TILE_STARTS + num_requests).to(tl.int64) * HKV
    programs = tl.minimum(num_programs, total)
    begin = start * HKV + (i_pair % HKV) * tiles
    # Program i owns tile t if i * total // programs <= t < (i + 1) * total // programs: solved for i.
    first = ((begin + 1) * programs - 1) // tl.maximum(total, 1)
    last = ((begin + tiles) * programs - 1) // tl.maximum(total, 1)
    count = tl.where(tiles > 0, last - first + 1, 0).to(tl.int32)
    slot = first + i_pair
    if PDL:
        tl.extra.cuda.gdc_wait()
    b_max = NO_SCORE
    b_sum = 0.0
    # [CHANNELS]
    b_out = tl.zeros([CHANNELS], tl.float32)
    for i in range(0, loop_bound(count), SPLITS):
        m_split = i + o_split < count
        o_slot = (slot + i + o_split) * G + i_row
        b_lse = tl.load(PART_LSE + o_slot, mask=m_split, other=NO_SCORE)
        # [SPLITS, CHANNELS]
        m_part = m_split[:, None] & (o_channel < DV)[None, :]
        b_part = tl.load(PART_OUT + o_slot[:, None] * DV + o_channel[None, :], mask=m_part, other=0.0)
        b_new = tl.maximum(b_max, tl.max(b_lse, 0))
        b_weight = tl.where(m_split, tl.math.exp2(b_lse - b_new), 0.0)
        b_keep = tl.math.exp2(b_max - b_new)
        b_sum = b_sum * b_keep + tl.sum(b_weight, 0)
        b_out = b_out * b_keep + tl.sum(b_part * b_weight[:, None], 0)
        b_max = b_new
    b_out = b_out / tl.where(b_sum > 0, b_sum, 1.0)
    if ROTATED:
        # All channels are here, a power of two.
        b_out = turn(b_out.reshape(1, DV), tl.arange(0, DV), 1, DV, LOG2_DV, True).reshape(DV)
    p_out = OUT + (i_pair.to(tl.int64) * G + i_row) * DV + o_channel
    tl.store(p_out, cast(b_out, OUT.dtype.element_ty), mask=o_channel < DV)


def combine_constants(
    pairs: int, num_programs: int, kv_heads: int, group: int, dim_v: int, rotated: bool = False
) -> dict[str, int]:
    """Constexprs of the kernel from shapes alone; any lengths are correct, equal ones take one step per program."""
    splits = min(64, max(2, triton.next_power_of_2(triton.cdiv(num_programs, pairs) + 1)))
    padded = triton.next_power_of_2(dim_v)
    channels = padded if splits <= 16 or rotated else min(padded, 32)
    sizes = {"HKV": kv_heads, "G": group, "DV": dim_v, "LOG2_DV": dim_v.bit_length() - 1}
    return {**sizes, "CHANNELS": channels, "SPLITS": splits, "ROTATED": rotated}


def combine(
    part_out: torch.Tensor,
    part_lse: torch.Tensor,
    out: torch.Tensor,
    starts: torch.Tensor,
    num_programs: int,
    kv_heads: int,
    *,
    pdl: bool,
    rotated: bool = False,
) -> None:
    """Write `out` `(B, HQ, DV)` from `part_out` `(slots, G, DV)` and `part_lse` `(slots, G)`; zeros for length 0.

    Args:
        starts: int32 `(B + 1,)`, see work.py.
        num_programs: grid of the kernel that wrote the partials.
        rotated: V is stored rotated, so the outputs are rotated back.
        pdl: launched by programmatic dependency (sm_90 and later): the prologue overlaps the main kernel's end.
    """
    requests, heads, dim_v = out.shape
    group = heads // kv_heads
    c = combine_constants(requests * kv_heads, num_programs, kv_heads, group, dim_v, rotated)
    options = {"launch_pdl": True} if pdl else {}
    grid = (requests * kv_heads, group, triton.cdiv(dim_v, c["CHANNELS"]))
    combine_kernel[grid](
        part_out,
        part_lse,
        out,
        starts,
        requests,
        num_programs,
        **c,
        PDL=pdl,
        num_warps=1 if c["SPLITS"] <= 4 else 4,
        **options,
    )
