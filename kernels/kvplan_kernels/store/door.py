"""The door of the write launchers: what a call must bring, checked before anything is launched."""

from __future__ import annotations

import torch
from torch import Tensor

from kvplan_kernels.cache import DTYPES, Cache


def code_bits(cache: Cache, role: str) -> Tensor:
    """8-bit codes as int8 whatever their storage, narrower ones as int16 words, wider ones unchanged."""
    if cache.layout.view(role).planar:
        return cache.words(role)
    codes = cache.codes(role)
    return codes.view(torch.int8) if codes.element_size() == 1 else codes


def meta_bits(cache: Cache, role: str) -> Tensor | None:
    """Row scales as the kernels address them, from the first one on; those of one byte as int8."""
    meta, view = cache.meta_start(role), cache.layout.view(role)
    if meta is None:
        return None
    return meta.view(torch.int8 if view.meta_bits == 8 else DTYPES[view.meta_storage])


def check_append(
    cache: Cache, k: Tensor, v: Tensor, counts: Tensor | None, max_length: int | None, saturated: Tensor | None
) -> None:
    cache.check()
    batch, heads = cache.num_sequences, cache.layout.heads
    for role, x in (("k", k), ("v", v)):
        dim = cache.layout.tensor(role).dim
        if x.dim() != 4 or x.shape[:1] + x.shape[2:] != (batch, heads, dim) or x.shape[1] != k.shape[1]:
            raise ValueError(f"{role}: want ({batch}, T, {heads}, {dim}), got {tuple(x.shape)}")
        check_rows(role, x)
    capacity = cache.max_tokens
    need = k.shape[1] if max_length is None and counts is None else max_length or 0
    if need > capacity:
        raise ValueError(f"{need} tokens do not fit the {capacity} that the cache holds")
    check_vector("page_table", cache.page_table, torch.int32, (batch, cache.page_table.shape[1]))
    check_vector("lengths", cache.lengths, torch.int32, (batch,))
    check_vector("counts", counts, torch.int32, (batch,))
    check_vector("saturated", saturated, torch.int64, (2, heads))


def check_rows(role: str, x: Tensor) -> None:
    """The door for new rows: a dtype that is read, channels side by side."""
    if x.dtype not in (torch.float16, torch.bfloat16, torch.float32) or x.stride(-1) != 1:
        raise ValueError(f"{role}: want fp16, bf16 or fp32 rows of contiguous channels, got {x.dtype} {x.stride()}")


def check_vector(name: str, x: Tensor | None, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """The door for a small tensor that may be left out."""
    if x is not None and (x.dtype != dtype or tuple(x.shape) != shape or not x.is_contiguous()):
        raise ValueError(f"{name}: want contiguous {dtype} {shape}, got {x.dtype} {tuple(x.shape)}")
