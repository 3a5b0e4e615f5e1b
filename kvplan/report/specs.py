"""The list of specs on a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from kvplan.report.terminal import QuietConsole


def print_specs(rows: Sequence[Mapping[str, str | int | None]]) -> None:
    """Print one line per spec."""
    console = QuietConsole(highlight=False, markup=False, emoji=False)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("model", no_wrap=True)
    table.add_column("layers", justify="right")
    table.add_column("layer groups", overflow="fold")
    table.add_column("max context", justify="right", no_wrap=True)
    table.add_column("confidence")
    for row in rows:
        context = row["max_context"]
        cells = (row["id"], row["layers"], row["kinds"], f"{context:,}", row["confidence"])
        table.add_row(*(Text("" if cell is None else str(cell)) for cell in cells))
    console.print(table)
