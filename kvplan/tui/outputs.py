"""What leaves the screen: commands to the clipboard, a page in the browser, stored results, a validation."""

from __future__ import annotations

import tempfile
import webbrowser
from pathlib import Path

from textual.app import App

from kvplan.errors import KvplanError
from kvplan.plan import PlanRequest
from kvplan.report.capacity import launch_lines
from kvplan.report.command import estimate_command, validate_command
from kvplan.report.document import document
from kvplan.report.html import to_html
from kvplan.report.stored import KINDS
from kvplan.tui.choices import Choices
from kvplan.tui.planner import Made
from kvplan.tui.stored import Stored, stored_files
from kvplan.tui.validation import Validation


class Outputs(App[None]):
    """Keys of the app that take the shown plan elsewhere."""

    choices: Choices
    made: Made | None = None
    problem: KvplanError | None = None

    @property
    def request(self) -> PlanRequest | None:
        """The request of the shown plan; None while the form has an error."""
        return self.made.request if self.made and self.problem is None else None

    def launch_command(self) -> str:
        """What starts the engine; without one, what prints the plan."""
        lines = launch_lines(self.made.plan) if self.made else []
        return lines[0] if lines else self.kvplan_command()

    def kvplan_command(self) -> str:
        """What prints the plan."""
        return estimate_command(self.made.request) if self.made else ""

    def action_copy_launch(self) -> None:
        """Copy the command that starts the engine."""
        self._copy(self.launch_command())

    def action_copy_command(self) -> None:
        """Copy the kvplan command."""
        self._copy(self.kvplan_command())

    def _copy(self, command: str) -> None:
        if self.request is None or not command:
            self.notify("nothing to copy: the request has an error", severity="warning")
            return
        self.copy_to_clipboard(command)
        self.notify(command.replace("[", r"\["), title="copied", timeout=4)

    def action_page(self) -> None:
        """The shown plan as a page, in a file of its own and in the browser."""
        if self.made is None or self.request is None:
            self.notify("no page: the request has an error", severity="warning")
            return
        path = Path(tempfile.mkdtemp(prefix="kvplan-")) / f"{self.made.plan.model.id}.html"
        path.write_text(to_html(document(KINDS["plan"], self.made.plan)), encoding="utf-8")
        self.notify(str(path), title="page written", timeout=8)
        self.open_page(path)

    def open_page(self, path: Path) -> None:
        """Show a page where there is a browser; one that is served cannot open files, and is sent the page."""
        if self.is_web:
            self.deliver_text(path, open_method="browser", mime_type="text/html")
        else:
            webbrowser.open(path.as_uri())

    def action_stored(self) -> None:
        """Results stored in this folder, drawn again."""
        self.push_screen(Stored(stored_files(Path.cwd())))

    def action_validate(self) -> None:
        """Run the kernels in the shown formats on this machine."""
        if self.made is None or self.request is None:
            self.notify("nothing to validate: the request has an error", severity="warning")
            return
        self.push_screen(Validation(validate_command(self.made.plan)))
