"""docs/engines.md is what its tool writes, and every engine and format is on it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from kvplan.engines import engine_names, load_engine

REPO = Path(__file__).resolve().parents[2]


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(REPO / "tools"))
    monkeypatch.delitem(sys.modules, "engines_page", raising=False)
    import engines_page

    return engines_page


def test_the_committed_page_is_current(tool: Any) -> None:
    stored = (REPO / "docs" / "engines.md").read_text(encoding="utf-8")
    assert stored == tool.page(), "run python tools/engines_page.py"


def test_every_engine_and_format_is_on_the_page(tool: Any) -> None:
    text = tool.page()
    for name in engine_names():
        assert f"## {name}\n" in text
        for f in load_engine(name).formats:
            assert f"`{f.option}`" in text
