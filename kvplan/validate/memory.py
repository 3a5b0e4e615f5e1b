"""What a validation needs of the GPU's memory, before anything is allocated."""

from __future__ import annotations

from collections.abc import Callable

from kvplan.errors import UsageError
from kvplan.specs.model import ModelSpec
from kvplan.units import cdiv, format_bytes
from kvplan.validate.kinds.latent import FLASH_WIDTH
from kvplan.validate.report import PhaseName, ValidationRequest
from kvplan.validate.subject import choose_group, geometry, planned
from kvplan.validate.tensors import Geometry

SMALLEST_ROTATION = 2
LEAST_CONTEXT = 128
BULK_TOKENS = 4096
"""Tokens of a request that the append phase writes at once."""
CHUNK_TOKENS, LAUNCH_TOKENS = 4096, 16384
"""Tokens of a request, and of all requests, that the prefill phase computes at once."""
NEW_TOKENS = 512
"""New tokens of a request in the prefix phase."""


def _decode(g: Geometry, dense: int, cache: int) -> int:
    """Torch's two dense copies or the unfused path's one, beside rotating caches.

    Without flash attention torch keeps scores, and it may copy the rows to fp32.
    """
    torch = 16 * g.batch * g.q_heads * g.tokens + 4 * dense if g.k_dim > FLASH_WIDTH else 0
    return 2 * dense + torch + max(SMALLEST_ROTATION * cache, 10**9)


def _append(g: Geometry, dense: int, cache: int) -> int:
    """Small caches, and rows of rot formats in fp32 while they are written."""
    return 2 * min(dense, cdiv(dense, g.tokens) * BULK_TOKENS) + cache


def _prefill(g: Geometry, dense: int, cache: int) -> int:
    """Queries and outputs of a chunk, in fp32 while they are made and compared, copies of its rows, small caches."""
    tokens = min(g.batch * g.tokens, LAUNCH_TOKENS)
    rows = cdiv(dense, g.batch * g.tokens)
    return tokens * (g.q_heads * (12 * g.k_dim + 8 * g.v_dim) + 6 * rows) + cache


def _prefix(g: Geometry, dense: int, cache: int) -> int:
    """The dense copy of the path that dequantises first, queries and outputs, fp64 softmax rows of one head."""
    new = min(NEW_TOKENS, g.tokens)
    queries = g.batch * new * g.q_heads * (12 * g.k_dim + 16 * g.v_dim)
    return dense + queries + 4 * 8 * new * (g.tokens + new) + cache


PHASE_BYTES: dict[PhaseName, Callable[[Geometry, int, int], int]] = {
    "decode": _decode,
    "prefill": _prefill,
    "prefix": _prefix,
    "append": _append,
}
"""Bytes that a phase takes beside the originals and the cache: f(geometry, dense 16-bit bytes, cache bytes)."""


def memory_needed(request: ValidationRequest, spec: ModelSpec) -> int:
    """Bytes of device memory at the peak: originals, fp64 scratch, one layer's cache and the hungriest phase."""
    group = choose_group(spec, request.layer_group)
    g = geometry(group, request.context, request.batch)
    row = g.row_bytes
    dense = g.batch * g.tokens * row
    asked = (request.context, request.batch, request.page_size, group)
    held = max(planned(spec, f, *asked).held_bytes for f in request.formats)
    cache = cdiv(held, len(spec.positions(group)))
    # The 16-bit baseline of decode is measured in every run.
    phases = {"decode", *request.phases}
    return dense + 12 * g.tokens * row + max(PHASE_BYTES[p](g, dense, cache) for p in PHASE_BYTES if p in phases)


def fit(request: ValidationRequest, spec: ModelSpec, free_bytes: int, given: frozenset[str]) -> ValidationRequest:
    """The request, or a smaller one with a note: only a batch or context that nobody gave is made smaller.

    Raises:
        UsageError: it cannot fit; the hint names what would.
    """
    need = memory_needed(request, spec)
    if need <= free_bytes:
        return request
    small = _smaller(request, spec, free_bytes, frozenset({"batch", "context"}) - given)
    if small is not None:
        changed = [
            f"{x} {getattr(request, x):,} -> {getattr(small, x):,}"
            for x in ("batch", "context")
            if getattr(request, x) != getattr(small, x)
        ]
        note = f"{', '.join(changed)}: {_sizes(need, free_bytes)}"
        return small.model_copy(update={"notes": (*request.notes, note)})
    fits = _smaller(request, spec, free_bytes, frozenset({"batch"})) or _smaller(
        request, spec, free_bytes, frozenset({"batch", "context"})
    )
    hint = "free memory on this GPU, or use a larger one"
    if fits is not None:
        hint = f"use --batch {fits.batch}"
        hint += "" if fits.context == request.context else f" --context {fits.context}"
    raise UsageError(f"validation needs {_sizes(need, free_bytes)}", hint)


def _smaller(
    request: ValidationRequest, spec: ModelSpec, free_bytes: int, free_to_change: frozenset[str]
) -> ValidationRequest | None:
    """The batch halved until it fits, then the context; None if that is not enough."""
    for name, least in (("batch", 1), ("context", LEAST_CONTEXT)):
        while name in free_to_change and getattr(request, name) // 2 >= least:
            request = request.model_copy(update={name: getattr(request, name) // 2})
            if memory_needed(request, spec) <= free_bytes:
                return request
    return None


def _sizes(need: int, free_bytes: int) -> str:
    return f"about {format_bytes(need)} of GPU memory, {format_bytes(free_bytes)} are free"
