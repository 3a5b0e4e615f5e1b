"""A prefix hit: a chunk of new 16-bit rows attends to the quantised rows in the cache, then causally to itself.

Two ways. *Fused*: attention of the chunk to itself gives a partial result, which the decode kernel merges with its own
over the quantised prefix; it decodes the prefix once for every few query rows, so it suits small chunks. *Dequantise*:
the prefix is written once to a dense 16-bit scratch, `Layout.dense_bytes` large, and read from there.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from kvplan.formats.layout import Layout
from kvplan_kernels.attention.config import format_class
from kvplan_kernels.attention.decode import decode
from kvplan_kernels.attention.prefill import prefill
from kvplan_kernels.attention.unfused import dequantise
from kvplan_kernels.attention.variant import PLAIN, Variant
from kvplan_kernels.cache import Cache
from kvplan_kernels.codecs.rotation import rotate
from kvplan_kernels.store.append import append

Path = Literal["fused", "dequantise"]
Scratch = tuple[Tensor, Tensor]

# Query rows of a KV head (chunk rows x query heads per KV head) from which dequantising once is faster, by row of
# `config.TABLE`. Measured on an H200 behind 32,768 rows (docs/results/prefix_h200.json); int3, int2 and the rows by
# channel are not in that file yet and taken from their neighbours.
CROSSOVER = {
    "16 bit": 168,
    "int8": 100,
    "fp8": 124,
    "fp4": 72,
    "int4": 108,
    "int3": 72,
    "int2": 108,
    "groups": 76,
    "8-bit groups": 76,
    "channels": 48,
    "8-bit channels": 48,
}


def crossover_rows(layout: Layout, group: int) -> int:
    """Chunk rows from which dequantising once is taken, with `group` query heads per KV head."""
    return max(1, CROSSOVER[format_class(layout)] // group)


def prefix_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cache: Cache,
    *,
    sm_scale: float | None = None,
    variant: Variant = PLAIN,
    counts: Tensor | None = None,
    path: Path | None = None,
    out: Tensor | None = None,
    scratch: Scratch | None = None,
) -> Tensor:
    """Attention of R new rows per request behind the rows that its cache holds; the cache is not written.

    Row r of request b stands at position cache.lengths[b] + r. Its own k and v rows are read in 16 bit; the caller
    appends them afterwards (`prefix_attention_and_write` does both).

    Args:
        q, k, v, sm_scale, variant, counts, out: as in `prefill`.
        cache: `cache.lengths[b]` quantised rows of request b, 0 or more.
        path: default `dequantise` from `crossover_rows` on, else `fused`.
        scratch: dense K and V of the dequantise path from `make_scratch`, which must hold the longest prefix; allocated
            for all that the cache can hold if not given.

    Returns:
        `out` `(B, R, HQ, Dv)`. Nothing waits for the device.

    Raises:
        UnsupportedError: a format without a kernel for the path.
        ValueError: a path, shape, dtype or stride that does not fit.
    """
    layout = cache.layout
    want = (cache.num_sequences, layout.heads, layout.tensor("k").dim, layout.tensor("v").dim)
    if k.dim() != 4 or v.dim() != 4 or (k.shape[0], k.shape[2], k.shape[3], v.shape[3]) != want:
        raise ValueError(f"k and v are {tuple(k.shape)} and {tuple(v.shape)}, the cache has (B, HKV, Dk, Dv) {want}")
    if path is None:
        path = "dequantise" if q.shape[1] >= crossover_rows(layout, q.shape[2] // layout.heads) else "fused"
    if path == "fused":
        return _fused(q, k, v, cache, sm_scale, variant, counts, out)
    if path != "dequantise":
        raise ValueError(f"path is {path!r}, expected 'fused', 'dequantise' or None")
    before = _dense_prefix(cache, make_scratch(q, cache) if scratch is None else scratch)
    return prefill(
        q, k, v, sm_scale=sm_scale, variant=variant, counts=counts, prefix=(*before, cache.lengths), out=out
    )  # fmt: skip


def prefix_attention_and_write(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cache: Cache,
    *,
    sm_scale: float | None = None,
    variant: Variant = PLAIN,
    counts: Tensor | None = None,
    path: Path | None = None,
    max_length: int | None = None,
    out: Tensor | None = None,
    scratch: Scratch | None = None,
) -> Tensor:
    """`prefix_attention`, then `append` of the chunk's rows: one step of a chunked prefill."""
    out = prefix_attention(
        q, k, v, cache, sm_scale=sm_scale, variant=variant, counts=counts, path=path, out=out, scratch=scratch
    )
    append(cache, k, v, counts=counts, max_length=max_length)
    return out


def make_scratch(q: Tensor, cache: Cache, num_tokens: int | None = None) -> Scratch:
    """Dense K `(B, HKV, T, Dk)` and V `(B, HKV, T, Dv)` in q's dtype, to be kept and used by every layer.

    Args:
        num_tokens: T, an upper bound of `cache.lengths`, default all that the cache holds.
    """
    layout = cache.layout
    tokens = cache.max_tokens if num_tokens is None else num_tokens
    shape = (cache.num_sequences, layout.heads, tokens)
    return q.new_empty((*shape, layout.tensor("k").dim)), q.new_empty((*shape, layout.tensor("v").dim))


def _dense_prefix(cache: Cache, scratch: Scratch) -> Scratch:
    """The cache's rows in the scratch, as attention sees them: rotated ones are rotated back where they lie."""
    dequantise(cache, *scratch)
    for role, rows in zip("kv", scratch, strict=True):
        if cache.layout.view(role).rot:
            rotate(rows, rows, back=True)
    return scratch


def _fused(
    q: Tensor, k: Tensor, v: Tensor, cache: Cache, sm_scale: float | None, variant: Variant, counts: Tensor | None,
    out: Tensor | None,
) -> Tensor:  # fmt: skip
    own = q.new_empty((*q.shape[:3], v.shape[3]), dtype=torch.float32)
    lse = q.new_empty(q.shape[:3], dtype=torch.float32)
    prefill(q, k, v, sm_scale=sm_scale, variant=variant, counts=counts, out=own, lse=lse)
    out = decode(q.contiguous(), cache, sm_scale=sm_scale, variant=variant, own=(own, lse), out=out)
    if counts is not None:
        # The decode kernel takes every row for real.
        padding = torch.arange(q.shape[1], device=q.device) >= counts[:, None]
        out.masked_fill_(padding[:, :, None, None], 0.0)
    return out
