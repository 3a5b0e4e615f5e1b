"""Rows of MLX-LM's buffers, by replaying calls: numbers of tokens, one for each `update_and_fetch` of a layer.

Source: MLX-LM 0.32.2, mlx_lm/models/cache.py, read; the golden file of the project's facts.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvplan.formats.layout import Layout
from kvplan.units import align_up

STEP = 256
"""Rows by which a buffer grows."""


def growing_rows(calls: Sequence[int]) -> int:
    """Rows of a KVCache or QuantizedKVCache after these calls.

    A call that does not fit adds its tokens, rounded up to 256; unused rows are cut off first, unless the used ones
    are a multiple of 256.
    """
    used = rows = 0
    for tokens in calls:
        if used + tokens > rows:
            rows = (used if used % STEP else rows) + align_up(tokens, STEP)
        used += tokens
    return rows


def rotating_rows(calls: Sequence[int], max_size: int) -> int:
    """Rows of a RotatingKVCache after these calls: whole calls are kept until the next one, single tokens rotate."""
    seen = rows = at = 0
    for tokens in calls:
        if tokens == 1:
            if seen >= rows and rows < max_size:
                rows, at = rows + min(STEP, max_size - seen), seen
            if rows >= max_size:
                # Cut to the window, or full already: the next row replaces the oldest.
                at = at if rows == max_size and at < max_size else 0
                rows = max_size
            at += 1
        else:
            # In order of time, without rows that were never written; then the last max_size - 1 and the new ones.
            held = rows if seen >= rows else at
            rows = at = min(held, max_size - 1) + tokens
        seen += tokens
    return rows


def chunked_rows(calls: Sequence[int], chunk_size: int, cut: bool = True) -> int:
    """Rows of a ChunkedKVCache after these calls.

    Args:
        cut: whether the front is cut before each call, as Llama 4 does; a cache used on its own is not.
    """
    used = rows = 0
    for tokens in calls:
        if cut and rows >= chunk_size:
            used -= rows - chunk_size
            rows = chunk_size
        if used + tokens > rows:
            rows = (used if used % STEP else rows) + align_up(tokens, STEP)
        used += tokens
    return rows


def quantised(calls: Sequence[int], start: int) -> bool:
    """Whether a cache has been converted: after the first call that ends at `quantized_kv_start` tokens or more."""
    return sum(calls) >= start


def array_bytes(layout: Layout, tensor: str, rows: int, sequences: int) -> dict[str, int]:
    """Bytes of each array that holds a tensor (k, v or latent): codes as words, and scales and biases."""
    made: dict[str, int] = {}
    for plane in layout.scoped("page"):
        for f in plane.fields:
            if f.tensor == tensor:
                name = "codes" if f.role == "payload" else f.name
                made[name] = made.get(name, 0) + sequences * plane.heads(layout.heads) * rows * f.unit_bytes
    return made
