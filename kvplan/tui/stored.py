"""Stored results in a list, and one of them drawn again."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import ClassVar

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Label, OptionList, Static

from kvplan.errors import KvplanError
from kvplan.report.stored import KINDS, draw, load_result
from kvplan.report.terminal import QuietConsole

MOST_BYTES = 4_000_000
"""Larger files are not looked into."""
_FRAME = "width: 96%; height: 92%; border: round $primary; background: $surface; padding: 0 1;"


def stored_files(folder: Path) -> list[Path]:
    """Results of kvplan in a folder and its `docs/results`, by name."""
    schemas = {kind.schema for kind in KINDS.values()}
    found = []
    for path in (*sorted(folder.glob("*.json")), *sorted((folder / "docs" / "results").glob("*.json"))):
        try:
            data = json.loads(path.read_text(encoding="utf-8")) if path.stat().st_size < MOST_BYTES else None
        except (OSError, ValueError):
            continue
        if isinstance(data, dict) and data.get("schema") in schemas:
            found.append(path)
    return found


def drawn(path: Path, width: int) -> str:
    """What `kvplan show` prints of a file, or what is wrong with it."""
    out = io.StringIO()
    try:
        kind, result = load_result(path.read_text(encoding="utf-8"), path.name)
        draw(kind, result, QuietConsole(file=out, width=width, highlight=False, markup=False, emoji=False))
    except OSError as error:
        return f"error: {path.name} cannot be read: {error.strerror}"
    except KvplanError as error:
        return f"error: {error.message}\nhint: {error.hint}"
    return out.getvalue()


class Drawn(ModalScreen[None]):
    """One stored result."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape,q", "dismiss", "Close")]
    DEFAULT_CSS = f"Drawn {{ align: center middle; }} Drawn > VerticalScroll {{ {_FRAME} }}"

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield Static(id="drawn", markup=False)

    def on_mount(self) -> None:
        """As wide as there is room; it can be scrolled at once."""
        self.query_one("#drawn", Static).update(Text(drawn(self.path, max(self.app.size.width * 96 // 100 - 6, 40))))
        self.query_one(VerticalScroll).focus()


class Stored(ModalScreen[None]):
    """The list: Enter draws one, Escape closes."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape", "dismiss", "Close")]
    DEFAULT_CSS = (
        f"Stored {{ align: center middle; }} Stored > Vertical {{ {_FRAME} }} Stored OptionList {{ height: 1fr; }}"
    )

    def __init__(self, files: list[Path]) -> None:
        super().__init__()
        self.files = files

    def compose(self) -> ComposeResult:
        with Vertical():
            none = "no stored results here: write one with kvplan COMMAND --json > FILE; Esc closes"
            yield Label("stored results of this folder; Enter opens, Esc closes" if self.files else none)
            yield OptionList(*(Text(path.name) for path in self.files))

    def on_mount(self) -> None:
        """Keys go to the list."""
        self.query_one(OptionList).focus()

    @on(OptionList.OptionSelected)
    def _open(self, event: OptionList.OptionSelected) -> None:
        self.app.push_screen(Drawn(self.files[event.option_index]))
