"""Decode: one query token per request over the whole cache, fused, against unfused and the best 16-bit path."""

from __future__ import annotations

from kvplan_kernels.attention.reference import attention_reference
from kvplan_kernels.testing import relative_error
from torch import Tensor

from kvplan.validate import measure
from kvplan.validate.filled import Filled
from kvplan.validate.phases.result import Paths, finish, path
from kvplan.validate.proofs import agreement, kernel_attention, stored_attention
from kvplan.validate.report import Baselines, PathError, PhaseResult, Times
from kvplan.validate.session import Session


def run(session: Session, filled: Filled) -> PhaseResult:
    q, cache = session.tensors.q, filled.cache
    reference = stored_attention(q, cache, session.sm_scale)
    kernel = kernel_attention(q, cache, session.sm_scale)
    error, check = agreement("kernel at the validated shape", kernel, reference)
    checks = [check]
    if session.timed:
        if not filled.native:
            checks.append(measure.unfused_check(q, cache, session.sm_scale, reference))
        checks.append(measure.fusion_check(q, cache, session.sm_scale, session.dense_bytes))

    def timed() -> Paths:
        caches = measure.rotating(cache)
        fused = path("fused", measure.fused_time(q, caches, session.sm_scale))
        if filled.native:
            session.baselines = _with_kernel(session.baselines, fused.seconds)
            return (fused,)
        unfused = measure.unfused_time(q, caches, session.sm_scale, session.geometry.tokens)
        return fused, path("unfused", unfused)

    def verdict(paths: Paths) -> str:
        speedup = _best(session, paths[0].seconds) / paths[0].seconds
        return f"{speedup:.2f}x the speed of the best 16-bit path of this run (one layer's decode)"

    errors = _path_errors(session, filled, kernel, reference)
    return finish(session, filled, "decode", checks, timed, verdict, error=error, path_errors=errors)


def _path_errors(session: Session, filled: Filled, kernel: Tensor, reference: Tensor) -> tuple[PathError, ...]:
    """Of formats that the matrix unit could multiply as they are: each way of computing, against its own reference and
    against fp64 on the originals."""
    views = [filled.layout.view(role) for role in ("k", "v")]
    if not all(v.number == "fp8_e4m3" and v.has_static_scale and v.static_items == 1 for v in views):
        return ()
    k, v = (x.transpose(1, 2) for x in (session.tensors.k, session.tensors.v))
    originals = attention_reference(session.tensors.q, k, v, filled.cache.lengths, session.sm_scale)
    # The fp8-domain path goes here, against a reference that rounds Q and P to e4m3.
    ways = (("16-bit compute", kernel, reference),)
    return tuple(
        PathError(
            name=name,
            kernel=relative_error(out, own).relative,
            output=relative_error(out, originals).relative,
        )
        for name, out, own in ways
    )


def roof_times(session: Session, filled: Filled, result: PhaseResult) -> Times | None:
    """The times of a decode phase in terms of bytes and the read roof; None where it was not timed."""
    fused, unfused = result.seconds("fused"), result.seconds("unfused")
    if fused is None or session.roof is None:
        return None
    bytes_read = measure.bytes_read(filled.cache)
    rate = bytes_read / fused
    return Times(
        fused_seconds=fused,
        unfused_seconds=unfused,
        bytes_read=bytes_read,
        bytes_per_second=rate,
        roof_share=rate / session.roof.bytes_per_second,
        speedup=_best(session, fused) / fused,
        fusion_gain=unfused / fused if unfused else None,
        spread=result.paths[0].spread,
        config=measure.config_text(session.tensors.q, filled.cache),
    )


def _best(session: Session, fused: float) -> float:
    return session.baselines.best_seconds or fused


def _with_kernel(baselines: Baselines, seconds: float) -> Baselines:
    update: dict[str, object] = {"kernel_seconds": seconds}
    if baselines.best_seconds is None or seconds < baselines.best_seconds:
        update |= {"best_seconds": seconds, "best": "kvplan's 16-bit kernel"}
    return baselines.model_copy(update=update)
