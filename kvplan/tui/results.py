"""The right side: verdict, memory bar, tables and the line of the selected row. All of it is rows of plans."""

from __future__ import annotations

from rich.text import Text
from textual.widget import Widget
from textual.widgets import DataTable

from kvplan.plan import Plan
from kvplan.recommend.offers import FormatRow
from kvplan.report.formats import HEADINGS, format_cells, formula_line, sorted_rows
from kvplan.report.memory import Segment, memory_line, segments
from kvplan.report.pareto import pareto_lines
from kvplan.report.rows import component_rows, ladder_rows, slope_line


class Line(Widget):
    """A text whose size is given by the style sheet, so that another text moves nothing."""

    text = ""

    def show(self, text: str) -> None:
        """Draw another text."""
        if text != self.text:
            self.text = text
            self.refresh()

    def render(self) -> Text:
        return Text(self.text)


class MemoryBar(Widget):
    """One GPU's memory: a bar of patterns, and under it each piece in words."""

    DEFAULT_CSS = "MemoryBar { height: auto; }"

    plan: Plan | None = None
    pieces: list[Segment]

    def on_mount(self) -> None:
        """Nothing to draw yet."""
        self.pieces = []

    def show(self, plan: Plan) -> None:
        """Draw another plan."""
        drawn = len(self.pieces)
        self.plan = plan
        self.pieces = segments(plan, max(self.size.width, 20))
        # Dividing the screen anew takes longer than drawing.
        self.refresh(layout=len(self.pieces) != drawn)

    def on_resize(self) -> None:
        """The bar is as wide as its place."""
        if self.plan is not None:
            self.pieces = segments(self.plan, max(self.size.width, 20))
            self.refresh(layout=True)

    def render(self) -> Text:
        width, pieces = max(self.size.width, 20), self.pieces
        if self.plan is None:
            return Text("")
        text = Text(memory_line(self.plan)[:width])
        text.append("\n")
        for piece in pieces:
            text.append(piece.pattern * piece.cells, style=piece.colour)
        columns = max(1, (width + 1) // 25)
        room = (width + 1) // columns
        for i, piece in enumerate(pieces):
            text.append("\n" if i % columns == 0 else "")
            text.append(f"{piece.pattern} ", style=piece.colour)
            text.append(f"{piece.name:<{max(room - 13, 1)}}{piece.size:>10}" + (" " if (i + 1) % columns else ""))
        return text


class Table(DataTable[Text]):
    """A table that keeps its selection where rows are replaced."""

    def replace(self, headings: tuple[str, ...] | list[str], cells: list[list[str]]) -> None:
        """Show other rows; the headings are drawn anew only if they differ."""
        row = self.cursor_row
        if [str(c.label).strip() for c in self.ordered_columns] != list(headings):
            self.clear(columns=True)
            for i, heading in enumerate(headings):
                label = Text(f" {heading}", justify="right") if i else Text(heading)
                self.add_column(label, key=heading.removesuffix(" v"))
        else:
            self.clear()
        for line in cells:
            first, *rest = line
            self.add_row(Text(first), *(Text(f" {cell}", justify="right") for cell in rest))
        if cells:
            self.move_cursor(row=min(row, len(cells) - 1), scroll=True)


class FormatTable(Table):
    """Formats side by side."""

    found: list[FormatRow]
    by = ""

    def on_mount(self) -> None:
        """Whole rows are selected."""
        self.found = []

    def show(self, rows: list[FormatRow], by: str) -> None:
        """Draw rows in another order or of another request."""
        self.found, self.by = sorted_rows(rows, by), by
        marked = [f"{h} v" if by and h == by else h for h in HEADINGS]
        self.replace(marked, [format_cells(row) for row in self.found])

    def line(self, index: int) -> str:
        """The formula of a row, or why it is refused."""
        row = self.found[index] if index < len(self.found) else None
        if row is None:
            return ""
        return f"{row.name}: {formula_line(row.plan)}" if row.plan else f"{row.name}: {row.refused}"


class ParetoPlot(Widget):
    """Bytes against predicted error, as large as its place."""

    DEFAULT_CSS = "ParetoPlot { height: 1fr; }"

    rows: tuple[FormatRow, ...] = ()

    def show(self, rows: list[FormatRow]) -> None:
        """Draw the formats of another request."""
        self.rows = tuple(rows)
        self.refresh()

    def render(self) -> Text:
        return Text("\n".join(pareto_lines(list(self.rows), self.size.width, self.size.height)), no_wrap=True)


class ContextTable(Table):
    """The capacity ladder."""

    plan: Plan | None = None

    def show(self, plan: Plan) -> None:
        """Draw the ladder of a plan without a context."""
        self.plan = plan
        self.replace(*ladder_rows(plan))

    def context(self, index: int) -> str:
        """The context of a row."""
        return str(self.plan.ladder[index].context) if self.plan else ""

    def line(self, index: int) -> str:
        """What a token adds."""
        if self.plan is None or index >= len(self.plan.ladder):
            return ""
        return f"{self.plan.ladder[index].context:,} tokens: {slope_line(self.plan)}"


class PartTable(Table):
    """Where the bytes come from."""

    lines: tuple[str, ...] = ()

    def show(self, plan: Plan) -> None:
        """Draw the components of a plan."""
        rows = component_rows(plan)
        indent = {"term": "  "}
        self.replace(("part", "size"), [[indent.get(r.kind, "") + r.component, r.size] for r in rows])
        self.lines = tuple(f"{r.component}: {r.detail} = {r.size}" for r in rows)

    def line(self, index: int) -> str:
        """The formula of a part."""
        return self.lines[index] if index < len(self.lines) else ""
