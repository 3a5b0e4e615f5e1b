"""Which bytes of a cache its rows own, and what the others may hold: the declaration turned into masks."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kvplan.formats.layout import Plane
from kvplan_kernels.cache import Cache, allocate, field_view
from kvplan_kernels.matrix.cases import Case
from kvplan_kernels.testing import as_bytes

# Infinity as a 16-bit word; in pairs it is a NaN or an infinity of 32 bits.
INFINITY = {"fp16": 0x7C00, "bf16": 0x7F80}


def make_cache(case: Case, page_size: int, device: str) -> Cache:
    """An empty cache on shuffled pages, guard pages among them; in a `huge` pool on its last pages."""
    pages = case.num_pages(page_size)
    cache = allocate(
        case.layout, num_sequences=len(case.counts), max_tokens=max(1, *case.counts), page_size=page_size,
        device=device, num_pages=pages, shuffle=torch.Generator().manual_seed(pages),
    )  # fmt: skip
    if case.pool == "huge":
        table = cache.page_table
        table.copy_(pages - 1 - torch.arange(table.numel(), dtype=torch.int32, device=device).view_as(table))
    return cache


def declared_bytes(cache: Cache, counts: tuple[int, ...]) -> dict[str, Tensor]:
    """Bytes that rows of these counts own, as the layout declares them: plane name to bool, shaped like `as_bytes`."""
    masks = {}
    for plane in cache.layout.planes:
        mask = torch.zeros_like(as_bytes(cache.planes[plane.name]), dtype=torch.bool)
        if plane.scope == "layer":
            mask.fill_(True)
        elif plane.scope == "residual":
            for b, count in enumerate(counts):
                mask[b, :, torch.arange(max(0, count - plane.capacity), count, device=mask.device) % plane.capacity] = (
                    True
                )
        else:
            _mark_rows(cache, plane, mask, counts)
        masks[plane.name] = mask
    return masks


def _mark_rows(cache: Cache, plane: Plane, mask: Tensor, counts: tuple[int, ...]) -> None:
    at = 0
    for field in plane.fields:
        if plane.pack:
            units = field_view(cache.layout, plane, mask, field.tensor, field.name, cache.page_size)
        else:
            units = mask[..., at : at + field.unit_bytes]
            at += field.unit_bytes
        per_page = cache.page_size // field.tokens
        for b, count in enumerate(counts):
            packed = cache.layout.tensor(field.tensor).split(count)[0]
            unit = torch.arange(packed // field.tokens, device=mask.device)
            units[cache.page_table[b][unit // per_page].long(), :, unit % per_page] = True


def invert(cache: Cache, other: Cache) -> None:
    """Fill `cache` so that every byte differs from the same byte of `other`, and empty every sequence."""
    for name, plane in cache.planes.items():
        as_bytes(plane).copy_(~as_bytes(other.planes[name]))
    cache.lengths.zero_()


def soil(case: Case, cache: Cache, masks: dict[str, Tensor], earlier: Callable[[Cache], None]) -> None:
    """Fill the bytes that no row owns with the case's dirt; `earlier` writes rows of a freed sequence."""
    if case.dirt == "stale":
        old = Cache(cache.layout, cache.page_size, cache.clone().planes, cache.page_table, cache.lengths.clone())
        earlier(old)
    for name, plane in cache.planes.items():
        stored = as_bytes(plane)
        if case.dirt == "stale":
            fill = as_bytes(old.planes[name])
        else:
            word = 0xFFFF if case.dirt == "nan" else INFINITY[case.dtype]
            pair = torch.tensor([word & 0xFF, word >> 8], dtype=torch.uint8, device=stored.device)
            fill = pair[torch.arange(stored.shape[-1], device=stored.device) % 2]
        stored.copy_(torch.where(masks[name], stored, fill))
