"""One line of the form: a label and a value, changed with left and right, the mouse, or a list."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widget import Widget

LABEL = 10


class Field(Widget, can_focus=True):
    """A value of the form. It asks for another one; the app decides what that is."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,minus", "step(-1)", "Previous", show=False),
        Binding("right,plus", "step(1)", "Next", show=False),
        Binding("enter,space", "open", "List", show=False),
        Binding("down", "app.focus_next", "Next field", show=False),
        Binding("up", "app.focus_previous", "Previous field", show=False),
    ]
    DEFAULT_CSS = """
    Field { height: 1; width: 1fr; }
    Field:focus { background: $primary; color: $text; text-style: bold; }
    """

    class Stepped(Message):
        """The next or previous value is wanted."""

        def __init__(self, name: str, by: int) -> None:
            super().__init__()
            self.name, self.by = name, by

    class Opened(Message):
        """The list of values is wanted."""

        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

    def __init__(self, name: str, label: str, tooltip: str = "") -> None:
        super().__init__(name=name, id=f"field-{name}")
        self.label = label
        self.value = ""
        self.tooltip = tooltip or None

    def show(self, value: str) -> None:
        """Draw another value."""
        if value != self.value:
            self.value = value
            self.refresh()

    def render(self) -> Text:
        room = max(self.size.width - LABEL - 4, 4)
        shown = self.value if len(self.value) <= room else self.value[: room - 1] + "…"
        mark = "*" if self.has_focus else " "
        return Text(f"{mark}{self.label:<{LABEL - 1}}< {shown:<{room}} >"[: self.size.width], no_wrap=True)

    def action_step(self, by: int) -> None:
        """Ask for a neighbour of the value."""
        self.post_message(self.Stepped(self.name or "", by))

    def action_open(self) -> None:
        """Ask for the list."""
        self.post_message(self.Opened(self.name or ""))

    def on_click(self, event: events.Click) -> None:
        """On an arrow a step, else the list."""
        if LABEL <= event.x < LABEL + 2:
            self.action_step(-1)
        elif event.x >= self.size.width - 2:
            self.action_step(1)
        else:
            self.action_open()
