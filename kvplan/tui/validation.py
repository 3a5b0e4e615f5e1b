"""`kvplan validate` beside the planner: a process of its own, whose report is read after every format."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.timer import Timer
from textual.widgets import Label, Static

from kvplan.errors import ExitCode, KvplanError
from kvplan.report.stored import load_result
from kvplan.report.validation import PROGRESS, progress_rows
from kvplan.tui.results import Table
from kvplan.tui.stored import Drawn

EVERY = 0.3
"""Seconds between two looks at the report."""


def start(command: str, out: Path, errors: Path) -> subprocess.Popen[bytes]:
    """Run a `kvplan validate` command line; its report goes to `out`, what it complains about to `errors`."""
    words = [sys.executable, "-m", *shlex.split(command), "--out", str(out)]
    with errors.open("wb") as err:
        return subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=err, start_new_session=True)


class Validation(ModalScreen[None]):
    """Progress by format, then the verdict. The command is shown before anything runs."""

    BINDINGS: ClassVar[list[BindingType]] = [
        ("enter", "run", "Run on the GPU"),
        ("i", "interpret", "Interpreter"),
        ("o", "open", "Report"),
        ("escape", "stop", "Stop, close"),
    ]
    # Enter belongs to the screen, not to the table.
    AUTO_FOCUS = ""
    DEFAULT_CSS = """
    Validation { align: center middle; }
    Validation > Vertical { width: 96%; max-width: 110; height: 80%; border: round $primary; background: $surface;
                            padding: 0 1; }
    Validation Table { height: 1fr; }
    Validation Static { height: auto; max-height: 6; }
    """

    def __init__(self, command: str) -> None:
        super().__init__()
        self.command = command
        self.folder = Path(tempfile.mkdtemp(prefix="kvplan-"))
        self.process: subprocess.Popen[bytes] | None = None
        self._timer: Timer | None = None

    @property
    def report(self) -> Path:
        """Where the report is written."""
        return self.folder / "validation.json"

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Label("Enter: run on the GPU; i: in the interpreter, slow and untimed")
            yield Label("o: open the report; Esc: stop, then close")
            yield Static(self.command, id="command", markup=False)
            yield Table(cursor_type="row", cell_padding=0)
            yield Static("not started", id="state", markup=False)

    def on_mount(self) -> None:
        """Nothing runs until it is asked for."""
        self.query_one(Table).replace(PROGRESS, [])

    def action_run(self) -> None:
        """On the GPU."""
        self._start(self.command)

    def action_interpret(self) -> None:
        """Correctness only, in the interpreter's own small shape."""
        words = shlex.split(self.command)
        kept = [w for i, w in enumerate(words) if not {w, words[i - 1]} & {"--context", "--batch"}]
        self._start(shlex.join([*kept, "--device", "cpu"]))

    def _start(self, command: str) -> None:
        if self.process is not None and self.process.poll() is None:
            return
        self.report.unlink(missing_ok=True)
        self.query_one("#command", Static).update(command)
        self.query_one("#state", Static).update("running")
        self.process = start(command, self.report, self.folder / "errors.txt")
        self._timer = self.set_interval(EVERY, self._look)

    def _look(self) -> None:
        """The report as far as it is written, and how the process ended."""
        code = None if self.process is None else self.process.poll()
        with contextlib.suppress(OSError, KvplanError):
            _, report = load_result(self.report.read_text(encoding="utf-8"), self.report.name)
            self.query_one(Table).replace(PROGRESS, progress_rows(report))
        if code is None:
            return
        if self._timer is not None:
            self._timer.stop()
        self.query_one("#state", Static).update(self._ending(code))

    def _ending(self, code: int) -> str:
        if code == ExitCode.OK:
            return f"done: every check is green; {self.report}"
        if code == ExitCode.CHECK_FAILED:
            return f"a check is red, or a format could not run; o shows which; {self.report}"
        told = (self.folder / "errors.txt").read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return "\n".join(told[-3:]) or f"ended with exit code {code}"

    def action_open(self) -> None:
        """The report so far."""
        if self.report.is_file():
            self.app.push_screen(Drawn(self.report))

    def action_stop(self) -> None:
        """End what runs, as Ctrl-C does: finished formats stay in the report. Then close."""
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGINT)
            self.query_one("#state", Static).update("stopping; finished formats are kept")
            return
        self.dismiss()
