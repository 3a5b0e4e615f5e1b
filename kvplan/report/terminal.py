"""A plan on a terminal or in a pipe, with Rich; rows.py has the content."""

from __future__ import annotations

import textwrap

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvplan.plan import Plan
from kvplan.report import capacity, rows

_STYLES = {"group": "bold", "term": "", "total": "bold"}


class QuietConsole(Console):
    """Rich ends the process when the reader has gone; here that is for `kvplan.cli.main` to handle."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def print_plan(plan: Plan, console: Console | None = None, explain: bool = False) -> None:
    """Print a plan: one table by component, the ladder or capacity, both gains, notes; on request, each factor."""
    console = console or QuietConsole(highlight=False, markup=False, emoji=False)
    console.print(Text(rows.title(plan), style="bold"))
    console.print(_components(plan))
    console.print(Text(rows.slope_line(plan)))
    if plan.ladder:
        console.print(_ladder(plan))
    if explain:
        from kvplan.report.explain import explain_lines

        for line in explain_lines(plan):
            console.print(Text(_hanging(line, console.width)), soft_wrap=True)
    sections = {
        "Engine": capacity.engine_lines(plan),
        "Launch": capacity.launch_lines(plan),
        "GPUs": rows.sharding_lines(plan),
        "Capacity": capacity.capacity_lines(plan),
        "Verdict": rows.verdict_lines(plan),
        f"Gain over {plan.model.native_dtype}": rows.gain_lines(plan),
        "Notes": list(plan.notes),
    }
    print_sections(console, sections)


def print_sections(console: Console, sections: dict[str, list[str]]) -> None:
    """Headings with their lines as a list each; those without lines are left out."""
    for heading, lines in sections.items():
        if lines:
            console.print()
            console.print(Text(heading, style="bold"))
            for line in lines:
                console.print(Text(bullet(line, console.width)), soft_wrap=True)


def _components(plan: Plan) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("component", overflow="fold", min_width=14)
    table.add_column("formula", overflow="fold", ratio=1)
    table.add_column("size", justify="right", no_wrap=True)
    for row in rows.component_rows(plan):
        indent = "  " if row.kind == "term" else ""
        table.add_row(Text(indent + row.component), Text(row.detail), Text(row.size), style=_STYLES[row.kind])
    return table


def _ladder(plan: Plan) -> Table:
    headings, cells = rows.ladder_rows(plan)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=heading != "requests that fit")
    for row in cells:
        table.add_row(*(Text(cell) for cell in row))
    return table


def _hanging(line: str, width: int) -> str:
    """Wrapped below its own indent."""
    indent = " " * (len(line) - len(line.lstrip()))
    return textwrap.fill(
        line.strip(),
        width,
        initial_indent=indent,
        subsequent_indent=indent + "  ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def bullet(line: str, width: int) -> str:
    """A hanging indent; no number is ever cut."""
    return textwrap.fill(
        line,
        width,
        initial_indent=" - ",
        subsequent_indent="   ",
        break_long_words=False,
        break_on_hyphens=False,
    )
