"""What the tests of the documentation share: the pages, and what stands in their fenced blocks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
PAGES = tuple(
    sorted(
        path.relative_to(REPO).as_posix()
        for path in (*REPO.glob("*.md"), *REPO.glob("docs/*.md"), REPO / "model_specs" / "README.md")
    )
)
_FENCE = re.compile(
    r"(?:^<!-- no-run: (?P<reason>[^\n]+?) -->\n)?^```(?P<language>[^\n]*)\n(?P<text>.*?)^```$"
    r"(?:\n\nShows: (?P<shows>(?:[^\n]+\n)+))?",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
        reason: why a shell block is not run; empty where it is.
        shows: what the line `Shows:` below it says that its output has.
    """

    page: str
    language: str
    text: str
    reason: str = ""
    shows: tuple[str, ...] = ()


def read(page: str) -> str:
    return (REPO / page).read_text(encoding="utf-8")


def blocks(page: str) -> list[Block]:
    """All fenced blocks of a page, in order."""
    return [
        Block(
            page, m["language"].strip(), m["text"], m["reason"] or "", tuple(re.findall(r"`([^`]+)`", m["shows"] or ""))
        )
        for m in _FENCE.finditer(read(page))
    ]


def shell_blocks(page: str) -> list[Block]:
    return [block for block in blocks(page) if block.language == "sh"]
