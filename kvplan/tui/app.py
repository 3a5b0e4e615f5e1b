"""The app: a form on the left, one plan on the right. Keys change the form; a thread makes the plan; rows are drawn."""

from __future__ import annotations

import time
from typing import ClassVar

from textual import on, work
from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.events import Resize
from textual.screen import Screen
from textual.widgets import DataTable, Footer, TabbedContent, TabPane
from textual.worker import get_current_worker

from kvplan.errors import KvplanError
from kvplan.plan import Plan
from kvplan.recommend.offers import FormatRow
from kvplan.report.capacity import launch_lines
from kvplan.report.command import estimate_command
from kvplan.report.formats import SORTS
from kvplan.report.rows import title, verdict_lines
from kvplan.specs.load import list_models
from kvplan.tui.choices import DEFAULT, Choices
from kvplan.tui.field import Field
from kvplan.tui.help import Help
from kvplan.tui.layout import BINDINGS, CSS, FIELDS, TYPED
from kvplan.tui.picker import Picker
from kvplan.tui.planner import Made, Planner
from kvplan.tui.results import ContextTable, FormatTable, Line, MemoryBar, PartTable

QUIET = 0.15
"""Seconds without a key before the tables of other formats and contexts are made."""


class PlanApp(App[None]):
    """`kvplan tui`."""

    TITLE = "kvplan"
    CSS = CSS
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = BINDINGS

    def __init__(self, choices: Choices) -> None:
        super().__init__()
        self.choices = choices
        self.made: Made | None = None
        self.problem: KvplanError | None = None
        self.drawn: Choices | None = None
        self.drawn_at = 0.0
        self.tabled: Choices | None = None
        self._planner = Planner()
        self._rows: list[FormatRow] = []
        self._by = ""

    @property
    def main(self) -> Screen[object]:
        """The screen below any list or help page."""
        return self.screen_stack[0]

    @property
    def is_closing(self) -> bool:
        """Whether plans come too late to be drawn."""
        return not self.is_running or not self.main.query("#status")

    def compose(self) -> ComposeResult:
        yield Line(id="title")
        with Horizontal(id="body"):
            with VerticalScroll(id="form", can_focus=False):
                for name, label in FIELDS:
                    yield Field(name, label)
            with Vertical(id="results"):
                yield MemoryBar()
                with TabbedContent(id="tabs"):
                    with TabPane("1 Formats", id="formats"):
                        yield FormatTable(cursor_type="row", cell_padding=0)
                    with TabPane("2 Contexts", id="contexts"):
                        yield ContextTable(cursor_type="row", cell_padding=0)
                    with TabPane("3 Parts", id="parts"):
                        yield PartTable(cursor_type="row", cell_padding=0)
        yield Line(id="formula")
        yield Line(id="launch")
        yield Line(id="status")
        yield Footer()

    def on_mount(self) -> None:
        """The first plan."""
        self._timer = self.set_timer(QUIET, self._tables, pause=True)
        self.main.query_one("#field-model").focus()
        self._changed(self.choices)

    def on_resize(self, event: Resize) -> None:
        """More lines for formula and command on a large screen."""
        self.main.set_class(event.size.height >= 34 and event.size.width >= 110, "-tall")

    # The form

    @on(Field.Stepped)
    def _step(self, event: Field.Stepped) -> None:
        offered = list_models() if event.name == "model" else self.choices.offered(event.name)
        now = getattr(self.choices, event.name)
        at = offered.index(now) + event.by if now in offered else 0
        if 0 <= at < len(offered):
            self._changed(self.choices.change(event.name, offered[at]))

    @on(Field.Opened)
    def _opened(self, event: Field.Opened) -> None:
        self.action_open(event.name)

    def action_open(self, name: str) -> None:
        """The list of a field's values."""
        offered = list_models() if name == "model" else self.choices.offered(name)
        label = dict(FIELDS)[name]

        def chosen(value: str | None) -> None:
            if value is not None:
                self._changed(self.choices.change(name, value))

        values = [(value, value) for value in offered]
        self.push_screen(Picker(label, values, getattr(self.choices, name), TYPED.get(name, "")), chosen)

    def _changed(self, choices: Choices) -> None:
        """The form shows its new texts at once; the plan follows."""
        self.choices = choices
        for name, _ in FIELDS:
            self.main.query_one(f"#field-{name}", Field).show(getattr(choices, name))
        if self._planner.is_quick(choices):
            self.workers.cancel_group(self, "plan")
            self._show(choices, self._planner.plan(choices))
        else:
            self._make(choices)

    # Plans

    @work(thread=True, exclusive=True, group="plan")
    def _make(self, choices: Choices) -> None:
        made = self._planner.plan(choices)
        if not get_current_worker().is_cancelled:
            self.call_from_thread(self._show, choices, made)

    def _tables(self) -> None:
        self._make_tables(self.choices)

    @work(thread=True, exclusive=True, group="tables")
    def _make_tables(self, choices: Choices) -> None:
        worker = get_current_worker()
        ladder = self._planner.ladder(choices)
        rows = self._planner.formats(choices, lambda: not worker.is_cancelled)
        if not worker.is_cancelled:
            self.call_from_thread(self._show_tables, choices, ladder, rows)

    def _show(self, choices: Choices, made: Made | KvplanError) -> None:
        if choices != self.choices or self.is_closing:
            return
        self.problem = made if isinstance(made, KvplanError) else None
        status = self.main.query_one("#status", Line)
        status.set_class(self.problem is not None, "-error")
        self.main.query_one("#results").set_class(self.problem is not None, "-stale")
        if isinstance(made, KvplanError):
            status.show(f"error: {made.message}; hint: {made.hint}")
            if self.made is not None:
                self.main.query_one("#title", Line).show(f"last plan: {title(self.made.plan)}")
        else:
            self.made = made
            self._show_plan(made.plan)
        self.call_after_refresh(self._is_drawn, choices)

    def _show_plan(self, plan: Plan) -> None:
        self.main.query_one("#status", Line).show("; ".join(verdict_lines(plan)) or "no GPU: nothing to fit into")
        self.main.query_one("#title", Line).show(title(plan))
        self.main.query_one("#launch", Line).show(self._command())
        self.main.query_one(MemoryBar).show(plan)
        self._show_parts()
        self.workers.cancel_group(self, "tables")
        self._timer.stop()
        self._timer = self.set_timer(QUIET, self._tables)

    def _is_drawn(self, choices: Choices) -> None:
        self.drawn, self.drawn_at = choices, time.perf_counter()

    def _show_tables(self, choices: Choices, ladder: Plan | None, rows: list[FormatRow]) -> None:
        if choices != self.choices or self.is_closing:
            return
        self._rows, self.tabled = rows, choices
        self.main.query_one(FormatTable).show(rows, self._by)
        if ladder is not None:
            self.main.query_one(ContextTable).show(ladder)
        self._show_formula()

    # Tables

    @on(TabbedContent.TabActivated)
    def _show_parts(self) -> None:
        """Only where they are seen."""
        if self.made is not None and not self.is_closing and self.main.query_one(TabbedContent).active == "parts":
            self.main.query_one(PartTable).show(self.made.plan)

    def _table(self) -> FormatTable | ContextTable | PartTable:
        active = self.main.query_one(TabbedContent).active or "formats"
        table = self.main.query_one(f"#{active} DataTable")
        assert isinstance(table, FormatTable | ContextTable | PartTable)
        return table

    @on(DataTable.RowHighlighted)
    @on(TabbedContent.TabActivated)
    def _show_formula(self) -> None:
        if self.is_closing:
            return
        table = self._table()
        self.main.query_one("#formula", Line).show(table.line(table.cursor_row) if table.row_count else "")

    @on(DataTable.RowSelected)
    def _use(self, event: DataTable.RowSelected) -> None:
        table = event.data_table
        if isinstance(table, ContextTable):
            self._changed(self.choices.change("context", table.context(event.cursor_row)))
        elif isinstance(table, FormatTable) and event.cursor_row < len(table.found):
            name = table.found[event.cursor_row].name
            first = self.choices.offered("k")[1] == name
            self._changed(self.choices.change("k", DEFAULT if first else name).change("v", "as K"))

    @on(DataTable.HeaderSelected, "FormatTable")
    def _by_heading(self, event: DataTable.HeaderSelected) -> None:
        by = event.column_key.value or ""
        self._sort(by if by in SORTS and by != self._by else "")

    def action_sort(self) -> None:
        """The next order of the table of formats."""
        self.action_tab("formats")
        self._sort(SORTS[(SORTS.index(self._by) + 1) % len(SORTS)])

    def _sort(self, by: str) -> None:
        self._by = by
        self.main.query_one(FormatTable).show(self._rows, by)
        self.notify(f"sorted by {by}" if by else "as listed", timeout=1.5)
        self._show_formula()

    def action_tab(self, name: str) -> None:
        """Show a table and go into it."""
        self.main.query_one(TabbedContent).active = name
        self.main.query_one(f"#{name} DataTable").focus()

    # Results

    def _command(self) -> str:
        """What starts the engine; without one, what prints the plan."""
        lines = launch_lines(self.made.plan) if self.made else []
        return lines[0] if lines else self._kvplan_command()

    def _kvplan_command(self) -> str:
        return estimate_command(self.made.request) if self.made else ""

    def action_copy_launch(self) -> None:
        """Copy the command that starts the engine."""
        self._copy(self._command())

    def action_copy_command(self) -> None:
        """Copy the kvplan command."""
        self._copy(self._kvplan_command())

    def _copy(self, command: str) -> None:
        if self.problem is not None or not command:
            self.notify("nothing to copy: the request has an error", severity="warning")
            return
        self.copy_to_clipboard(command)
        self.notify(command.replace("[", r"\["), title="copied", timeout=4)

    def action_theme(self) -> None:
        """Light or dark."""
        self.theme = "textual-light" if self.theme == "textual-dark" else "textual-dark"

    def action_help(self) -> None:
        """Keys and words."""
        self.push_screen(Help())
