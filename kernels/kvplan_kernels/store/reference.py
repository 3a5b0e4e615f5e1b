"""Reference cache writer and reader in plain torch: append semantics of every format, residuals and flushes included.

The oracle of the write kernel. Token t of a sequence passes through slot t % recent of the residual and is packed when
its tensor's split law says so; rows are encoded from the residual's dtype, so one long append equals many short ones.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kvplan.formats.layout import Plane
from kvplan_kernels.cache import Cache, field_shape
from kvplan_kernels.codecs.grid import decode, encode
from kvplan_kernels.codecs.grid import saturated as count_saturated
from kvplan_kernels.store.static import get_static


def write_reference(
    cache: Cache, k: Tensor, v: Tensor, *, counts: Tensor | None = None, saturated: Tensor | None = None
) -> None:
    """Append rows `(B, T, HKV, D)` of K and V behind each sequence's tokens and advance `cache.lengths`.

    Same meaning of the arguments as `store.append.append`, for every format that has a codec. Synchronises.

    Raises:
        ValueError: more tokens than the cache holds.
    """
    starts = cache.lengths.tolist()
    sizes = [k.shape[1]] * len(starts) if counts is None else counts.clamp(max=k.shape[1]).tolist()
    capacity = cache.max_tokens
    for b, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        if start + size > capacity:
            raise ValueError(f"sequence {b}: {start + size} tokens do not fit the {capacity} that the cache holds")
        for side, (role, x) in enumerate((("k", k), ("v", v))):
            rows = x[b, :size].transpose(0, 1)
            _append_rows(cache, role, b, start, rows, None if saturated is None else saturated[side])
        cache.lengths[b] = start + size


def read_reference(cache: Cache, role: str, sequence: int, length: int | None = None) -> Tensor:
    """Rows of one sequence in token order as attention sees them: fp32 `(HKV, T, D)`.

    Args:
        length: tokens to read, default `cache.lengths[sequence]` (which synchronises).
    """
    tokens = int(cache.lengths[sequence]) if length is None else length
    tensor = cache.layout.tensor(role)
    packed, recent = tensor.split(tokens)
    at = torch.arange(packed, device=cache.page_table.device)
    parts = {}
    for plane, name, per in _row_fields(cache, role):
        parts[name] = _gather(cache, plane, role, name, sequence, at[::per] // per)
    rows = decode(cache.layout, role, {**parts, **(get_static(cache, role) or {})})
    if not recent:
        return rows
    slots = torch.arange(packed, tokens, device=at.device) % tensor.recent
    return torch.cat([rows, _residual(cache, role)[sequence][:, slots].float()], 1)


def _append_rows(cache: Cache, role: str, sequence: int, start: int, rows: Tensor, clipped: Tensor | None) -> None:
    """Append `rows` `(HKV, n, D)` of one sequence: pack what the split law says, keep recent ones as they are."""
    tensor, end = cache.layout.tensor(role), start + rows.shape[1]
    static = get_static(cache, role)
    if clipped is not None and static is not None:
        clipped += count_saturated(cache.layout, role, rows, static)
    if not tensor.recent:
        _pack(cache, role, sequence, start, rows)
        return
    residual = _residual(cache, role)[sequence]
    old, new = tensor.split(start)[0], tensor.split(end)[0]
    waiting = residual[:, torch.arange(old, start, device=rows.device) % tensor.recent]
    rows = torch.cat([waiting, rows.to(residual.dtype)], 1)
    if new > old:
        _pack(cache, role, sequence, old, rows[:, : new - old])
    # Every row enters the ring, packed at once or not: its content depends on the tokens, not on how they were cut.
    kept = torch.arange(max(start, end - tensor.recent), end, device=rows.device)
    residual[:, kept % tensor.recent] = rows[:, kept - old]


def _pack(cache: Cache, role: str, sequence: int, start: int, rows: Tensor) -> None:
    """Encode `rows` `(HKV, n, D)` into the pages of tokens start, start + 1, ..."""
    encoded = encode(cache.layout, role, rows, get_static(cache, role))
    at = torch.arange(start, start + rows.shape[1], device=rows.device)
    for plane, name, per in _row_fields(cache, role):
        page, slot = _place(cache, plane, sequence, at[::per] // per)
        stored = _as_bits(cache.planes[plane.name])
        item = plane.offset(role, name)
        value = _as_bits(encoded[name]).transpose(0, 1)
        stored[page, :, slot, item : item + value.shape[-1]] = value


def _gather(cache: Cache, plane: Plane, role: str, name: str, sequence: int, unit: Tensor) -> Tensor:
    """A field of the units (slots counted from the sequence's start) given: `(HKV, n, items)`."""
    page, slot = _place(cache, plane, sequence, unit)
    stored = cache.planes[plane.name]
    item = plane.offset(role, name)
    items = next(field_shape(f)[0] for f in plane.fields if (f.tensor, f.name) == (role, name))
    found = _as_bits(stored)[page, :, slot, item : item + items].transpose(0, 1).contiguous()
    return found.view(stored.dtype)


def _place(cache: Cache, plane: Plane, sequence: int, unit: Tensor) -> tuple[Tensor, Tensor]:
    """(page, slot) of each unit of `plane.tokens` tokens of a sequence."""
    per_page = cache.page_size // plane.tokens
    return cache.page_table[sequence][unit // per_page].long(), unit % per_page


def _row_fields(cache: Cache, role: str) -> list[tuple[Plane, str, int]]:
    """(plane, field name, tokens per unit) of every field of `role` that is stored with the rows."""
    return [(p, f.name, f.tokens) for p in cache.layout.scoped("page") for f in p.fields if f.tensor == role]


def _residual(cache: Cache, role: str) -> Tensor:
    ring = cache.residual(role)
    assert ring is not None
    return ring


def _as_bits(x: Tensor) -> Tensor:
    """8-bit tensors as bytes: indexing is not implemented for fp8 everywhere."""
    return x.view(torch.uint8) if x.element_size() == 1 else x
