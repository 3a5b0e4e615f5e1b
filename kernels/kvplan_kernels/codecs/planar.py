"""Codes below 8 bits in 16-bit words: field j of word w, at bits `j * bits`, is channel `j * words + w` of the row.

So a mask over a row's words gives one plane of neighbouring channels, and a group of scales is a range of planes. Words
are stored as little-endian bytes, which every machine that runs these kernels reads as int16.
"""

from __future__ import annotations

import torch
from torch import Tensor


def pack(codes: Tensor, bits: int) -> Tensor:
    """Unsigned codes int32 `(..., D)` below `2**bits` -> bytes uint8 `(..., D * bits // 8)`."""
    fields = codes.unflatten(-1, (16 // bits, -1))
    shifts = torch.arange(0, 16, bits, dtype=torch.int32, device=codes.device)
    words = (fields << shifts[:, None]).sum(-2)
    return torch.stack([words & 0xFF, words >> 8], -1).flatten(-2).to(torch.uint8)


def unpack(packed: Tensor, bits: int) -> Tensor:
    """Inverse of `pack`: bytes uint8 `(..., D * bits // 8)` -> codes int32 `(..., D)`."""
    halves = packed.to(torch.int32).unflatten(-1, (-1, 2))
    words = halves[..., 0] | halves[..., 1] << 8
    shifts = torch.arange(0, 16, bits, dtype=torch.int32, device=packed.device)
    fields = words.unsqueeze(-2) >> shifts[:, None] & (1 << bits) - 1
    return fields.flatten(-2)


def pack_code(codes: Tensor, widths: tuple[int, ...]) -> list[Tensor]:
    """Codes in parts of these widths, the low bits first, each part in words of its own (3 bits: 2 and 1)."""
    parts = []
    for bits in widths:
        parts.append(pack(codes & (1 << bits) - 1, bits))
        codes = codes >> bits
    return parts


def unpack_code(parts: list[Tensor], widths: tuple[int, ...]) -> Tensor:
    """Inverse of `pack_code`."""
    codes, at = unpack(parts[0], widths[0]), widths[0]
    for part, bits in zip(parts[1:], widths[1:], strict=True):
        codes = codes | unpack(part, bits) << at
        at += bits
    return codes


def flip_top_bit(packed_row: Tensor, channel: int, bits: int) -> None:
    """Flip the top bit of one channel's code in a row of bytes, in place."""
    words = packed_row.numel() // 2
    at = channel // words * bits + bits - 1
    packed_row[channel % words * 2 + at // 8] ^= 1 << at % 8
