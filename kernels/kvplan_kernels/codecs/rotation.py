"""Rotation of rows before they are encoded: a Hadamard matrix over head_dim with fixed signs.

`y = H (s * x) / sqrt(D)`, H the Hadamard matrix of D = 2^n channels in natural order, s signs that depend on the
channel only, the same for every layer, head and model: s[c] is -1 where the top bit of a 32-bit hash of c is set. The
matrix is orthogonal, so scores of a rotated query with rotated keys are those of the originals, and a sum of rotated
values is rotated back once, at the end.

The sums run in fp32 over channels that differ in bit 0 first, then bit 1 and so on, here and in the kernels: rows are
rotated bit for bit alike and codes agree. NaN is taken as 0 and values beyond 2^100 as 2^100, so that no sum overflows.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvplan_kernels.codecs.convert import to_fp32
from kvplan_kernels.dialect import cast

LIMIT = tl.constexpr(2.0**100)
# Channels of one program: some 16 KiB of fp32.
TILE_CHANNELS = 4096


def signs(dim: int, device: torch.device | str = "cpu") -> Tensor:
    """+1 or -1 per channel, fp32 `(dim,)`."""
    h = torch.arange(1, dim + 1, dtype=torch.int64, device=device)
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        h = (h ^ h >> shift) * factor & 0xFFFFFFFF
    h ^= h >> 16
    return 1.0 - 2.0 * (h >> 31).float()


def rotate_reference(x: Tensor) -> Tensor:
    """Rows `(..., D)` -> rotated rows, fp32."""
    x = x.float().nan_to_num(nan=0.0, posinf=torch.inf, neginf=-torch.inf).clamp(-LIMIT.value, LIMIT.value)
    return _hadamard(x * signs(x.shape[-1], x.device))


def rotate_back(y: Tensor) -> Tensor:
    """Inverse of `rotate_reference`: the matrix is its own inverse, then the signs."""
    return _hadamard(y.float()) * signs(y.shape[-1], y.device)


def _hadamard(x: Tensor) -> Tensor:
    dim, half = x.shape[-1], 1
    while half < dim:
        low, high = x.unflatten(-1, (-1, 2, half)).unbind(-2)
        x = torch.stack([low + high, low - high], -2).flatten(-3)
        half *= 2
    return x * x.new_tensor(dim**-0.5)


@triton.jit
def channel_signs(o_channel):
    """The signs as fp32, by integer arithmetic modulo 2^32."""
    h = (o_channel + 1).to(tl.uint32)
    h = (h ^ (h >> 16)) * 0x7FEB352D
    h = (h ^ (h >> 15)) * 0x846CA68B
    h = h ^ (h >> 16)
    return 1.0 - 2.0 * (h >> 31).to(tl.float32)


@triton.jit
def hadamard(x, ROWS: tl.constexpr, DIM: tl.constexpr, LOG2_DIM: tl.constexpr):
    """Rows [ROWS, DIM] fp32 -> H x / sqrt(DIM)."""
    for _ in tl.static_range(LOG2_DIM):
        # Neighbours are added and subtracted, then the index's lowest bit becomes its highest.
        low, high = tl.split(x.reshape(ROWS, DIM // 2, 2))
        x = tl.trans(tl.join(low + high, low - high), 0, 2, 1).reshape(ROWS, DIM)
    return x * (DIM**-0.5)


@triton.jit
def turn(x, o_channel, ROWS: tl.constexpr, DIM: tl.constexpr, LOG2_DIM: tl.constexpr, BACK: tl.constexpr):
    """Rows [ROWS, DIM] fp32 rotated, or rotated back."""
    if BACK:
        return hadamard(x, ROWS, DIM, LOG2_DIM) * channel_signs(o_channel)[None, :]
    else:
        return hadamard(x * channel_signs(o_channel)[None, :], ROWS, DIM, LOG2_DIM)


@triton.jit(do_not_specialize=["num_rows", "inner", "middle"])
def _rotate_kernel(
    p_x, p_y, num_rows, inner, middle, stride_outer, stride_middle, stride_inner,
    DIM: tl.constexpr, LOG2_DIM: tl.constexpr, TILE: tl.constexpr, BACK: tl.constexpr,
):  # fmt: skip
    """Rows [outer, middle, inner, DIM] with strides, fp16, bf16 or fp32 -> dense rotated rows."""
    o_row = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    o_channel = tl.arange(0, DIM)
    o_x = o_row // (inner * middle) * stride_outer + o_row // inner % middle * stride_middle
    o_x += o_row % inner * stride_inner
    m_row = (o_row < num_rows)[:, None]
    x = to_fp32(tl.load(p_x + o_x[:, None] + o_channel[None, :], mask=m_row, other=0.0))
    x = tl.minimum(tl.maximum(tl.where(x == x, x, 0.0), -LIMIT), LIMIT)
    y = turn(x, o_channel, TILE, DIM, LOG2_DIM, BACK)
    tl.store(p_y + o_row[:, None] * DIM + o_channel[None, :], cast(y, p_y.dtype.element_ty), mask=m_row)


def rotate(x: Tensor, out: Tensor | None = None, *, back: bool = False) -> Tensor:
    """Rotate rows `x` `(A, B, C, D)` or fewer axes, of fp16, bf16 or fp32, channels contiguous.

    Args:
        out: dense memory of x's shape for the result, in any of these dtypes; fp32 and allocated if not given.
        back: undo the rotation instead.
    """
    if out is None:
        out = torch.empty(x.shape, dtype=torch.float32, device=x.device)
    if x.numel():
        args, constants, num_warps = launch_arguments(x, out, back)
        _rotate_kernel[(triton.cdiv(args[2], constants["TILE"]),)](*args, **constants, num_warps=num_warps)
    return out


def launch_arguments(x: Tensor, out: Tensor, back: bool = False) -> tuple[list[Any], dict[str, Any], int]:
    """(arguments, constexprs, num_warps) of the kernel; also what the ahead-of-time compile tests compile."""
    rows = x[(None,) * (4 - x.dim())]
    outer, middle, inner, dim = rows.shape
    total = outer * middle * inner
    tile = min(max(1, TILE_CHANNELS // dim), triton.next_power_of_2(total))
    constants = {"DIM": dim, "LOG2_DIM": dim.bit_length() - 1, "TILE": tile, "BACK": back}
    return [x, out, total, inner, middle, *rows.stride()[:3]], constants, 4 if tile * dim >= 2048 else 1
