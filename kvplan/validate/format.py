"""One format of a validation: its cache written and proved, its phases run, its errors against fp64."""

from __future__ import annotations

from collections.abc import Iterable

from kvplan_kernels.attention.reference import Spread as KernelSpread
from kvplan_kernels.attention.reference import VersionError, format_error
from kvplan_kernels.cache import Cache

from kvplan.validate.drift import measure_drift
from kvplan.validate.failures import describe, usable
from kvplan.validate.filled import Filled, fill
from kvplan.validate.phases.decode import roof_times
from kvplan.validate.phases.table import run_phases
from kvplan.validate.report import (
    CLIPPED_FLAG,
    NOT_MEASURED,
    FormatError,
    FormatResult,
    Spread,
    Status,
)
from kvplan.validate.session import Session

WORST: tuple[Status, ...] = ("ok", "failed", "not run", "error")
"""A format is as bad as the worst of its parts."""


def validate_format(run: Session, fmt: str) -> FormatResult:
    """All checks, phases and errors. Whatever fails, in the cache or in one phase, is part of the result."""
    try:
        return _validated(run, fmt)
    except Exception as error:
        text = describe(error)
    run.lost = not usable(run.request.device)
    return FormatResult(format=fmt, status="error", error=text)


def _validated(run: Session, fmt: str) -> FormatResult:
    filled = fill(run, fmt)
    phases = run_phases(run, filled)
    result = FormatResult(
        format=fmt,
        status=_worst("ok" if filled.green else "failed", *(p.status for p in phases)),
        checks=filled.checks,
        phases=phases,
        cache_bytes=filled.held_bytes,
        planned_bytes=filled.plan.held_bytes,
        clipped_fraction={role: found.mean for role, found in filled.clipping.items()},
        clipping=filled.clipping,
        capacity_gain=filled.plan.native_bytes / filled.plan.held_bytes,
    )
    decode = next((p for p in phases if p.name == "decode"), None)
    if decode is not None:
        update = {"kernel_error": decode.kernel_error, "kernel_max_ratio": decode.kernel_max_ratio}
        result = result.model_copy(update={**update, "times": roof_times(run, filled, decode)})
    if not run.lost:
        result = _with_errors(run, filled, result)
    return result.model_copy(update={"verdicts": tuple(_verdicts(filled, result))})


def _with_errors(run: Session, filled: Filled, result: FormatResult) -> FormatResult:
    """Add what the format itself costs; if that fails, the phases are kept."""
    run.progress(f"{filled.fmt}: format error against fp64 on the originals")
    try:
        errors = {} if filled.native else _format_error(run, filled.cache)
        drift = measure_drift(run, filled.layout, filled.cache.page_size)
        return result.model_copy(update={"format_error": errors, "drift": drift})
    except Exception as error:
        text = describe(error)
    run.lost = not usable(run.request.device)
    return result.model_copy(update={"status": "error", "error": f"format error: {text}"})


def _worst(*parts: Status) -> Status:
    return max(parts, key=WORST.index)


def _verdicts(filled: Filled, result: FormatResult) -> Iterable[str]:
    """Capacity, each phase, what drift does, end to end: sentences that are never mixed."""
    gain = filled.plan.native_bytes / filled.plan.held_bytes
    yield f"capacity: {gain:.2f}x the tokens of 16 bit in the same bytes"
    yield from (p.verdict for p in result.phases)
    for role, found in result.clipping.items():
        if found.max > CLIPPED_FLAG:
            yield (
                f"warning: {role.upper()} values outside the range calibrated on the first request are clipped, "
                f"{found.max:.2%} of the worst head (flagged above {CLIPPED_FLAG:.1%})"
            )
    drift = result.drift
    if drift is not None and drift.flagged:
        worst = max(c.max for c in drift.clipped.values())
        yield (
            f"warning: rows that double after calibration are clipped, {worst:.2%} of the values of the worst head "
            f"(flagged above {CLIPPED_FLAG:.1%}); output error {drift.output_error_without:.1e} -> "
            f"{drift.output_error:.1e}"
        )
    yield NOT_MEASURED


def _format_error(run: Session, cache: Cache) -> dict[str, FormatError]:
    """Error of the stored values against the originals, captured ones where given: K only, V only, both."""
    if run.captured is not None:
        found = run.captured.error(cache.layout)
    else:
        tokens = run.geometry.tokens
        found = format_error(
            run.tensors.q,
            run.tensors.k.transpose(1, 2),
            run.tensors.v.transpose(1, 2),
            lambda b: run.kind.read(cache, "k", b, tokens),
            lambda b: run.kind.read(cache, "v", b, tokens),
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
