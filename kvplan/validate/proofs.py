"""The yes-or-no proofs of one format on a small cache: codes as the reference writes them, scales and codes obeyed.

A kernel that ignores a scale, reads a wrong code or secretly attends to a 16-bit copy fails here.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from kvplan_kernels.attention.decode import decode
from kvplan_kernels.attention.reference import attention_reference
from kvplan_kernels.attention.variant import PLAIN, Variant
from kvplan_kernels.cache import Cache, allocate
from kvplan_kernels.codecs.planar import flip_top_bit
from kvplan_kernels.store.append import append
from kvplan_kernels.store.reference import read_reference, write_reference
from kvplan_kernels.store.static import calibrate_cache, double_scales
from kvplan_kernels.testing import KERNEL, Error, Tolerance, as_bytes, differing_bytes, poison, relative_error

from kvplan.formats.layout import Layout
from kvplan.validate.report import Check
from kvplan.validate.tensors import Geometry, Tensors, make_tensors

FLIP_TOLERANCE = 0.05
"""Relative error allowed for the difference that one flipped code makes: a small one of two rounded outputs."""


@dataclass(frozen=True)
class Small:
    """A small cache, written once by the kernel and once by the reference codec, with the tensors it came from."""

    cache: Cache
    oracle: Cache
    tensors: Tensors
    sm_scale: float
    variant: Variant


@dataclass(frozen=True)
class Attention:
    """The kernel's output and the reference's, (B, HQ, Dv)."""

    kernel: torch.Tensor
    reference: torch.Tensor


def small_case(
    layout: Layout,
    geometry: Geometry,
    *,
    page_size: int,
    dtype: torch.dtype,
    device: str,
    seed: int,
    variant: Variant = PLAIN,
) -> Small:
    """Two requests over several shuffled pages: a bulk append, then single tokens."""
    tokens = min(geometry.tokens, 2 * page_size + 37)
    g = Geometry(2, tokens, geometry.q_heads, geometry.kv_heads, geometry.k_dim, geometry.v_dim)
    tensors = make_tensors(g, seed=seed, dtype=dtype, device=device)
    shuffle = torch.Generator().manual_seed(seed)
    cache = allocate(layout, num_sequences=2, max_tokens=tokens, page_size=page_size, device=device, shuffle=shuffle)
    poison(cache, 0)
    calibrate_cache(cache, tensors.k, tensors.v)
    oracle = cache.clone()
    oracle.lengths = cache.lengths.clone()
    bulk = tokens - min(3, tokens - 1)
    for start, stop in [(0, bulk), *((t, t + 1) for t in range(bulk, tokens))]:
        append(cache, tensors.k[:, start:stop], tensors.v[:, start:stop])
    write_reference(oracle, tensors.k, tensors.v)
    return Small(cache, oracle, tensors, geometry.k_dim**-0.5, variant)


def prove(small: Small) -> tuple[Check, ...]:
    """All proofs of one format, in order of depth."""
    before = Attention(_run(small, small.cache), _reference(small, small.cache))
    _, kernel = agreement("kernel on a small shuffled cache", before.kernel, before.reference)
    checks = [_codes(small), kernel, _reused_pages(small)]
    layout, length = small.cache.layout, int(small.cache.lengths[0])
    if layout.view("k").quantised and layout.tensor("k").split(length)[0]:
        checks.append(_doubled_scales(small, before))
    packed, waiting = layout.tensor("v").split(length)
    if packed:
        checks.append(_flipped_code(small, before, packed))
    if waiting:
        checks.append(_flipped_row(small, before, packed))
    return tuple(checks)


def stored_attention(
    q: torch.Tensor, cache: Cache, sm_scale: float, variant: Variant = PLAIN, *, fp8_domain: bool = False
) -> torch.Tensor:
    """fp64 attention on what the cache holds, dequantised: (B, HQ, Dv)."""
    rows = [lambda b, role=role: read_reference(cache, role, b) for role in ("k", "v")]
    return attention_reference(q, rows[0], rows[1], cache.lengths, sm_scale, variant, fp8_domain=fp8_domain)


def kernel_attention(
    q: torch.Tensor, cache: Cache, sm_scale: float, variant: Variant = PLAIN, *, fp8_domain: bool = False
) -> torch.Tensor:
    """The fused kernel's output in fp32 over NaN: what is not written shows, and no bf16 rounding hides its error."""
    out = q.new_full((*q.shape[:2], cache.layout.tensor("v").dim), float("nan"), dtype=torch.float32)
    return decode(q, cache, sm_scale=sm_scale, variant=variant, fp8_domain=fp8_domain, out=out)


def agreement(
    name: str,
    kernel: torch.Tensor,
    reference: torch.Tensor,
    what: str = "fp64 on the dequantised codes",
    tolerance: Tolerance = KERNEL,
) -> tuple[Error, Check]:
    """A kernel's output against its reference, by the one table of tolerances."""
    error = relative_error(kernel, reference)
    detail = f"relative L2 {error.relative:.1e}, max ratio {error.max_ratio:.1e} against {what}"
    return error, Check(name=name, passed=tolerance.accepts(error), detail=detail)


def _reference(small: Small, cache: Cache) -> torch.Tensor:
    return stored_attention(small.tensors.q, cache, small.sm_scale, small.variant)


def _run(small: Small, cache: Cache) -> torch.Tensor:
    return kernel_attention(small.tensors.q, cache, small.sm_scale, small.variant)


def _codes(small: Small) -> Check:
    """Every byte that the append kernel wrote equals the reference codec's."""
    wrong = sum(differing_bytes(small.cache, small.oracle).values())
    detail = f"{wrong} of {small.cache.nbytes:,} bytes differ"
    return Check(name="codes bit-exact", passed=wrong == 0, detail=detail)


def _reused_pages(small: Small) -> Check:
    """Shorter sequences in the pages of ended ones must be attended to as in a fresh cache, bit for bit."""
    reused, fresh = _emptied(small.cache), _emptied(small.cache)
    for plane in fresh.layout.planes:
        if plane.scope != "layer":
            # Every 16-bit and 8-bit float of these bytes is not a number: one that is read shows.
            as_bytes(fresh.planes[plane.name]).fill_(0xFF)
    tokens = max(small.tensors.k.shape[1] * 2 // 3, 1)
    # The other request's rows: what lay there before is of another content, and longer.
    k, v = (x.flip(0)[:, :tokens] for x in (small.tensors.k, small.tensors.v))
    for cache in (reused, fresh):
        append(cache, k, v)
    got, want = _run(small, reused), _run(small, fresh)
    differ = int((got != want).sum())
    detail = f"{differ} of {want.numel():,} outputs differ from those of a fresh cache"
    return Check(name="reused pages", passed=differ == 0, detail=detail)


def _emptied(cache: Cache) -> Cache:
    """A copy whose sequences have ended: planes as they are, lengths zero."""
    copy = cache.clone()
    copy.lengths = torch.zeros_like(cache.lengths)
    return copy


def _doubled_scales(small: Small, before: Attention) -> Check:
    """With the stored K scales doubled, the output must follow the reference that reads doubled scales."""
    changed = small.cache.clone()
    double_scales(changed, "k")
    reference = _reference(small, changed)
    error = relative_error(_run(small, changed), reference)
    moved = relative_error(reference, before.reference)
    passed = KERNEL.accepts(error) and moved.relative > 10 * KERNEL.relative
    detail = f"output moved by {moved.relative:.1e}, still within {error.relative:.1e} of the reference"
    return Check(name="doubled K scales obeyed", passed=passed, detail=detail)


def _flipped_code(small: Small, before: Attention, packed: int) -> Check:
    """One V code with its top bit flipped must change the output exactly as the reference says."""
    changed = small.cache.clone()
    token, channel = _heavy_value(small, 0, packed)
    view = changed.layout.view("v")
    codes = changed.field("v", "high") if view.two_parts else changed.codes("v")
    row = codes[int(changed.page_table[0, token // changed.page_size]), 0, token % changed.page_size]
    if view.planar:
        flip_top_bit(row, channel, 1 if view.two_parts else view.bits)
    else:
        bits = row.view(torch.int16 if row.element_size() == 2 else torch.int8)
        bits[channel] ^= torch.iinfo(bits.dtype).min
    return _obeyed(small, before, changed, "one flipped V code obeyed")


def _flipped_row(small: Small, before: Attention, packed: int) -> Check:
    """One value of a V row that waits in the residual, with its sign flipped, must do so as well."""
    changed = small.cache.clone()
    token, channel = _heavy_value(small, packed)
    ring = changed.residual("v")
    assert ring is not None
    ring[0, 0, token % ring.shape[2], channel] *= -1
    return _obeyed(small, before, changed, "one flipped recent V value obeyed")


def _obeyed(small: Small, before: Attention, changed: Cache, name: str) -> Check:
    """The kernel's outputs of head 0 move as the reference's do: all channels, since rotated values move them all."""
    group = small.tensors.q.shape[1] // changed.layout.heads
    got = (_run(small, changed) - before.kernel)[0, :group]
    want = (_reference(small, changed) - before.reference)[0, :group]
    error = relative_error(got, want)
    passed = error.relative < FLIP_TOLERANCE and float(want.abs().max()) > 0
    detail = f"output moved by {float(want.abs().max()):.1e}, the move is right to {error.relative:.1e}"
    return Check(name=name, passed=passed, detail=detail)


def _heavy_value(small: Small, start: int, stop: int | None = None) -> tuple[int, int]:
    """(token, channel) of request 0, head 0 whose sign flip moves the output most, of the tokens [start, stop)."""
    group = small.tensors.q.shape[1] // small.cache.layout.heads
    k = read_reference(small.cache, "k", 0)[0].double()
    v = read_reference(small.cache, "v", 0, turned=True)[0].double()
    p = torch.softmax(small.tensors.q[0, :group].double() @ k.T * small.sm_scale, -1).amax(0)
    flat = int((p[:, None] * v.abs())[start:stop].argmax())
    return start + flat // v.shape[1], flat % v.shape[1]
