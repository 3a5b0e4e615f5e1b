"""The screen at several sizes, as text, compared with what is stored in `snapshots/`.

After a change that is meant: KVPLAN_SNAPSHOTS=write python -m pytest tests/tui/test_snapshots.py, and look at the diff.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from driving import drive, screen, settled
from textual.pilot import Pilot

from kvplan.tui.app import PlanApp
from kvplan.tui.choices import Choices

FOLDER = Path(__file__).parent / "snapshots"
CASES = {
    "opening_80x24": ((80, 24), Choices("llama-3.1-8b"), ()),
    "engine_120x40": ((120, 40), Choices("qwen3.5-9b", "h100-80gb", "vllm", batch="8", k="fp8"), ("3",)),
    "contexts_160x48": ((160, 48), Choices("gemma-3-27b", "h200", tp="2"), ("2",)),
    "pareto_120x40": ((120, 40), Choices("llama-3.1-8b", "h200", batch="8"), ("4",)),
    "formats_by_time_200x60": ((200, 60), Choices("llama-3.1-8b", "h200", batch="64"), ("s", "s", "s", "s")),
    "byte_map_80x24": ((80, 24), Choices("llama-3.1-8b"), ("k", *"kivi2")),
    "error_80x24": ((80, 24), Choices("llama-3.1-8b", tp="7"), ()),
    "validation_80x24": ((80, 24), Choices("llama-3.1-8b", engine="vllm", k="int8_per_token_head"), ("v",)),
    "help_80x24": ((80, 24), Choices("llama-3.1-8b"), ("?",)),
}
"""Name to (size, form, keys)."""


@pytest.mark.parametrize("name", CASES)
def test_looks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Messages go away by themselves, sooner or later.
    monkeypatch.setattr(PlanApp, "notify", lambda *_, **__: None)
    size, choices, keys = CASES[name]
    seen = ""

    async def script(app: PlanApp, pilot: Pilot[None]) -> None:
        nonlocal seen
        if app.problem is None:
            await settled(app, pilot)
        await pilot.press(*keys)
        before = ""
        while not seen or seen != before:
            await pilot.pause(0.1)
            before, seen = seen, "\n".join(line.rstrip() for line in screen(app).splitlines()) + "\n"

    drive(script, size, choices)
    path = FOLDER / f"{name}.txt"
    if os.environ.get("KVPLAN_SNAPSHOTS") == "write":
        FOLDER.mkdir(exist_ok=True)
        path.write_text(seen, encoding="utf-8")
    assert seen == path.read_text(encoding="utf-8"), f"the screen differs from {path.name}; see this file's head"


def test_no_colour_carries_a_meaning_alone() -> None:
    """Snapshots have no colours: the pieces of the bar differ in their patterns, and errors are words."""
    text = (FOLDER / "opening_80x24.txt").read_text(encoding="utf-8")
    assert "# weights" in text and "█ kv payload" in text and "· free" in text
    assert "error: " in (FOLDER / "error_80x24.txt").read_text(encoding="utf-8")
