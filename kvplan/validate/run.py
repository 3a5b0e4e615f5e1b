"""One validation: originals, roof, baselines, then format after format; a report after each."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import torch

from kvplan.errors import KvplanError
from kvplan.specs.model import ModelSpec
from kvplan.validate import measure
from kvplan.validate.captured import load
from kvplan.validate.device import device_info
from kvplan.validate.format import validate_format
from kvplan.validate.report import Baselines, FormatResult, Roof, ValidationReport, ValidationRequest
from kvplan.validate.session import DTYPES, Progress, Session
from kvplan.validate.subject import choose_group, geometry
from kvplan.validate.tensors import LABEL, make_tensors


def validate(
    request: ValidationRequest, spec: ModelSpec, command: str, progress: Progress = lambda _: None
) -> Iterator[ValidationReport]:
    """Run every format of the request; yields the report so far after each, the last one complete."""
    group = choose_group(spec)
    shape = geometry(group, request.context, request.batch)
    progress("making tensors")
    tensors = make_tensors(shape, seed=request.seed, dtype=DTYPES[request.dtype], device=request.device)
    captured = load(Path(request.tensors_file), group) if request.tensors_file else None
    run = Session(request, spec, group, shape, tensors, progress, captured)
    if run.timed:
        _measure_baselines(run)
    report = ValidationReport(
        command=command,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        request=request,
        device=device_info(request.device),
        tensors=f"{LABEL}; {captured.label}" if captured else LABEL,
        layer_group=group.name,
        layers=len(spec.positions(group)),
        roof=run.roof,
        notes=() if run.timed else ("speed: not measured (Triton's interpreter checks correctness only)",),
    )
    for i, fmt in enumerate(request.formats):
        progress(f"{fmt}: writing and proving ({i + 1} of {len(request.formats)})")
        result = _guarded(run, fmt)
        done = i + 1 == len(request.formats)
        results = (*report.results, result)
        report = report.model_copy(update={"results": results, "baselines": run.baselines, "complete": done})
        yield report


def _measure_baselines(run: Session) -> None:
    """The read roof and torch's 16-bit attention."""
    from kvplan_kernels.bench.roofline import measure_roof

    run.progress("measuring the read roof")
    roof = measure_roof()
    run.roof = Roof(
        bytes_per_second=roof.bytes_per_second,
        method=f"read-only kernel over {roof.nbytes:,} bytes, two buffers rotating in a CUDA graph; {roof.config}",
    )
    run.progress("timing torch attention in 16 bit")
    k, v = (x.transpose(1, 2).contiguous() for x in (run.tensors.k, run.tensors.v))
    seconds = measure.sdpa_time(run.tensors.q, k, v, run.sm_scale).seconds
    run.baselines = Baselines(
        torch_sdpa_seconds=seconds, best_seconds=seconds, best="torch scaled_dot_product_attention"
    )


def _guarded(run: Session, fmt: str) -> FormatResult:
    """One format; whatever goes wrong in it (a compiler error, out of memory) is its result, and the others go on."""
    try:
        return validate_format(run, fmt)
    except KvplanError as error:
        return FormatResult(format=fmt, status="error", error=f"{error.message} ({error.hint})")
    except Exception as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        return FormatResult(format=fmt, status="error", error=f"{type(error).__name__}: {first}")
    finally:
        if run.timed:
            torch.cuda.empty_cache()
