"""Ranked layouts of GPUs on a terminal; every figure comes from the table."""

from __future__ import annotations

from rich import box
from rich.table import Table
from rich.text import Text

from kvplan.plan.layouts import LayoutTable, RankedLayout
from kvplan.report.rows import ratio_text
from kvplan.report.terminal import QuietConsole
from kvplan.units import format_bytes


def print_layouts(made: LayoutTable, console: QuietConsole | None = None) -> None:
    """Print the ranking: sizes, weights and pool of a rank, what fits, slope, copies."""
    console = console or QuietConsole(highlight=False, markup=False, emoji=False)
    formats = ", ".join(f"{role} {f}" for role, f in made.formats.items()) or "states only"
    where = f" on {made.device.name}" if made.device else ""
    head = f"{made.model}: layouts of {made.gpus:,} GPUs{where}, context {made.context:,} tokens; {formats}"
    console.print(Text(head, style="bold"), soft_wrap=True)
    console.print(Text(f"ranked by {made.ranked_by}, then by copies"), soft_wrap=True)
    console.print(_table(made))
    notes = list(made.notes)
    if any(_too_big(row) for row in made.layouts):
        notes.append("! the weights alone do not fit on one GPU")
    if any(row.dp_attention for row in made.layouts):
        notes.append("with dp attention, the copies of the attention weights are not counted")
    for note in notes:
        console.print(Text(f"note: {note}"), soft_wrap=True)


def _too_big(row: RankedLayout) -> bool:
    return row.pool_bytes is not None and row.pool_bytes < 0


def _table(made: LayoutTable) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    fits = ["requests", "tokens per GPU"] if made.device else ["bytes per token and GPU"]
    # A column for what no layout uses would only take width.
    sizes = [size for size in ("tp", "pp", "dp", "dcp") if size != "dcp" or any(r.dcp > 1 for r in made.layouts)]
    attention = any(row.dp_attention for row in made.layouts)
    headings = ["", *sizes, *(["dp attn"] if attention else []), "weights", *fits, "copies"]
    for heading in headings:
        table.add_column(heading, justify="right", overflow="fold")
    for row in made.layouts:
        cells = [f"{row.rank}", *(f"{getattr(row, size)}" for size in sizes)]
        cells += ["yes" if row.dp_attention else ""] if attention else []
        cells.append(format_bytes(row.weights_bytes))
        if row.tokens_per_gpu is not None:
            cells += [f"{row.requests:,}" + (" !" if _too_big(row) else ""), f"{row.tokens_per_gpu.value:,.0f}"]
        else:
            cells.append(ratio_text(row.bytes_per_token_per_gpu))
        table.add_row(*(Text(cell) for cell in (*cells, format_bytes(row.replicated_bytes))))
    return table
