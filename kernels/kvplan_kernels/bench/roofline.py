"""The memory roof: how fast this GPU reads, measured by a kernel that only reads, timed like the attention kernels."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
import triton
import triton.language as tl

from kvplan_kernels.bench.timing import Timing, graph_time

ROOF_BYTES = 2**30


@dataclass(frozen=True)
class Roof:
    """Bytes per second of the best read-only configuration."""

    bytes_per_second: float
    nbytes: int
    config: str
    timing: Timing


@triton.jit
def read_kernel(p_x, p_out, ITERS: tl.constexpr, BLOCK: tl.constexpr):
    # p_x int32 [programs * ITERS * BLOCK]; p_out int32 [programs]: a sum, so that no load can be dropped
    i_program = tl.program_id(0).to(tl.int64)
    o_x = i_program * ITERS * BLOCK + tl.arange(0, BLOCK)
    b_sum = tl.zeros([BLOCK], tl.int32)
    for i in range(ITERS):
        b_sum += tl.load(p_x + o_x + i * BLOCK)
    tl.store(p_out + i_program, tl.sum(b_sum, 0))


def _read(x: torch.Tensor, *, out: torch.Tensor, block: int, iters: int, warps: int) -> None:
    read_kernel[(out.shape[0],)](x, out, ITERS=iters, BLOCK=block, num_warps=warps)


def measure_roof(device: torch.device | str = "cuda") -> Roof:
    """Read 1 GiB several ways and keep the fastest; two buffers rotate, so nothing stays in the L2."""
    words = ROOF_BYTES // 4
    buffers = [torch.randint(-(2**31), 2**31 - 1, (words,), dtype=torch.int32, device=device) for _ in range(2)]
    best: Roof | None = None
    for block, iters, warps in ((4096, 16, 8), (4096, 8, 8), (2048, 16, 4), (8192, 8, 8)):
        programs = words // (block * iters)
        out = torch.empty(programs, dtype=torch.int32, device=device)

        read = partial(_read, out=out, block=block, iters=iters, warps=warps)
        read(buffers[0])
        want = buffers[0].view(programs, iters * block).sum(1, dtype=torch.int64)
        if not torch.equal(out.to(torch.int64) & 0xFFFFFFFF, want & 0xFFFFFFFF):
            raise AssertionError("the read-only kernel read wrongly: no roof, no shares of it")
        timing = graph_time([partial(read, x) for x in buffers])
        rate = ROOF_BYTES / timing.seconds
        if best is None or rate > best.bytes_per_second:
            best = Roof(rate, ROOF_BYTES, f"block {block}, iterations {iters}, warps {warps}", timing)
    assert best is not None
    return best
