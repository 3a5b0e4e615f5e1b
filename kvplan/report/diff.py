"""Two plans side by side on a terminal; every figure comes from the comparison."""

from __future__ import annotations

from rich import box
from rich.table import Table
from rich.text import Text

from kvplan.plan.diff import DiffRow, PlanDiff
from kvplan.report.terminal import QuietConsole
from kvplan.units import format_bytes


def print_diff(made: PlanDiff, console: QuietConsole | None = None) -> None:
    """Print what differs in the requests, then every figure that is not 0 in both."""
    console = console or QuietConsole(highlight=False, markup=False, emoji=False)
    console.print(Text(f"{made.before} -> {made.after}", style="bold"), soft_wrap=True)
    for name, (before, after) in made.changed.items():
        console.print(Text(f"  {name.replace('_', ' ')}: {_value(before)} -> {_value(after)}"), soft_wrap=True)
    if not made.changed:
        console.print(Text("  the same request"))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("figure", overflow="fold")
    for heading in ("before", "after", "difference", "ratio"):
        table.add_column(heading, justify="right", overflow="fold")
    for row in made.rows:
        if row.before or row.after:
            table.add_row(*(Text(cell) for cell in _cells(row)))
    console.print(table)


def _cells(row: DiffRow) -> tuple[str, ...]:
    name = row.figure.removeprefix("kv.").removeprefix("capacity.").removesuffix("_bytes").replace("_", " ")
    at = f" at {row.context:,}" if row.context else ""
    ratio = "-" if row.ratio is None else f"{row.ratio:.3f}x"
    return (f"{name}{at}", *(_amount(n, row.unit) for n in (row.before, row.after, row.difference)), ratio)


def _amount(number: float | None, unit: str) -> str:
    if number is None:
        return "-"
    return format_bytes(int(number)) if unit == "bytes" else f"{number:,}"


def _value(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else f"{value:,}" if type(value) is int else str(value)
