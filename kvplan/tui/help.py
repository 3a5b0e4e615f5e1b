"""The page of keys."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

TEXT = """\
[b]Form[/b]
 up, down, Tab     another field
 left, right       previous or next value (also - and +, or a click on < >)
 Enter             list with search (also a click on the value)
 m g e x n k       model, GPU, engine, context, number of requests, format of K

[b]Tables[/b]
 1 2 3 4           formats, contexts, parts, Pareto plot of bytes and error
 s                 formats: sort by bytes, tokens, error, time, or as listed (also a click on a heading)
 Enter             formats: use the format of the row; contexts: use its context
 up, down          the formula of the row stands below the table

[b]Results[/b]
 c                 copy the launch command (without an engine, the kvplan command)
 y                 copy the kvplan command that prints the same plan
 v                 validate: run the kernels in these formats on this machine
 o                 open a result that is stored in this folder
 w                 write this plan as a page, and open it in the browser
 t                 light or dark
 ?                 this page; Escape closes it
 q                 end

[b]The bar[/b]
 One GPU, the rank that holds most. Each piece has its own pattern, and the list under it has the words and sizes.
 Ranges of an engine stand at their high end. "free" holds more requests; "outside" is what the share of
 memory leaves alone; "constants" are static scales.

[b]Milliseconds[/b]
 Decode attention of one step, all layers, predicted for kvplan's own kernels. "-": none timed, or an engine's.

[b]Predicted error[/b]
 KL on another, small model: it orders formats and is not the size of a loss. "-": not established.
"""


class Help(ModalScreen[None]):
    """Keys and words."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape,question_mark,q,enter", "dismiss", "Close")]
    DEFAULT_CSS = """
    Help { align: center middle; }
    Help > VerticalScroll { width: 92%; max-width: 100; height: 90%; max-height: 34; border: round $primary;
                            background: $surface; padding: 0 1; }
    """

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield Static(TEXT)

    def on_mount(self) -> None:
        """The page can be scrolled at once."""
        self.query_one(VerticalScroll).focus()
