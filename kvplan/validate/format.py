"""One format of a validation: written, proved, compared with fp64, timed, judged."""

from __future__ import annotations

import torch
from kvplan_kernels.attention.reference import Spread as KernelSpread
from kvplan_kernels.attention.reference import VersionError, format_error
from kvplan_kernels.cache import Cache, allocate, make_planes
from kvplan_kernels.store.append import append
from kvplan_kernels.store.reference import read_reference
from kvplan_kernels.store.static import calibrate_cache

from kvplan.memory.groups import CacheGroup
from kvplan.memory.terms import packed_rows
from kvplan.units import cdiv
from kvplan.validate import measure
from kvplan.validate.proofs import kernel_check, prove, small_case
from kvplan.validate.report import NOT_MEASURED, Baselines, Check, FormatError, FormatResult, Spread, Times
from kvplan.validate.session import DTYPES, Session
from kvplan.validate.subject import Planned, planned

# Rows appended in one launch of the bulk write: bounds the scratch, not the result.
WRITE_TOKENS = 8192


def validate_format(run: Session, fmt: str) -> FormatResult:
    """All checks and, when they are green and there is a GPU, all times."""
    plan = planned(run.spec, fmt, run.request.context, run.request.batch, run.request.page_size)
    layout = plan.group(run.group.name).layout
    device, dtype = run.request.device, DTYPES[run.request.dtype]
    seed = run.request.seed + 1
    small = small_case(layout, run.geometry, page_size=plan.page_size, dtype=dtype, device=device, seed=seed)
    checks = list(prove(small))
    cache, clipped = _filled(run, plan)
    held = _held_bytes(run, plan, cache)
    detail = f"{held:,} bytes in tensors, {plan.held_bytes:,} planned (allocated + constant)"
    checks.append(Check(name="bytes allocated = bytes planned", passed=held == plan.held_bytes, detail=detail))
    kernel, check = kernel_check("kernel at the validated shape", run.tensors.q, cache, run.sm_scale)
    checks.append(check)
    if run.timed:
        checks.append(measure.fusion_check(run.tensors.q, cache, run.sm_scale, run.dense_bytes))
    green = all(c.passed for c in checks)
    run.progress(f"{fmt}: format error against fp64 on the originals")
    errors = _format_error(run, cache) if layout.view("k").number != run.request.dtype else {}
    times = _times(run, fmt, cache) if run.timed and green else None
    gain = plan.native_bytes / plan.held_bytes
    return FormatResult(
        format=fmt,
        status="ok" if green else "failed",
        checks=tuple(checks),
        cache_bytes=held,
        planned_bytes=plan.held_bytes,
        kernel_error=kernel.relative,
        kernel_max_ratio=kernel.max_ratio,
        format_error=errors,
        clipped_fraction=clipped,
        times=times,
        capacity_gain=gain,
        verdicts=_verdicts(gain, times),
    )


def _filled(run: Session, plan: Planned) -> tuple[Cache, dict[str, float]]:
    """The layer's cache with all tokens; calibrated scales come from the first request, clipping is counted."""
    g, k, v = run.geometry, run.tensors.k, run.tensors.v
    layout = plan.group(run.group.name).layout
    cache = allocate(
        layout, num_sequences=g.batch, max_tokens=g.tokens, page_size=plan.page_size, device=run.request.device
    )
    calibrate_cache(cache, k[:1], v[:1])
    saturated = torch.zeros(2, g.kv_heads, dtype=torch.int64, device=run.request.device)
    for start in range(0, g.tokens, WRITE_TOKENS):
        stop = min(start + WRITE_TOKENS, g.tokens)
        append(cache, k[:, start:stop], v[:, start:stop], max_length=stop, saturated=saturated)
    counts = saturated.sum(1).tolist()
    fractions = {}
    for role, x, count in (("k", k, counts[0]), ("v", v, counts[1])):
        if layout.view(role).has_static_scale or layout.view(role).has_global:
            fractions[role] = count / x.numel()
    return cache, fractions


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


def _format_error(run: Session, cache: Cache) -> dict[str, FormatError]:
    """Error of the stored values against the originals, captured ones where given: K only, V only, both."""
    if run.captured is not None:
        found = run.captured.error(cache.layout)
        return {name: _version(part) for name, part in (("k_only", found.k), ("v_only", found.v), ("both", found.both))}
    tokens = run.geometry.tokens
    found = format_error(
        run.tensors.q,
        run.tensors.k.transpose(1, 2),
        run.tensors.v.transpose(1, 2),
        lambda b: read_reference(cache, "k", b, tokens),
        lambda b: read_reference(cache, "v", b, tokens),
        cache.lengths,
        run.sm_scale,
    )
    return {name: _version(part) for name, part in (("k_only", found.k), ("v_only", found.v), ("both", found.both))}


def _version(e: VersionError) -> FormatError:
    return FormatError(
        logit=_spread(e.logit),
        softmax_tv=_spread(e.total_variation),
        output=_spread(e.output),
        output_all_rows=e.relative,
    )


def _spread(s: KernelSpread) -> Spread:
    return Spread(mean=s.mean, p99=s.p99, worst_head=s.worst_head)


def _times(run: Session, fmt: str, cache: Cache) -> Times:
    """Time the fused path and, for quantised formats, the unfused one; a 16-bit format becomes a baseline."""
    assert run.roof is not None and run.baselines.best_seconds is not None
    run.progress(f"{fmt}: timing")
    q = run.tensors.q
    caches = measure.rotating(cache)
    fused = measure.fused_time(q, caches, run.sm_scale)
    quantised = cache.layout.view("k").quantised
    unfused = measure.unfused_time(q, caches, run.sm_scale, run.geometry.tokens).seconds if quantised else None
    if not quantised:
        run.baselines = _with_kernel(run.baselines, fused.seconds)
    bytes_read = measure.bytes_read(cache)
    rate = bytes_read / fused.seconds
    return Times(
        fused_seconds=fused.seconds,
        unfused_seconds=unfused,
        bytes_read=bytes_read,
        bytes_per_second=rate,
        roof_share=rate / run.roof.bytes_per_second,
        speedup=(run.baselines.best_seconds or fused.seconds) / fused.seconds,
        fusion_gain=unfused / fused.seconds if unfused else None,
        spread=fused.spread,
        config=measure.config_text(q, cache),
    )


def _with_kernel(baselines: Baselines, seconds: float) -> Baselines:
    assert baselines.best_seconds is not None
    update: dict[str, object] = {"kernel_seconds": seconds}
    if seconds < baselines.best_seconds:
        update |= {"best_seconds": seconds, "best": "kvplan's 16-bit kernel"}
    return baselines.model_copy(update=update)


def _verdicts(gain: float, times: Times | None) -> tuple[str, ...]:
    """Capacity, attention latency, end to end: three sentences, never mixed."""
    capacity = f"capacity: {gain:.2f}x the tokens of 16 bit in the same bytes"
    if times is None:
        return (capacity, "attention latency: not measured here", NOT_MEASURED)
    latency = (
        f"attention latency: {times.speedup:.2f}x the speed of the best 16-bit path of this run (one layer's decode)"
    )
    return (capacity, latency, NOT_MEASURED)
