"""The right side as one widget: the bar and the three tables of a plan."""

from __future__ import annotations

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.message import Message
from textual.widgets import DataTable, TabbedContent, TabPane

from kvplan.plan import Plan
from kvplan.recommend.offers import FormatRow
from kvplan.report.formats import SORTS
from kvplan.tui.results import ContextTable, FormatTable, MemoryBar, ParetoPlot, PartTable


class Results(Vertical):
    """Shows one plan, and beside it the plans of other formats and contexts."""

    plan: Plan | None = None
    rows: tuple[FormatRow, ...] = ()
    by = ""

    class Pointed(Message):
        """Another row is selected; `text` is its formula."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    class Used(Message):
        """A row's value is wanted in the form: a context, or a format by its place in the list of formats."""

        def __init__(self, name: str, value: str) -> None:
            super().__init__()
            self.name, self.value = name, value

    class Sorted(Message):
        """The formats stand in another order."""

    def compose(self) -> ComposeResult:
        yield MemoryBar()
        with TabbedContent(id="tabs"):
            with TabPane("1 Formats", id="formats"):
                yield FormatTable(cursor_type="row", cell_padding=0)
            with TabPane("2 Contexts", id="contexts"):
                yield ContextTable(cursor_type="row", cell_padding=0)
            with TabPane("3 Parts", id="parts"):
                yield PartTable(cursor_type="row", cell_padding=0)
            with TabPane("4 Pareto", id="pareto"):
                yield ParetoPlot()

    def show_plan(self, plan: Plan) -> None:
        """Draw a plan; its parts only where they are seen."""
        self.plan = plan
        self.query_one(MemoryBar).show(plan)
        self._show_parts()

    def show_others(self, rows: list[FormatRow], ladder: Plan | None) -> None:
        """Draw other formats and contexts."""
        self.rows = tuple(rows)
        self.query_one(FormatTable).show(rows, self.by)
        self.query_one(ParetoPlot).show(rows)
        if ladder is not None:
            self.query_one(ContextTable).show(ladder)
        self._point()

    def sort(self, by: str | None = None) -> None:
        """Another order of the formats; without one the next."""
        self.by = SORTS[(SORTS.index(self.by) + 1) % len(SORTS)] if by is None else by
        self.query_one(FormatTable).show(list(self.rows), self.by)
        self._point()
        self.post_message(self.Sorted())

    def go(self, name: str) -> None:
        """Show a table and go into it."""
        self.query_one(TabbedContent).active = name
        for table in self.query(f"#{name} DataTable"):
            table.focus()

    @on(TabbedContent.TabActivated)
    def _show_parts(self) -> None:
        for table in self.query(PartTable):
            if self.plan is not None and self._active == "parts":
                table.show(self.plan)

    @property
    def _active(self) -> str:
        return next((tabs.active for tabs in self.query(TabbedContent)), "") or "formats"

    @on(DataTable.RowHighlighted)
    @on(TabbedContent.TabActivated)
    def _point(self) -> None:
        # Events still come while the app closes and its tables are gone.
        for table in self.query(f"#{self._active} DataTable"):
            assert isinstance(table, FormatTable | ContextTable | PartTable)
            self.post_message(self.Pointed(table.line(table.cursor_row) if table.row_count else ""))

    @on(DataTable.RowSelected)
    def _use(self, event: DataTable.RowSelected) -> None:
        table, row = event.data_table, event.cursor_row
        if isinstance(table, ContextTable):
            self.post_message(self.Used("context", table.context(row)))
        elif isinstance(table, FormatTable) and row < len(table.found):
            self.post_message(self.Used("k", table.found[row].name))

    @on(DataTable.HeaderSelected, "FormatTable")
    def _by_heading(self, event: DataTable.HeaderSelected) -> None:
        by = event.column_key.value or ""
        self.sort(by if by in SORTS and by != self.by else "")
