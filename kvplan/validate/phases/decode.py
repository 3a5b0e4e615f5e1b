"""Decode: one query token per request over the whole cache, fused, against unfused and the best 16-bit path."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvplan_kernels.attention.config import DecodeConfig
from kvplan_kernels.attention.reference import attention_reference
from kvplan_kernels.bench.baseline import bytes_read, rotating
from kvplan_kernels.testing import FP8_DOMAIN, relative_error
from kvplan_kernels.tuning.launch import Launch
from torch import Tensor

from kvplan.validate import measure
from kvplan.validate.filled import Filled
from kvplan.validate.phases.result import Paths, finish, path
from kvplan.validate.proofs import agreement, kernel_attention, stored_attention
from kvplan.validate.report import Baselines, Check, PathError, PhaseResult, Times
from kvplan.validate.session import Session

SIXTEEN, FP8 = "16-bit compute", "fp8 domain"


@dataclass(frozen=True)
class Way:
    """One way of computing: outputs (B, HQ, Dv) of the kernel and of its reference, and whether they agree."""

    name: str
    kernel: Tensor
    reference: Tensor
    check: Check


def run(session: Session, filled: Filled) -> PhaseResult:
    q, cache, scale, variant = session.tensors.q, filled.cache, session.sm_scale, session.variant
    launch = _launch(session, filled)
    config = launch.config
    reference = stored_attention(q, cache, scale, variant)
    kernel = kernel_attention(q, cache, scale, variant, config=config)
    error, check = agreement("kernel at the validated shape", kernel, reference)
    eighth = _fp8_domain(session, filled, config)
    checks = [check, *([eighth.check] if eighth else [])]
    if session.timed:
        if not filled.native and not session.beyond_torch:
            checks.append(measure.unfused_check(q, cache, scale, reference))
        checks.append(measure.fusion_check(q, cache, scale, variant, session.dense_bytes, config))

    def timed() -> Paths:
        caches = rotating(cache)
        fused = path("fused", measure.fused_time(q, caches, scale, variant, config))
        if filled.native:
            session.baselines = _with_kernel(session.baselines, fused.seconds)
            return (fused,)
        found = (fused, path("unfused", measure.unfused_time(q, caches, scale, session.geometry.tokens)))
        if eighth is None:
            return found
        return (*found, path(FP8, measure.fused_time(q, caches, scale, variant, config, fp8_domain=True)))

    def verdict(paths: Paths) -> str:
        speedup = _best(session, paths[0].seconds) / paths[0].seconds
        return f"{speedup:.2f}x the speed of the best 16-bit path of this run (one layer's decode)"

    errors = _path_errors(session, filled, [Way(SIXTEEN, kernel, reference, check), eighth]) if eighth else ()
    shape = measure.launch_shape(launch)
    return finish(session, filled, "decode", checks, timed, verdict, error=error, launch=shape, path_errors=errors)


def _launch(session: Session, filled: Filled) -> Launch:
    """The launch that is checked and timed, of all ways of computing; searched for nothing that will have no time."""
    q, cache = session.tensors.q, filled.cache
    if not (session.request.tune and session.timed and filled.green):
        return session.kind.launch(q, cache)

    def say(text: str) -> None:
        session.progress(f"{filled.fmt}: {text}")

    return session.kind.tuned(q, cache, sm_scale=session.sm_scale, variant=session.variant, say=say)


def _fp8_domain(session: Session, filled: Filled, config: DecodeConfig) -> Way | None:
    """The path that multiplies in 8 bit, queries and probabilities rounded too; None for formats without it."""
    if not session.kind.has_fp8_domain(filled.layout):
        return None
    q, cache, scale, variant = session.tensors.q, filled.cache, session.sm_scale, session.variant
    kernel = kernel_attention(q, cache, scale, variant, fp8_domain=True, config=config)
    reference = stored_attention(q, cache, scale, variant, fp8_domain=True)
    what = "fp64 on the codes, Q and P rounded to e4m3"
    _, check = agreement("fp8-domain kernel", kernel, reference, what, FP8_DOMAIN)
    return Way(FP8, kernel, reference, check)


def _path_errors(session: Session, filled: Filled, ways: Sequence[Way]) -> tuple[PathError, ...]:
    """Each way of computing against its own reference, and against fp64 on the originals."""
    k, v = (x.transpose(1, 2) for x in (session.tensors.k, session.tensors.v))
    lengths = filled.cache.lengths
    originals = attention_reference(session.tensors.q, k, v, lengths, session.sm_scale, session.variant)
    return tuple(
        PathError(
            name=way.name,
            kernel=relative_error(way.kernel, way.reference).relative,
            output=relative_error(way.kernel, originals).relative,
        )
        for way in ways
    )


def roof_times(session: Session, filled: Filled, result: PhaseResult) -> Times | None:
    """The times of a decode phase in terms of bytes and the read roof; None where it was not timed."""
    fused, unfused = result.seconds("fused"), result.seconds("unfused")
    if fused is None or session.roof is None or result.launch is None:
        return None
    nbytes = bytes_read(filled.cache)
    rate = nbytes / fused
    return Times(
        fused_seconds=fused,
        unfused_seconds=unfused,
        bytes_read=nbytes,
        bytes_per_second=rate,
        roof_share=rate / session.roof.bytes_per_second,
        speedup=_best(session, fused) / fused,
        fusion_gain=unfused / fused if unfused else None,
        spread=result.paths[0].spread,
        config=result.launch.shape,
    )


def _best(session: Session, fused: float) -> float:
    return session.baselines.best_seconds or fused


def _with_kernel(baselines: Baselines, seconds: float) -> Baselines:
    update: dict[str, object] = {"kernel_seconds": seconds}
    if baselines.best_seconds is None or seconds < baselines.best_seconds:
        update |= {"best_seconds": seconds, "best": "kvplan's 16-bit kernel"}
    return baselines.model_copy(update=update)
