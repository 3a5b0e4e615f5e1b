"""A log's figures beside kvplan's on a terminal or in a pipe."""

from __future__ import annotations

from decimal import Decimal

from rich import box
from rich.table import Table
from rich.text import Text

from kvplan.reconcile.read import format_of
from kvplan.reconcile.result import Compared, Reconciliation
from kvplan.reconcile.summary import Summary
from kvplan.reconcile.types import Printed
from kvplan.report.terminal import QuietConsole, bullet
from kvplan.units import format_bytes


def print_reconciliation(found: Reconciliation, console: QuietConsole | None = None) -> None:
    """The start, the table of figures, causes, the memory beside the cache, what is missing."""
    console = console or QuietConsole(highlight=False, markup=False, emoji=False)
    start = found.start
    version = f" {start.version}" if start.version else ""
    model = f"{found.model} ({found.model_from}; rules of {found.engine} {found.version}".rstrip() + ")"
    console.print(Text(f"{start.title}{version}: {model if found.model else start.model or 'a model'}", style="bold"))
    console.print(Text(_cache(found.summary)))
    if found.compared:
        console.print(_table(found.compared))
        console.print(Text("every figure agrees" if found.agrees else "not every figure agrees"))
    else:
        refused = found.why_not if not found.version else "no figure of this log has one of kvplan's beside it"
        why = refused if found.model else found.model_from
        console.print(Text(f"not explained: {why}"), soft_wrap=True)
    if found.deciding:
        console.print(Text(f"rank {found.deciding} has the least memory and decides"))
    beside = found.beside
    lines = {
        "Causes": list(found.causes),
        "Figures of kvplan that the log has not": [f"{name}: {value:,}" for name, value in found.derived],
        "Beside weights and cache": [f"{_range(beside.low_bytes, beside.high_bytes)} = {beside.formula}"]
        if beside
        else [f"not known: {found.why_not}"],
        "Also printed": [_other(p, format_of(start.engine).figures[p.name].text) for p in found.others],
        "Missing in the log": list(start.missing),
        "Notes": list(found.notes),
    }
    for heading, texts in lines.items():
        if texts:
            console.print()
            console.print(Text(heading, style="bold"))
        for text in texts:
            console.print(Text(bullet(text, console.width)), soft_wrap=True)


def _cache(cache: Summary) -> str:
    """`cache: 16.00 GiB, 262,144 tokens, 16,384 blocks`, as far as the log says."""
    parts = []
    if cache.low_bytes is not None and cache.high_bytes is not None:
        parts.append(_range(cache.low_bytes, cache.high_bytes))
    parts += [f"{n:,} {name}" for n, name in ((cache.tokens, "tokens"), (cache.blocks, "blocks")) if n is not None]
    return "cache in the log: " + (", ".join(parts) or "no size")


def _table(compared: tuple[Compared, ...]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("figure", overflow="fold")
    for heading in ("printed", "kvplan", "residual"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("how", overflow="fold")
    for c in compared:
        kvplan = _plain(c.low) if c.low == c.high else f"{_plain(c.low)} to {_plain(c.high)}"
        name = " ".join(filter(None, (c.text, c.printed.of, c.printed.rank)))
        residual = "0" if c.agrees else f"{c.residual:+,.6g}"
        cells = (name, f"{c.printed.value:,} {c.printed.unit}".strip(), kvplan, residual, c.formula)
        table.add_row(*(Text(cell) for cell in cells))
    return table


def _plain(value: Decimal) -> str:
    return f"{int(value):,}" if value == value.to_integral_value() else f"{value:,.4f}"


def _range(low: int, high: int) -> str:
    texts = dict.fromkeys((format_bytes(low), format_bytes(high)))
    return " to ".join(texts)


def _other(p: Printed, text: str) -> str:
    where = " ".join(filter(None, (p.of, p.rank)))
    return f"{text}: {p.value:,} {p.unit}".rstrip() + (f" ({where})" if where else "") + f", line {p.line:,}"
