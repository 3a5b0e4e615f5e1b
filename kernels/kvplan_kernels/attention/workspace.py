"""Scratch memory of a decode launch: partial outputs, their log sums, the work list, turned queries, in one buffer."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvplan.units import align_up
from kvplan_kernels.attention.mode import Mode

# torch's CUDA allocator hands out multiples of this, so the declared size is what the device loses.
ALLOCATION_BYTES = 512


def num_slots(num_programs: int, segments: int) -> int:
    """Partial results at most: a program adds one for each segment that it meets."""
    return num_programs + segments


def _parts(num_programs: int, requests: int, kv_heads: int, mode: Mode, dim_v: int, dim_q: int = 0) -> tuple[int, ...]:
    """Items of 4 bytes: queries, partial outputs, log sums, tile starts."""
    slots = num_slots(num_programs, requests * kv_heads * mode.blocks)
    queries = requests * kv_heads * mode.rows * mode.group
    return queries * dim_q, slots * mode.columns * dim_v, slots * mode.columns, requests + 1


def workspace_bytes(num_programs: int, requests: int, kv_heads: int, mode: Mode, dim_v: int, dim_q: int = 0) -> int:
    """Bytes that `Workspace.allocate` takes from the device; depends on shapes only, not on lengths.

    Args:
        dim_q: channels of a query where K is stored rotated, else 0: the queries are then rotated into the workspace.
    """
    return align_up(4 * sum(_parts(num_programs, requests, kv_heads, mode, dim_v, dim_q)), ALLOCATION_BYTES)


@dataclass(frozen=True)
class Workspace:
    """Views into one buffer.

    Attributes:
        query: fp32 `(requests, rows, heads, dim_q)`, rotated queries; empty where K is stored as it is.
        part_out: fp32 `(slots, columns, dim_v)`.
        part_lse: fp32 `(slots, columns)`.
        tile_starts: int32 `(requests + 1,)`, used when the caller brings no work list.
    """

    buffer: torch.Tensor
    query: torch.Tensor
    part_out: torch.Tensor
    part_lse: torch.Tensor
    tile_starts: torch.Tensor

    @property
    def nbytes(self) -> int:
        return self.buffer.nbytes

    @classmethod
    def allocate(
        cls, num_programs: int, requests: int, kv_heads: int, mode: Mode, dim_v: int, device: torch.device,
        dim_q: int = 0,
    ) -> Workspace:  # fmt: skip
        shape = (num_programs, requests, kv_heads, mode, dim_v, dim_q)
        buffer = torch.empty(workspace_bytes(*shape), dtype=torch.uint8, device=device)
        query, out, lse, starts = buffer[: 4 * sum(_parts(*shape))].split([4 * n for n in _parts(*shape)])
        slots = num_slots(num_programs, requests * kv_heads * mode.blocks)
        return cls(
            buffer,
            query.view(torch.float32).view(requests, mode.rows, kv_heads * mode.group, dim_q),
            out.view(torch.float32).view(slots, mode.columns, dim_v),
            lse.view(torch.float32).view(slots, mode.columns),
            starts.view(torch.int32),
        )
