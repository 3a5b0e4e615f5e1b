"""A validation report on a terminal or in a pipe. Rows only; every figure comes from the report."""

from __future__ import annotations

from rich import box
from rich.table import Table
from rich.text import Text

from kvplan.report.terminal import QuietConsole
from kvplan.validate.report import Check, Clipping, Drift, FormatResult, LaunchSource, PhaseResult, ValidationReport

LAUNCH_SOURCES: dict[LaunchSource, str] = {
    "table": "the table's",
    "generic": "the table's, which was not measured on this GPU",
    "searched": "searched on this GPU in this run",
    "kept": "searched on this GPU before, from the cache folder",
}


def print_validation(report: ValidationReport, console: QuietConsole | None = None) -> None:
    """Print checks, errors, times and verdicts of each format."""
    console = console or QuietConsole(highlight=False, markup=False, emoji=False)
    r = report.request
    console.print(
        Text(f"{r.model}: {r.batch} requests x {r.context:,} tokens, one of {report.layers} layers", style="bold")
    )
    console.print(Text(f"on {report.device.name}; tensors {report.tensors}"), soft_wrap=True)
    if report.roof is not None:
        console.print(
            Text(f"read roof {_rate(report.roof.bytes_per_second)}; {_baseline_text(report)}"), soft_wrap=True
        )
    console.print(_summary(report))
    if any(result.times for result in report.results):
        console.print(_times(report))
    if any(phase.paths for _, phase in _beside_decode(report)):
        console.print(_phase_times(report))
    for result in report.results:
        _print_result(console, result)
    for fmt, reason in r.not_for_model.items():
        console.print(Text(f"not for this model: {fmt}: {reason}"), soft_wrap=True)
    if not report.complete:
        console.print(Text("not complete: --out FILE --resume goes on"), soft_wrap=True)
    for note in report.notes:
        console.print(Text(f"note: {note}"), soft_wrap=True)


PROGRESS = ("format", "state", "checks", "kernel error", "decode us", "x 16 bit")


def progress_rows(report: ValidationReport) -> list[list[str]]:
    """One row for every format that was asked, under the headings PROGRESS; the first without a result is running."""
    done = {result.format: result for result in report.results}
    rows: list[list[str]] = []
    for spelling in report.request.formats:
        result = done.get(spelling)
        if result is None:
            state = "waiting" if any(row[1] == "running" for row in rows) or report.complete else "running"
            rows.append([spelling, state, *"----"])
            continue
        error, times = result.kernel_error, result.times
        speed = f"{times.speedup:.2f}x" if times else "-"
        rows.append([
            spelling, result.status, _checks(result), "-" if error is None else f"{error:.1e}",
            f"{times.fused_seconds * 1e6:.1f}" if times else "-", speed,
        ])  # fmt: skip
    return rows


def _summary(report: ValidationReport) -> Table:
    table = _table("format", "checks", "kernel error", "output error", "capacity")
    for result in report.results:
        both = result.format_error.get("both")
        output = "-" if both is None else f"{both.output.mean:.1e}"
        kernel = "-" if result.kernel_error is None else f"{result.kernel_error:.1e}"
        gain = "-" if result.capacity_gain is None else f"{result.capacity_gain:.2f}x"
        table.add_row(*(Text(cell) for cell in (result.format, _checks(result), kernel, output, gain)))
    return table


def _error_table(result: FormatResult) -> Table:
    """Mean, p99 and worst head of each error, for K only, V only and both."""
    table = _table("    error against fp64 on the originals", "mean", "p99", "worst head")
    for part, error in result.format_error.items():
        rows = {"logit": error.logit, "softmax TV": error.softmax_tv, "output": error.output}
        for name, spread in rows.items():
            if part == "v_only" and name != "output":
                continue
            label = f"    {part.replace('_', ' ').replace('k ', 'K ').replace('v ', 'V ')}: {name}"
            cells = (label, *(f"{x:.2e}" for x in (spread.mean, spread.p99, spread.worst_head)))
            table.add_row(*(Text(cell) for cell in cells))
    return table


def _checks(result: FormatResult) -> str:
    checks = _all_checks(result)
    if not checks:
        return result.status
    return f"{sum(c.passed for c in checks)} of {len(checks)}" + ("" if result.status != "error" else ", error")


def _all_checks(result: FormatResult) -> list[Check]:
    return [*result.checks, *(check for phase in result.phases for check in phase.checks)]


def _times(report: ValidationReport) -> Table:
    table = _table("format", "decode us", "unfused us", "TB/s", "of roof", "x 16 bit", "fusion")
    for result in report.results:
        t = result.times
        if t is None:
            continue
        unfused = "-" if t.unfused_seconds is None else f"{t.unfused_seconds * 1e6:.1f}"
        fusion = "-" if t.fusion_gain is None else f"{t.fusion_gain:.2f}x"
        rate = (f"{t.bytes_per_second / 1e12:.2f}", f"{t.roof_share:.1%}", f"{t.speedup:.2f}x")
        table.add_row(*(Text(cell) for cell in (result.format, f"{t.fused_seconds * 1e6:.1f}", unfused, *rate, fusion)))
    return table


def _beside_decode(report: ValidationReport) -> list[tuple[str, PhaseResult]]:
    """(format, phase) of every phase but decode, which has a table of its own."""
    return [(r.format, p) for r in report.results for p in r.phases if p.name != "decode"]


def _phase_times(report: ValidationReport) -> Table:
    table = _table("format", "phase", "path", "us")
    for fmt, phase in _beside_decode(report):
        for path in phase.paths:
            table.add_row(*(Text(cell) for cell in (fmt, phase.name, path.name, f"{path.seconds * 1e6:,.1f}")))
    return table


def _print_result(console: QuietConsole, result: FormatResult) -> None:
    console.print(Text(result.format, style="bold"))
    if result.error is not None:
        console.print(Text(f"  error: {result.error}"), soft_wrap=True)
    for check in result.checks:
        _print_check(console, check)
    for phase in result.phases:
        if phase.error is not None:
            console.print(Text(f"  {phase.name}: {phase.status}: {phase.error}"), soft_wrap=True)
        for check in phase.checks:
            _print_check(console, check)
        if phase.launch is not None and phase.paths:
            text = f"  {phase.name}, launch: {phase.launch.shape}; {LAUNCH_SOURCES[phase.launch.source]}"
            console.print(Text(text), soft_wrap=True)
        for each in phase.path_errors:
            text = f"  {phase.name}, {each.name}: kernel error {each.kernel:.1e}, output error {each.output:.1e}"
            console.print(Text(text), soft_wrap=True)
    if result.format_error:
        console.print(_error_table(result))
    for role, share in result.clipped_fraction.items():
        heads = _heads(result.clipping[role]) if role in result.clipping else ""
        text = f"  {role.upper()} values outside the calibrated range: {share:.4%}{heads}"
        console.print(Text(text), soft_wrap=True)
    if result.drift is not None:
        _print_drift(console, result.drift)
    for verdict in result.verdicts:
        console.print(Text(f"  {verdict}"), soft_wrap=True)


def _print_check(console: QuietConsole, check: Check) -> None:
    console.print(Text(f"  {'ok ' if check.passed else 'RED'} {check.name}: {check.detail}"), soft_wrap=True)


def _print_drift(console: QuietConsole, drift: Drift) -> None:
    for role, found in drift.clipped.items():
        text = f"  amplitude doubled after calibration: {role.upper()} values clipped {found.mean:.4%}{_heads(found)}"
        console.print(Text(text), soft_wrap=True)
    text = f"  amplitude doubled: output error {drift.output_error_without:.1e} -> {drift.output_error:.1e}"
    console.print(Text(text), soft_wrap=True)


def _heads(found: Clipping) -> str:
    """The shares of the KV heads."""
    return f", at most {found.max:.4%} of a head (by head: {' '.join(f'{x:.3%}' for x in found.per_head)})"


def _table(*headings: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for i, heading in enumerate(headings):
        table.add_column(heading, justify="right" if i else "left", no_wrap=True)
    return table


def _micro(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} us"


def _rate(bytes_per_second: float) -> str:
    return f"{bytes_per_second / 1e12:.2f} TB/s"


def _baseline_text(report: ValidationReport) -> str:
    b = report.baselines
    parts = [("torch SDPA", b.torch_sdpa_seconds), ("our 16-bit kernel", b.kernel_seconds)]
    return ", ".join(f"{name} {_micro(seconds)}" for name, seconds in parts if seconds is not None)
