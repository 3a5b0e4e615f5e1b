"""What is made by a script from the real thing: the picture, the transcript, the measured start and redraw."""

from __future__ import annotations

import json
import re
import runpy
from typing import Any

import pytest
from pages import REPO, read


def tool(name: str) -> dict[str, Any]:
    return runpy.run_path(str(REPO / "tools" / f"{name}.py"))


def test_the_picture_is_the_screen() -> None:
    made = tool("screenshot")
    stored = (REPO / "docs" / "screenshot.svg").read_text(encoding="utf-8")
    assert made["words"](stored) == made["words"](made["draw"]()), "run python tools/screenshot.py"
    assert any(
        text.startswith("vllm serve") for text in (t.strip() for t in made["words"](stored))
    ) and "(docs/screenshot.svg)" in read("README.md")
    # Nothing is loaded when it is looked at.
    assert not re.search(r"url\((?!#)", stored)


def test_the_transcript_follows_the_readme_and_ends_verified() -> None:
    lines = tool("transcript")["commands"](read("README.md"))
    (text,) = re.findall(r"^```text\n(.*)^```$", read("docs/transcript.md"), re.M | re.S)
    assert [line[2:] for line in text.splitlines() if line.startswith("$ ")] == lines, "run python tools/transcript.py"
    last = text.split(f"$ {lines[-1]}")[1]
    assert "recommended: K int8_per_token_head" in text and "codes bit-exact: 0 of" in last
    assert last.count("\n  ok  ") >= 13 and "\n  RED" not in last and "failed" not in last


@pytest.mark.parametrize("name", ["startup", "tui"])
def test_stored_times_hold_their_targets(name: str) -> None:
    stored = json.loads((REPO / "docs" / "results" / f"{name}.json").read_text(encoding="utf-8"))
    if name == "startup":
        assert stored["repeats"] >= 20 and stored["help_beyond_python_seconds"] <= stored["help_target_seconds"] == 0.09
        return
    assert stored["target_seconds"] == 0.05 and stored["presses"] >= 30
    cases = stored["cases"]
    assert cases and all(max(c["form_median_seconds"], c["plan_median_seconds"]) <= 0.05 for c in cases)
