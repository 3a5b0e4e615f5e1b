"""Caches for timing, written by the append kernel, and the error of a decode on a sample of them."""

from __future__ import annotations

import torch
from torch import Tensor

from kvplan.formats.layout import Layout
from kvplan_kernels.attention.config import DecodeConfig
from kvplan_kernels.attention.decode import decode
from kvplan_kernels.attention.reference import softmax_logits
from kvplan_kernels.bench.cases import PAGE, Case
from kvplan_kernels.cache import Cache, allocate
from kvplan_kernels.store.append import append
from kvplan_kernels.store.reference import read_reference
from kvplan_kernels.store.static import calibrate_cache
from kvplan_kernels.testing import Error, relative_error

ROWS_AT_ONCE = 65536
"""Rows of all requests that are made and appended in one step."""
SAMPLES = 4
CALIBRATION_MARGIN = 1.25


def filled(layout: Layout, case: Case, device: str, page_size: int = PAGE) -> Cache:
    """A cache of random rows with exactly the case's lengths; the same rows in every format.

    K's channels have different scales and means, as real keys have; V is normal.
    """
    draw = torch.Generator(device).manual_seed(7)
    dtype = torch.bfloat16 if any(t.number == "bf16" for t in layout.tensors) else torch.float16
    batch, longest, heads = len(case.lengths), max(case.lengths), layout.heads
    cache = allocate(
        layout, num_sequences=batch, max_tokens=longest, page_size=page_size, device=device,
        shuffle=torch.Generator().manual_seed(3) if case.shuffled else None,
    )  # fmt: skip
    spread = 0.5 + torch.rand(heads, case.dim, generator=draw, device=device)
    mean = torch.randn(heads, case.dim, generator=draw, device=device)
    lengths = torch.tensor(case.lengths, dtype=torch.int32, device=device)
    step = max(1, ROWS_AT_ONCE // batch)
    for start in range(0, longest, step):
        shape = (batch, min(step, longest - start), heads, case.dim)
        k, v = (torch.randn(shape, generator=draw, device=device, dtype=dtype) for _ in range(2))
        k.mul_(spread.to(dtype)).add_(mean.to(dtype))
        if not start:
            calibrate_cache(cache, k[:1], v[:1], CALIBRATION_MARGIN)
        counts = (lengths - start).clamp(0, shape[1])
        append(cache, k, v, counts=None if case.uniform else counts.contiguous())
    assert cache.lengths.tolist() == list(case.lengths)
    return cache


def queries(layout: Layout, case: Case, device: str) -> Tensor:
    """Random queries `(B, HQ, D)` in the 16-bit dtype of the layout."""
    dtype = torch.bfloat16 if any(t.number == "bf16" for t in layout.tensors) else torch.float16
    draw = torch.Generator(device).manual_seed(11)
    shape = (len(case.lengths), layout.heads * case.group, case.dim)
    return torch.randn(shape, generator=draw, device=device, dtype=dtype)


Sample = list[tuple[int, slice, Tensor]]
"""(request, its query heads of one KV head, float64 attention of them on the dequantised codes)."""


def sampled(q: Tensor, cache: Cache, sm_scale: float) -> Sample:
    """The reference of a few (request, KV head) pairs, spread over both; the shortest and longest request are in it."""
    lengths, heads = cache.lengths.tolist(), cache.layout.heads
    group = q.shape[1] // heads
    order = sorted(range(len(lengths)), key=lambda b: (lengths[b], b))
    found = []
    for i in range(SAMPLES):
        b, h = order[i * (len(order) - 1) // (SAMPLES - 1)], i * (heads - 1) // (SAMPLES - 1)
        k, v = (read_reference(cache, role, b)[h] for role in ("k", "v"))
        own = slice(h * group, (h + 1) * group)
        found.append((b, own, softmax_logits(q[b, own], k, sm_scale)[1] @ v.double()))
    return found


def sample_error(q: Tensor, cache: Cache, sample: Sample, sm_scale: float, config: DecodeConfig | None) -> Error:
    """Error of the decode kernel, before outputs are rounded to 16 bit."""
    out = torch.full((*q.shape[:2], cache.layout.view("v").dim), torch.nan, device=q.device)
    decode(q, cache, sm_scale=sm_scale, config=config, out=out)
    if not out.isfinite().all():
        return Error(float("nan"), float("nan"))
    return relative_error(torch.cat([out[b, own] for b, own, _ in sample]), torch.cat([want for *_, want in sample]))
