"""One validation: originals, roof, baselines, then format after format; a report after each."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from kvplan.specs.model import ModelSpec
from kvplan.validate.captured import load, shipped
from kvplan.validate.device import device_info
from kvplan.validate.failures import LOST, usable
from kvplan.validate.format import validate_format
from kvplan.validate.kinds.table import kind_of
from kvplan.validate.report import Baselines, FormatResult, Roof, ValidationReport, ValidationRequest
from kvplan.validate.session import DTYPES, Progress, Session
from kvplan.validate.subject import choose_group, geometry
from kvplan.validate.tensors import LABEL

NO_SPEED = "speed: not measured (Triton's interpreter checks correctness only)"


def validate(
    request: ValidationRequest,
    spec: ModelSpec,
    command: str,
    progress: Progress = lambda _: None,
    previous: ValidationReport | None = None,
) -> Iterator[ValidationReport]:
    """Run every format of the request; yields the report so far after each, the last one complete.

    Args:
        previous: an unfinished report of the same request on the same device: its results and baselines are kept.
    """
    group = choose_group(spec, request.layer_group)
    kind = kind_of(group)
    shape = geometry(group, request.context, request.batch)
    progress("making tensors")
    tensors = kind.make_tensors(shape, seed=request.seed, dtype=DTYPES[request.dtype], device=request.device)
    source = Path(request.tensors_file) if request.tensors_file else shipped(spec.id)
    captured = load(source, group) if source else None
    variant = kind.variant(group, request.seed, request.device)
    run = Session(request, spec, group, shape, tensors, progress, captured, variant)
    if previous is not None:
        report = _resumed(run, previous)
    else:
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
            notes=tuple(_notes(run)),
        )
    todo = [fmt for fmt in request.formats if fmt not in {r.format for r in report.results}]
    for i, fmt in enumerate(todo):
        progress(f"{fmt}: writing and proving ({i + 1} of {len(todo)})")
        results = [*report.results, validate_format(run, fmt)]
        if run.lost:
            results += [FormatResult(format=rest, status="not run", error=LOST) for rest in todo[i + 1 :]]
        elif run.timed:
            usable(request.device)
        done = i + 1 == len(todo) and not run.lost
        report = report.model_copy(update={"results": tuple(results), "baselines": run.baselines, "complete": done})
        yield report
        if run.lost:
            return


def _notes(run: Session) -> Iterator[str]:
    """What a reader must know to read the figures."""
    yield from run.request.notes
    group, tokens = run.group, run.geometry.tokens
    if tokens < run.request.context:
        yield f"layers {group.name} keep at most {group.retain.rows:,} rows: {tokens:,} cached tokens per request"
    yield from run.kind.notes(group, run.geometry)
    if run.beyond_torch:
        yield "format errors, and torch's attention where it is timed, are without the model's softcap and sinks"
    if not run.timed:
        yield NO_SPEED


def _resumed(run: Session, previous: ValidationReport) -> ValidationReport:
    """The report so far, without what the loss of the device kept from running."""
    kept = tuple(r for r in previous.results if r.status != "not run")
    run.roof, run.baselines = previous.roof, previous.baselines
    for result in kept:
        if result.format == run.request.dtype:
            run.native = {phase.name: phase for phase in result.phases}
    now = datetime.now(UTC).isoformat(timespec="seconds")
    note = f"resumed {now} after {len(kept)} formats; roof and 16-bit baselines are those of the first run"
    return previous.model_copy(update={"results": kept, "notes": (*previous.notes, note)})


def _measure_baselines(run: Session) -> None:
    """The read roof and torch's 16-bit attention."""
    from kvplan_kernels.bench.baseline import dense_time
    from kvplan_kernels.bench.roofline import measure_roof

    run.progress("measuring the read roof")
    roof = measure_roof()
    run.roof = Roof(
        bytes_per_second=roof.bytes_per_second,
        method=f"read-only kernel over {roof.nbytes:,} bytes, two buffers rotating in a CUDA graph; {roof.config}",
    )
    run.progress("timing torch attention in 16 bit")
    k, v = run.kind.dense(run.tensors)
    seconds = dense_time(run.kind.torch_ways(run.tensors.q, run.sm_scale), k, v).seconds
    run.baselines = Baselines(
        torch_sdpa_seconds=seconds, best_seconds=seconds, best="torch scaled_dot_product_attention"
    )
