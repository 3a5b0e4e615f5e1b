"""Scratch memory of a decode launch: partial outputs, their log sums and the work list, in one buffer."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvplan.units import align_up

# torch's CUDA allocator hands out multiples of this, so the declared size is what the device loses.
ALLOCATION_BYTES = 512


def num_slots(num_programs: int, requests: int, kv_heads: int) -> int:
    """Partial results at most: a program adds one for each (request, KV head) that it meets."""
    return num_programs + requests * kv_heads


def _parts(num_programs: int, requests: int, kv_heads: int, group: int, dim_v: int) -> tuple[int, int, int]:
    """Items of 4 bytes: partial outputs, log sums, tile starts."""
    slots = num_slots(num_programs, requests, kv_heads)
    return slots * group * dim_v, slots * group, requests + 1


def workspace_bytes(num_programs: int, requests: int, kv_heads: int, group: int, dim_v: int) -> int:
    """Bytes that `Workspace.allocate` takes from the device; depends on shapes only, not on lengths."""
    return align_up(4 * sum(_parts(num_programs, requests, kv_heads, group, dim_v)), ALLOCATION_BYTES)


@dataclass(frozen=True)
class Workspace:
    """Views into one buffer.

    Attributes:
        part_out: fp32 `(slots, group, dim_v)`.
        part_lse: fp32 `(slots, group)`.
        tile_starts: int32 `(requests + 1,)`, used when the caller brings no work list.
    """

    buffer: torch.Tensor
    part_out: torch.Tensor
    part_lse: torch.Tensor
    tile_starts: torch.Tensor

    @property
    def nbytes(self) -> int:
        return self.buffer.nbytes

    @classmethod
    def allocate(
        cls, num_programs: int, requests: int, kv_heads: int, group: int, dim_v: int, device: torch.device
    ) -> Workspace:
        shape = (num_programs, requests, kv_heads, group, dim_v)
        buffer = torch.empty(workspace_bytes(*shape), dtype=torch.uint8, device=device)
        out, lse, starts = buffer[: 4 * sum(_parts(*shape))].split([4 * n for n in _parts(*shape)])
        slots = num_slots(num_programs, requests, kv_heads)
        return cls(
            buffer,
            out.view(torch.float32).view(slots, group, dim_v),
            lse.view(torch.float32).view(slots, group),
            starts.view(torch.int32),
        )
