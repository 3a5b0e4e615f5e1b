"""The yes-or-no proofs of one format on a small cache: codes as the reference writes them, scales and codes obeyed.

A kernel that ignores a scale, reads a wrong code or secretly attends to a 16-bit copy fails here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import torch
from kvplan_kernels.attention.config import DecodeConfig
from kvplan_kernels.attention.reference import attention_reference
from kvplan_kernels.attention.variant import PLAIN, Variant
from kvplan_kernels.cache import Cache, allocate
from kvplan_kernels.testing import KERNEL, Error, Tolerance, as_bytes, differing_bytes, poison, relative_error

from kvplan.formats.layout import Layout
from kvplan.validate.kinds.base import Kind
from kvplan.validate.kinds.table import kind_in
from kvplan.validate.report import Check
from kvplan.validate.tensors import Geometry, Tensors

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

    @property
    def kind(self) -> Kind:
        return kind_in(self.cache.layout)


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
    kind, g = kind_in(layout), replace(geometry, batch=2, tokens=tokens)
    tensors = kind.make_tensors(g, seed=seed, dtype=dtype, device=device)
    shuffle = torch.Generator().manual_seed(seed)
    cache = allocate(layout, num_sequences=2, max_tokens=tokens, page_size=page_size, device=device, shuffle=shuffle)
    poison(cache, 0)
    kind.calibrate(cache, tensors.k, tensors.v)
    oracle = cache.clone()
    oracle.lengths = cache.lengths.clone()
    bulk = tokens - min(3, tokens - 1)
    for start, stop in [(0, bulk), *((t, t + 1) for t in range(bulk, tokens))]:
        kind.append(cache, tensors.k[:, start:stop], tensors.v[:, start:stop])
    kind.write_reference(oracle, tensors.k, tensors.v)
    return Small(cache, oracle, tensors, g.sm_scale, variant)


def prove(small: Small) -> tuple[Check, ...]:
    """All proofs of one format, in order of depth."""
    before = Attention(_run(small, small.cache), _reference(small, small.cache))
    _, kernel = agreement("kernel on a small shuffled cache", before.kernel, before.reference)
    checks = [_codes(small), kernel, _reused_pages(small)]
    kind, layout, length = small.kind, small.cache.layout, int(small.cache.lengths[0])
    if kind.quantised(layout) and layout.tensor(kind.scaled).split(length)[0]:
        checks.append(_doubled_scales(small, before))
    packed, waiting = layout.tensor(kind.valued).split(length)
    if packed:
        checks.append(_flipped_code(small, before, packed))
    if waiting:
        checks.append(_flipped_row(small, before, packed))
    return tuple(checks)


def stored_attention(
    q: torch.Tensor, cache: Cache, sm_scale: float, variant: Variant = PLAIN, *, fp8_domain: bool = False
) -> torch.Tensor:
    """fp64 attention on what the cache holds, dequantised: (B, HQ, Dv)."""
    rows = [partial(kind_in(cache.layout).read, cache, role) for role in ("k", "v")]
    return attention_reference(q, rows[0], rows[1], cache.lengths, sm_scale, variant, fp8_domain=fp8_domain)


def kernel_attention(
    q: torch.Tensor,
    cache: Cache,
    sm_scale: float,
    variant: Variant = PLAIN,
    *,
    fp8_domain: bool = False,
    config: DecodeConfig | None = None,
) -> torch.Tensor:
    """The fused kernel's output in fp32 over NaN: what is not written shows, and no bf16 rounding hides its error."""
    kind = kind_in(cache.layout)
    out = q.new_full((*q.shape[:2], kind.value_dim(cache.layout)), float("nan"), dtype=torch.float32)
    return kind.decode(q, cache, sm_scale=sm_scale, variant=variant, fp8_domain=fp8_domain, out=out, config=config)


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
        small.kind.append(cache, k, v)
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
    """With the stored scales of K, or of the latent, doubled, the output must follow a reference that reads them."""
    changed = small.cache.clone()
    small.kind.double_scales(changed)
    reference = _reference(small, changed)
    error = relative_error(_run(small, changed), reference)
    moved = relative_error(reference, before.reference)
    passed = KERNEL.accepts(error) and moved.relative > 10 * KERNEL.relative
    detail = f"output moved by {moved.relative:.1e}, still within {error.relative:.1e} of the reference"
    return Check(name=f"doubled {_called(small.kind.scaled)} scales obeyed", passed=passed, detail=detail)


def _flipped_code(small: Small, before: Attention, packed: int) -> Check:
    """One code of V, or of the latent, with its top bit flipped must change the output as the reference says."""
    changed = small.cache.clone()
    token, channel = _heavy_value(small, 0, packed)
    small.kind.flip(changed, token, channel)
    return _obeyed(small, before, changed, f"one flipped {_called(small.kind.valued)} code obeyed")


def _flipped_row(small: Small, before: Attention, packed: int) -> Check:
    """One value of a V row that waits in the residual, with its sign flipped, must do so as well."""
    changed = small.cache.clone()
    token, channel = _heavy_value(small, packed)
    ring = changed.residual(small.kind.valued)
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


def _called(role: str) -> str:
    return role.upper() if len(role) == 1 else role


def _heavy_value(small: Small, start: int, stop: int | None = None) -> tuple[int, int]:
    """(token, channel) of request 0, head 0 whose sign flip moves the output most, of the tokens [start, stop)."""
    group = small.tensors.q.shape[1] // small.cache.layout.heads
    k = small.kind.read(small.cache, "k", 0)[0].double()
    v = small.kind.read(small.cache, "v", 0, turned=True)[0].double()
    p = torch.softmax(small.tensors.q[0, :group].double() @ k.T * small.sm_scale, -1).amax(0)
    flat = int((p[:, None] * v.abs())[start:stop].argmax())
    return start + flat // v.shape[1], flat % v.shape[1]
