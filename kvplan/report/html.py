"""A document as one HTML file: nothing is loaded, no scripts, and it prints on paper."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from kvplan import __version__
from kvplan.report.document import Bar, Block, Document, Grid, Heading
from kvplan.report.memory import Segment

_STYLE = """\
:root { color-scheme: light dark; }
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; }
h1 { font-size: 1.25rem; } h2 { font-size: 1.05rem; margin: 1.4rem 0 .4rem; }
table { border-collapse: collapse; margin: .6rem 0; }
th, td { padding: .15rem .7rem; text-align: left; vertical-align: top; border-bottom: 1px solid #8884; }
th { border-bottom: 2px solid #888; } td.right, th.right { text-align: right; white-space: nowrap; }
td { font-variant-numeric: tabular-nums; white-space: pre-wrap; } tr.bold td { font-weight: 600; }
svg { max-width: 100%; height: auto; background: #fff; }
p { margin: .2rem 0; } ul { margin: .2rem 0; padding-left: 1.2rem; }
.bar { display: flex; height: 2.2rem; border: 1px solid #888; overflow: hidden; }
.bar div { overflow: hidden; font: 13px/2.2rem monospace; text-align: center; color: #fff; min-width: 1px; }
.legend { display: grid; grid-template-columns: repeat(auto-fill, minmax(15rem, 1fr)); gap: 0 1rem; }
.legend span { font-family: monospace; }
footer { margin-top: 2rem; color: #777; font-size: .85rem; }
@media print { body { margin: 0; max-width: none; font-size: 10pt; } .bar div { print-color-adjust: exact; }
  tr, .bar { break-inside: avoid; } h2 { break-after: avoid; } }
"""


def to_html(made: Document, picture: str | None = None) -> str:
    """The whole page; `picture` is an `<svg>` element that stands first."""
    title = escape(made.title)
    body = "\n".join(_blocks(made.blocks))
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
{_STYLE}</style>
</head>
<body>
<h1>{title}</h1>
{picture or ""}
{body}
<footer>kvplan {escape(__version__)}</footer>
</body>
</html>
"""


def _blocks(blocks: list[Block]) -> Iterator[str]:
    """Bullets that follow each other are one list."""
    listed = False
    for block in blocks:
        is_item = not isinstance(block, Heading | Grid | Bar) and (block.bullet or block.indent > 0)
        if is_item != listed:
            yield "<ul>" if is_item else "</ul>"
            listed = is_item
        yield _block(block, is_item)
    if listed:
        yield "</ul>"


def _block(block: Block, is_item: bool) -> str:
    if isinstance(block, Heading):
        return f"<h2>{escape(block.text)}</h2>"
    if isinstance(block, Bar):
        return _bar(block)
    if isinstance(block, Grid):
        return _table(block)
    return f"<li>{escape(block.text)}</li>" if is_item else f"<p>{escape(block.text)}</p>"


def _table(grid: Grid) -> str:
    marks = ['class="right"' if right else "" for right in grid.right]
    head = "".join(f"<th {m}>{escape(h)}</th>" for m, h in zip(marks, grid.headings, strict=True))
    lines = [f"<table><thead><tr>{head}</tr></thead><tbody>"]
    for cells, bold in zip(grid.rows, grid.bold, strict=True):
        row = "".join(f"<td {m}>{escape(c)}</td>" for m, c in zip(marks, cells, strict=True))
        lines.append(f"<tr class='bold'>{row}</tr>" if bold else f"<tr>{row}</tr>")
    return "\n".join([*lines, "</tbody></table>"])


def _bar(bar: Bar) -> str:
    words = ", ".join(f"{p.name} {p.size}" for p in bar.pieces)
    pieces = "".join(_piece(p) for p in bar.pieces)
    legend = "".join(
        f"<p><span>{escape(p.pattern)}</span> {escape(p.name)}: {escape(p.size)}"
        f"{f' [{escape(p.basis)}]' if p.basis else ''}</p>"
        for p in bar.pieces
    )
    return (
        f'<p>{escape(bar.text)}</p>\n<div class="bar" role="img" aria-label="{escape(words)}">{pieces}</div>\n'
        f'<div class="legend">{legend}</div>'
    )


def _piece(piece: Segment) -> str:
    """As wide as its cells; its pattern is written over its colour."""
    style = f"flex: {piece.cells} 0 0; background: {piece.colour}"
    hint = escape(f"{piece.name}: {piece.size}")
    return f'<div style="{style}" title="{hint}">{escape(piece.pattern * piece.cells)}</div>'
