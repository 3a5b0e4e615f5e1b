"""What a printer prints, as blocks: so that Markdown and HTML need no second account of any result."""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from typing import Any

from rich.table import Table
from rich.text import Text

from kvplan.plan import Plan
from kvplan.report.memory import Segment, memory_line, segments
from kvplan.report.stored import Kind, draw
from kvplan.report.terminal import QuietConsole

_WIDE = 100_000
"""Columns of the console that is read: nothing is wrapped."""
BAR_CELLS = 100


@dataclass(frozen=True, slots=True)
class Heading:
    """A bold line."""

    text: str


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A line; `indent` in columns, `bullet` where it is one of a list."""

    text: str
    indent: int = 0
    bullet: bool = False


@dataclass(frozen=True, slots=True)
class Grid:
    """A table: headings, which columns stand right, rows, and which rows are bold."""

    headings: tuple[str, ...]
    right: tuple[bool, ...]
    rows: tuple[tuple[str, ...], ...]
    bold: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class Bar:
    """A GPU's memory."""

    text: str
    pieces: tuple[Segment, ...]


Block = Heading | Paragraph | Grid | Bar


@dataclass(slots=True)
class Document:
    """A result as blocks; `title` is the first line."""

    title: str
    blocks: list[Block] = field(default_factory=list)


class _Reader(QuietConsole):
    """Takes the place of a terminal and keeps what is printed."""

    def __init__(self) -> None:
        super().__init__(file=io.StringIO(), width=_WIDE, highlight=False, markup=False, emoji=False)
        self.blocks: list[Block] = []

    def print(self, *objects: Any, **_: Any) -> None:
        for each in objects:
            if isinstance(each, Table):
                self.blocks.append(_grid(each))
            elif isinstance(each, Text):
                self.blocks += [_line(line, "bold" in str(each.style)) for line in each.plain.splitlines() if line]


def document(kind: Kind, result: Any) -> Document:
    """The blocks of a result; a plan also has the bar of its GPU."""
    reader = _Reader()
    draw(kind, result, reader)
    first, *rest = reader.blocks
    title = first.text if isinstance(first, Heading | Paragraph) else kind.schema
    if isinstance(result, Plan) and result.kv is not None:
        rest.insert(0, Bar(memory_line(result), tuple(segments(result, BAR_CELLS))))
    return Document(title, rest)


def _line(text: str, bold: bool) -> Block:
    if bold:
        return Heading(text.strip())
    stripped = text.lstrip()
    bullet = stripped.startswith("- ")
    return Paragraph(stripped.removeprefix("- "), len(text) - len(stripped), bullet)


def _grid(table: Table) -> Grid:
    columns = [[_plain(cell) for cell in column.cells] for column in table.columns]
    return Grid(
        headings=tuple(_plain(column.header) for column in table.columns),
        right=tuple(column.justify == "right" for column in table.columns),
        rows=tuple(zip(*columns, strict=True)),
        bold=tuple("bold" in str(row.style or "") for row in table.rows),
    )


def _plain(cell: Any) -> str:
    return cell.plain if isinstance(cell, Text) else str(cell)
