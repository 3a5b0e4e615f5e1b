"""A quality report on a terminal or in a pipe. Rows only; every figure comes from the report."""

from __future__ import annotations

from rich import box
from rich.table import Table
from rich.text import Text

from kvplan.quality.law import PredictionReport
from kvplan.quality.report import Figures, QualityReport, TaskScore
from kvplan.report.terminal import QuietConsole


def print_quality(report: QualityReport, console: QuietConsole | None = None) -> None:
    """Print the baseline, one row per format, KL by position, notes."""
    console = console or QuietConsole(highlight=False, markup=False, emoji=False)
    r = report.request
    read = f"{r.text.tokens:,} tokens of {r.text.name}, {r.compute} compute"
    console.print(Text(f"{r.model}: {read}: measured on this model", style="bold"), soft_wrap=True)
    b = report.baseline
    console.print(Text(f"untouched cache: ppl {b.ppl:.3f}; noise floor of KL {b.noise.kl_mean:.1e}"), soft_wrap=True)
    console.print(_formats(report))
    console.print()
    console.print(_positions(report))
    if b.tasks:
        console.print()
        console.print(_tasks(report))
    for line in (report.scope, *report.notes, *_asides(report)):
        console.print(Text(f"note: {line}"), soft_wrap=True)


def _formats(report: QualityReport) -> Table:
    table = _table("format", "KL mean", "KL p99", "top-1", "ppl +- error", "K only", "V only")
    for f in report.formats:
        cells = (f"{f.kl_mean:.5f}", f"{f.kl_p99:.4f}", f"{f.top1:.1%}", f"{f.ppl:.3f} +- {f.ppl_error:.3f}")
        table.add_row(f.format, *cells, _kl(f.k_only), _kl(f.v_only))
    return table


def _positions(report: QualityReport) -> Table:
    """Mean KL by position."""
    spans = [f"{b.start:,}-{b.stop:,}" for b in report.formats[0].buckets] if report.formats else []
    table = _table("KL mean at position", *spans)
    for f in report.formats:
        table.add_row(f.format, *(f"{b.kl_mean:.5f}" for b in f.buckets))
    return table


def print_prediction(report: PredictionReport, console: QuietConsole | None = None) -> None:
    """Print one row per format with its interval and the kind of evidence."""
    console = console or QuietConsole(highlight=False, markup=False, emoji=False)
    console.print(Text(f"{report.model}: KL predicted, model not run", style="bold"))
    console.print(Text(f"tensors: {report.tensors}"), soft_wrap=True)
    table = _table("format", "KL", "90% interval", "statistics", "evidence")
    table.columns[-1].no_wrap, table.columns[-1].justify = False, "left"
    for f in report.formats:
        between = "-" if f.low == f.high else f"{f.low:.5f} to {f.high:.5f}"
        alone = "-" if f.kl_statistics is None else f"{f.kl_statistics:.5f}"
        table.add_row(f.format, f"{f.kl:.5f}", between, alone, f.evidence)
    console.print(table)
    for line in report.notes:
        console.print(Text(f"note: {line}"), soft_wrap=True)


def _tasks(report: QualityReport) -> Table:
    """Tasks right, of those that the untouched model gets right; `greedy` in tokens until the texts part."""
    kinds = [t.kind for t in report.baseline.tasks]
    table = _table("tasks right", *kinds)
    table.add_row("untouched", *(f"{t.right} of {t.tasks}" for t in report.baseline.tasks))
    for f in report.formats:
        by_kind = {t.kind: t for t in f.tasks}
        table.add_row(f.format, *(_score(by_kind.get(kind)) for kind in kinds))
    return table


def _score(t: TaskScore | None) -> str:
    if t is None:
        return "-"
    return f"{t.tokens_mean:.1f} tokens" if t.kind == "greedy" else f"{t.right} of {t.tasks}"


def _asides(report: QualityReport) -> list[str]:
    exact = [
        f"{f.format}: a query sees {f.exact_share:.0%} of its rows unquantised at this length, less at longer ones"
        for f in report.formats
        if f.exact_share
    ]
    return exact + [
        f"{f.format}: {share:.1e} of {role.upper()} lies outside the calibrated range"
        for f in report.formats
        for role, share in f.clipped_fraction.items()
        if share
    ]


def _kl(figures: Figures | None) -> str:
    return "-" if figures is None else f"{figures.kl_mean:.5f}"


def _table(*headings: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for i, heading in enumerate(headings):
        table.add_column(heading, justify="right" if i else "left", no_wrap=i > 0, overflow="fold")
    return table
