"""How the screen is divided; it holds at 80 x 24."""

from __future__ import annotations

from textual.binding import Binding, BindingType

BINDINGS: list[BindingType] = [
    Binding("question_mark", "help", "Help", key_display="?"),
    Binding("m", "open('model')", "Model"),
    Binding("g", "open('gpu')", "GPU"),
    Binding("e", "open('engine')", "Engine"),
    Binding("x", "open('context')", "Context", show=False),
    Binding("n", "open('batch')", "Requests", show=False),
    Binding("k", "open('k')", "Format"),
    Binding("1", "tab('formats')", "Formats", show=False),
    Binding("2", "tab('contexts')", "Contexts", show=False),
    Binding("3", "tab('parts')", "Parts", show=False),
    Binding("4", "tab('pareto')", "Pareto", show=False),
    Binding("s", "sort", "Sort"),
    Binding("c", "copy_launch", "Copy"),
    Binding("y", "copy_command", "Copy kvplan", show=False),
    Binding("v", "validate", "Validate"),
    Binding("o", "stored", "Stored", show=False),
    Binding("w", "page", "Page", show=False),
    Binding("t", "theme", "Light", show=False),
    Binding("q", "quit", "Quit"),
]
"""The keys of the app; help.py has them in words."""

CSS = """
Screen { layout: vertical; }
#title { height: 1; background: $primary-muted; text-style: bold; padding: 0 1; }
#body { height: 1fr; }
#form { width: 29; height: 100%; border-right: solid $primary-muted; scrollbar-size-vertical: 1; }
#results { width: 1fr; height: 100%; padding: 0 1; }
#results MemoryBar { margin-bottom: 0; }
#tabs { height: 1fr; }
TabPane { padding: 0; }
DataTable { height: 1fr; scrollbar-size-horizontal: 1; scrollbar-size-vertical: 1; }
#formula { height: 2; padding: 0 1; background: $boost; }
#launch { height: 1; padding: 0 1; }
#status { height: 1; padding: 0 1; text-style: bold; }
#results.-stale { opacity: 60%; }
#status.-error, #launch.-error { background: $error; color: $text; }
Screen.-tall #formula { height: 3; }
Screen.-tall #launch { height: 3; }
Screen.-tall #form { width: 40; }
"""

FIELDS = (
    ("model", "Model"),
    ("gpu", "GPU"),
    ("engine", "Engine"),
    ("version", "Version"),
    ("context", "Context"),
    ("batch", "Requests"),
    ("k", "K format"),
    ("v", "V format"),
    ("tp", "TP"),
    ("pp", "PP"),
    ("dp", "DP"),
    ("beyond_max", "Over max"),
)
"""Field of the form to its label."""

TYPED = {
    "model": "a path or Hugging Face id",
    "context": "a number of tokens such as 100k",
    "batch": "a number",
    "k": "a format such as int8:group/64",
    "v": "a format such as int8:group/64",
    "tp": "a number",
    "pp": "a number",
    "dp": "a number",
}
"""Fields that take what is not in their list, and what that may be."""
