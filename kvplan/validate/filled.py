"""The cache of one format, allocated, written by the append kernel, and proved, before any phase reads it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from kvplan_kernels.cache import Cache, allocate, make_planes
from kvplan_kernels.testing import SENTINELS, poison

from kvplan.formats.layout import Layout
from kvplan.memory.groups import CacheGroup
from kvplan.memory.terms import packed_rows
from kvplan.units import cdiv
from kvplan.validate.kinds.table import kind_in
from kvplan.validate.proofs import prove, small_case
from kvplan.validate.report import Check, Clipping
from kvplan.validate.session import DTYPES, Session
from kvplan.validate.subject import Planned, planned

# Rows appended in one launch of the bulk write: bounds the scratch, not the result.
WRITE_TOKENS = 8192


@dataclass(frozen=True)
class Filled:
    """What every phase is given.

    Attributes:
        cache: one layer, all requests `geometry.tokens` long; a phase leaves it as it found it.
        held_bytes: layers x bytes of the tensors' storages.
        clipping: of static formats, per role.
        native: whether this is the model's own 16-bit format, the baseline of the others.
    """

    fmt: str
    plan: Planned
    cache: Cache
    checks: tuple[Check, ...]
    held_bytes: int
    clipping: dict[str, Clipping]
    native: bool

    @property
    def green(self) -> bool:
        return all(c.passed for c in self.checks)

    @property
    def layout(self) -> Layout:
        return self.cache.layout

    def empty(self, num_sequences: int, tokens: int) -> Cache:
        """Another cache of the same layout and static scales, without rows, with pages for `tokens` per sequence."""
        device, page_size = self.cache.lengths.device, self.cache.page_size
        cache = allocate(
            self.layout, num_sequences=num_sequences, max_tokens=tokens, page_size=page_size, device=device
        )
        poison(cache, SENTINELS[0])
        for plane in self.layout.scoped("layer"):
            cache.planes[plane.name].copy_(self.cache.planes[plane.name])
        return cache


def fill(run: Session, fmt: str) -> Filled:
    """Prove the format on a small cache, then write the whole one and count its bytes."""
    plan = planned(run.spec, fmt, run.request.context, run.request.batch, run.request.page_size, run.group)
    layout = plan.group(run.group.name).layout
    dtype, seed = DTYPES[run.request.dtype], run.request.seed + 1
    small = small_case(
        layout,
        run.geometry,
        page_size=plan.page_size,
        dtype=dtype,
        device=run.request.device,
        seed=seed,
        variant=run.variant,
    )
    proofs = prove(small)
    cache, clipping = _written(run, plan)
    held = _held_bytes(run, plan, cache)
    detail = f"{held:,} bytes in tensors, {plan.held_bytes:,} planned (allocated + constant)"
    equal = Check(name="bytes allocated = bytes planned", passed=held == plan.held_bytes, detail=detail)
    return Filled(fmt, plan, cache, (*proofs, equal), held, clipping, fmt == run.request.dtype)


def write(cache: Cache, k: torch.Tensor, v: torch.Tensor, before: int = 0) -> dict[str, Clipping]:
    """Append all rows `(B, T, H, D)` to a calibrated cache that holds `before`; what static scales clipped."""
    kind, tokens, heads = kind_in(cache.layout), k.shape[1], cache.layout.heads
    saturated = torch.zeros(2, heads, dtype=torch.int64, device=k.device)
    for start in range(0, tokens, WRITE_TOKENS):
        stop = min(start + WRITE_TOKENS, tokens)
        kind.append(cache, k[:, start:stop], v[:, start:stop], max_length=before + stop, saturated=saturated)
    counts = saturated.tolist()
    return {
        role: clipping(row, x.numel() // heads)
        for role, x, row in (("k", k, counts[0]), ("v", v, counts[1]))
        if role in kind.static_roles(cache.layout)
    }


def clipping(counts: list[int], values_per_head: int) -> Clipping:
    """Shares from counts of clipped values per KV head."""
    shares = tuple(count / max(values_per_head, 1) for count in counts)
    return Clipping(per_head=shares, mean=sum(shares) / len(shares), max=max(shares))


def _written(run: Session, plan: Planned) -> tuple[Cache, dict[str, Clipping]]:
    """The layer's cache with all tokens; calibrated scales come from the first request."""
    g, k, v = run.geometry, run.tensors.k, run.tensors.v
    layout = plan.group(run.group.name).layout
    cache = allocate(
        layout, num_sequences=g.batch, max_tokens=g.tokens, page_size=plan.page_size, device=run.request.device
    )
    run.kind.calibrate(cache, k[:1], v[:1])
    return cache, write(cache, k, v)


def _held_bytes(run: Session, plan: Planned, cache: Cache) -> int:
    """layers x bytes of the tensors' storages: the real cache for the group that runs, `meta` tensors elsewhere."""
    total = 0
    for group in plan.groups:
        nbytes = cache.nbytes if group.name == run.group.name else _meta_bytes(run, plan, group)
        total += group.layers * nbytes
    return total


def _meta_bytes(run: Session, plan: Planned, group: CacheGroup) -> int:
    pages = run.request.batch * cdiv(packed_rows(group, run.request.context), plan.page_size)
    planes = make_planes(group.layout, pages, run.request.batch, plan.page_size, "meta")
    return sum(t.untyped_storage().nbytes() for t in planes.values())
