"""Reference writer and reader of a latent cache in plain torch: the oracle of the write kernel."""

from __future__ import annotations

import torch
from torch import Tensor

from kvplan_kernels.cache import DTYPES, Cache
from kvplan_kernels.codecs.ds_mla import decode_latent, encode_latent


def write_latent_reference(cache: Cache, latent: Tensor, *, counts: Tensor | None = None) -> None:
    """Append rows `(B, T, nope + rope)` behind each sequence's tokens and advance `cache.lengths`. Synchronises.

    Raises:
        ValueError: more tokens than the cache holds.
    """
    starts = cache.lengths.tolist()
    sizes = [latent.shape[1]] * len(starts) if counts is None else counts.clamp(0, latent.shape[1]).tolist()
    for b, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        if start + size > cache.max_tokens:
            raise ValueError(f"sequence {b}: {start + size} tokens do not fit the {cache.max_tokens} of the cache")
        for name, value in encode_latent(cache.layout, latent[b, :size]).items():
            page, slot = _place(cache, b, torch.arange(start, start + size, device=latent.device))
            _as_bytes(cache.field("latent", name))[page, 0, slot] = _as_bytes(value.contiguous())
        cache.lengths[b] = start + size


def read_latent_reference(cache: Cache, sequence: int, length: int | None = None) -> Tensor:
    """Rows of one sequence in token order as attention sees them: fp32 `(T, nope + rope)`.

    Args:
        length: tokens to read, default `cache.lengths[sequence]` (which synchronises).
    """
    tokens = int(cache.lengths[sequence]) if length is None else length
    page, slot = _place(cache, sequence, torch.arange(tokens, device=cache.page_table.device))
    parts = {}
    for stored in cache.layout.plane("latent", "codes").fields:
        found = _as_bytes(cache.field("latent", stored.name))[page, 0, slot].contiguous()
        parts[stored.name] = found.view(DTYPES[stored.storage])
    return decode_latent(cache.layout, parts)


def _place(cache: Cache, sequence: int, token: Tensor) -> tuple[Tensor, Tensor]:
    """(page, slot) of each token of a sequence."""
    return cache.page_table[sequence][token // cache.page_size].long(), token % cache.page_size


def _as_bytes(x: Tensor) -> Tensor:
    return x.view(torch.uint8)
