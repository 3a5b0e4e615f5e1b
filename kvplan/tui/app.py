"""The app: a form on the left, one plan on the right. Keys change the form; a thread makes the plan; rows are drawn."""

from __future__ import annotations

import time
from typing import ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.events import Resize
from textual.screen import Screen
from textual.widgets import Footer
from textual.worker import get_current_worker

from kvplan.errors import KvplanError
from kvplan.plan import Plan
from kvplan.recommend.offers import FormatRow
from kvplan.report.rows import title, verdict_lines
from kvplan.specs.load import list_models
from kvplan.tui.choices import DEFAULT, SAME, Choices
from kvplan.tui.field import Field
from kvplan.tui.help import Help
from kvplan.tui.layout import BINDINGS, CSS, FIELDS, TYPED
from kvplan.tui.outputs import Outputs
from kvplan.tui.panel import Results
from kvplan.tui.picker import Picker
from kvplan.tui.planner import Made, Planner
from kvplan.tui.results import Line

QUIET = 0.15
"""Seconds without a key before the tables of other formats and contexts are made."""


class PlanApp(Outputs):
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

    @property
    def main(self) -> Screen[object]:
        """The screen below any list or help page."""
        return self.screen_stack[0]

    @property
    def results(self) -> Results:
        """The right side."""
        return self.main.query_one(Results)

    def _line(self, name: str) -> Line:
        return self.main.query_one(f"#{name}", Line)

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
            yield Results(id="results")
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

        def about(value: str) -> list[str]:
            return self._planner.byte_map(self.choices.change(name, value))

        values = [(value, value) for value in offered]
        shown = about if name in ("k", "v") else None
        self.push_screen(Picker(label, values, getattr(self.choices, name), TYPED.get(name, ""), shown), chosen)

    def _changed(self, choices: Choices) -> None:
        """The form shows its new texts at once; the plan follows."""
        self.choices = choices
        for name, _ in FIELDS:
            self.main.query_one(f"#field-{name}", Field).show(getattr(choices, name))
        if self._planner.is_quick(choices):
            self.workers.cancel_group(self, "plan")
            self._show(choices, self._planner.plan(choices))
        else:
            self._line("status").show("working")
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
        self._timer.stop()
        self.problem = made if isinstance(made, KvplanError) else None
        for name in ("launch", "status"):
            self._line(name).set_class(self.problem is not None, "-error")
        self.results.set_class(self.problem is not None, "-stale")
        if isinstance(made, KvplanError):
            self._show_problem(made)
        else:
            self.made = made
            self._show_plan(made.plan)
        self.call_after_refresh(self._is_drawn, choices)

    def _show_problem(self, error: KvplanError) -> None:
        """In one line; where that is too short, the hint has a line of its own."""
        what, hint = f"error: {error.message}", f"hint: {error.hint}"
        both = f"{what}; {hint}"
        is_short = len(both) < self.size.width - 2
        self._line("launch").show("" if is_short else what)
        self._line("status").show(both if is_short else hint)
        if self.made is not None:
            self._line("title").show(f"last plan: {title(self.made.plan)}")

    def _show_plan(self, plan: Plan) -> None:
        self._line("status").show("; ".join(verdict_lines(plan)) or "no GPU: nothing to fit into")
        self._line("title").show(title(plan))
        self._line("launch").show(self.launch_command())
        self.results.show_plan(plan)
        self.workers.cancel_group(self, "tables")
        self._timer = self.set_timer(QUIET, self._tables)

    def _is_drawn(self, choices: Choices) -> None:
        self.drawn, self.drawn_at = choices, time.perf_counter()

    def _show_tables(self, choices: Choices, ladder: Plan | None, rows: list[FormatRow]) -> None:
        if choices != self.choices or self.is_closing:
            return
        self.tabled = choices
        self.results.show_others(rows, ladder)

    # Tables

    @on(Results.Pointed)
    def _show_formula(self, event: Results.Pointed) -> None:
        if not self.is_closing:
            self._line("formula").show(event.text)

    @on(Results.Used)
    def _use(self, event: Results.Used) -> None:
        """The first format is what the form calls the default."""
        first = event.name == "k" and self.choices.offered("k")[1] == event.value
        changed = self.choices.change(event.name, DEFAULT if first else event.value)
        self._changed(changed.change("v", SAME) if event.name == "k" else changed)

    @on(Results.Sorted)
    def _say_order(self) -> None:
        self.notify(f"sorted by {self.results.by}" if self.results.by else "as listed", timeout=1.5)

    def action_sort(self) -> None:
        """The next order of the table of formats."""
        self.results.go("formats")
        self.results.sort()

    def action_tab(self, name: str) -> None:
        """Show a table and go into it."""
        self.results.go(name)

    def action_theme(self) -> None:
        """Light or dark."""
        self.theme = "textual-light" if self.theme == "textual-dark" else "textual-dark"

    def action_help(self) -> None:
        """Keys and words."""
        self.push_screen(Help())
