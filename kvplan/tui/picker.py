"""A list with search, for any field of the form."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Label, OptionList, Static
from textual.widgets.option_list import Option


class Picker(ModalScreen[str | None]):
    """Type to search, Enter to choose, Escape to leave everything as it was."""

    BINDINGS: ClassVar[list[BindingType]] = [
        ("escape", "dismiss(None)", "Cancel"),
        ("down", "move(1)", "Down"),
        ("up", "move(-1)", "Up"),
        ("pagedown", "move(10)", "Page down"),
        ("pageup", "move(-10)", "Page up"),
    ]
    DEFAULT_CSS = """
    Picker { align: center middle; }
    Picker > Vertical { width: 90%; max-width: 76; height: 80%; max-height: 30; border: round $primary;
                        background: $surface; padding: 0 1; }
    Picker OptionList { height: 1fr; border: none; }
    Picker Input { height: 3; }
    Picker Static { height: auto; max-height: 8; color: $text-muted; }
    """

    def __init__(
        self,
        title: str,
        values: Iterable[tuple[str, str]],
        current: str,
        free: str = "",
        about: Callable[[str], list[str]] | None = None,
    ) -> None:
        """`values` are (value, text to show and search); `free` says what else may be typed, empty for nothing.

        `about` has lines on a value, shown while it is chosen.
        """
        super().__init__()
        self._about = about
        self._title, self._values, self._current, self._free = title, list(values), current, free

    def compose(self) -> ComposeResult:
        also = f", or type {self._free}" if self._free else ""
        with Vertical():
            yield Label(f"{self._title}: type to search{also}; Enter chooses, Esc cancels")
            yield Input(placeholder=self._current)
            yield OptionList()
            if self._about:
                yield Static(id="about", markup=False)

    def on_mount(self) -> None:
        """All values, with the current one chosen."""
        self._fill("")
        self.query_one(Input).focus()

    @on(Input.Changed)
    def _search(self, event: Input.Changed) -> None:
        self._fill(event.value)

    def _fill(self, text: str) -> None:
        words = text.lower().split()
        found = [(value, shown) for value, shown in self._values if all(w in shown.lower() for w in words)]
        # What is typed in full comes first, then what begins with it.
        found.sort(key=lambda pair: (pair[0].lower() != text.lower(), not pair[0].lower().startswith(text.lower())))
        options = [Option(shown, id=str(i)) for i, (_, shown) in enumerate(found)]
        self._shown = [value for value, _ in found]
        typed = text.strip()
        if self._free and typed and typed not in self._shown:
            self._shown.append(typed)
            options.append(Option(f"use {typed!r} as it is", id="typed"))
        choices = self.query_one(OptionList)
        choices.clear_options()
        choices.add_options(options)
        if options:
            at = self._shown.index(self._current) if not typed and self._current in self._shown else 0
            choices.highlighted = at

    @on(OptionList.OptionHighlighted)
    def _tell(self, event: OptionList.OptionHighlighted) -> None:
        if self._about and event.option_index < len(self._shown):
            self.query_one("#about", Static).update("\n".join(self._about(self._shown[event.option_index])))

    def action_move(self, by: int) -> None:
        """Move the choice."""
        choices = self.query_one(OptionList)
        if self._shown:
            choices.highlighted = min(max((choices.highlighted or 0) + by, 0), len(self._shown) - 1)

    @on(Input.Submitted)
    def _enter(self) -> None:
        at = self.query_one(OptionList).highlighted
        self.dismiss(self._shown[at] if self._shown and at is not None else None)

    @on(OptionList.OptionSelected)
    def _click(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self._shown[event.option_index])
