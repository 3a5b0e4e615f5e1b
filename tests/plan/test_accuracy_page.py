"""docs/accuracy.md is what its tool writes; the tool itself refuses a figure that differs from the one by hand."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

REPO = Path(__file__).resolve().parents[2]


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(REPO / "tools"))
    monkeypatch.delitem(sys.modules, "accuracy_page", raising=False)
    import accuracy_page

    return accuracy_page


def test_the_committed_page_is_current(tool: Any) -> None:
    assert tool.page() == (REPO / "docs" / "accuracy.md").read_text(encoding="utf-8")


def test_a_wrong_or_missing_figure_is_refused(tool: Any) -> None:
    case = tool.MODELS[0]
    assert tool.kvplan_bytes(case) == 2**32
    with pytest.raises(SystemExit, match="by hand 1"):
        tool.kvplan_bytes(replace(case, nbytes=1))
    with pytest.raises(SystemExit, match="refused"):
        tool.kvplan_bytes(replace(case, request={"model": "no-such-model"}))
