"""A document as Markdown."""

from __future__ import annotations

from collections.abc import Iterator

from kvplan.report.document import Bar, Block, Document, Grid, Heading


def to_markdown(made: Document) -> str:
    """The whole document, with a newline at its end."""
    lines = [f"# {_escape(made.title)}", ""]
    for block in made.blocks:
        lines += _block(block)
    return "\n".join(lines).rstrip("\n") + "\n"


def _block(block: Block) -> Iterator[str]:
    if isinstance(block, Heading):
        yield from ("", f"## {_escape(block.text)}", "")
    elif isinstance(block, Bar):
        yield from (_escape(block.text), "", "```text", "".join(p.pattern * p.cells for p in block.pieces))
        yield from (f"{p.pattern} {p.name:<16}{p.size:>12}" for p in block.pieces)
        yield from ("```", "")
    elif isinstance(block, Grid):
        yield ""
        yield _row(block.headings)
        yield "|" + "|".join("---:" if right else "---" for right in block.right) + "|"
        for cells, bold in zip(block.rows, block.bold, strict=True):
            yield _row(cells, bold)
        yield ""
    elif block.bullet:
        yield f"- {_escape(block.text)}"
    else:
        # Two blanks at the end keep the line for itself.
        yield ("- " if block.indent else "") + _escape(block.text) + ("" if block.indent else "  ")


def _row(cells: tuple[str, ...], bold: bool = False) -> str:
    texts = [_escape(cell.strip()) for cell in cells]
    return "| " + " | ".join(f"**{text}**" if bold and text else text for text in texts) + " |"


def _escape(text: str) -> str:
    for mark in ("\\", "|", "*", "_", "<", "`", "["):
        text = text.replace(mark, f"\\{mark}")
    return text
