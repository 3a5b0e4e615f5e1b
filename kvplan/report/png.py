"""The bar of a plan as a picture; needs matplotlib, which nothing else of kvplan does."""

from __future__ import annotations

from pathlib import Path

from kvplan.errors import UnsupportedError, UsageError
from kvplan.report.document import Bar, Document

HATCHES = ("", "//", "..", "xx", "\\\\", "oo", "++", "--", "**", "||")


def write_png(made: Document, path: Path) -> None:
    """Draw the GPU's memory of a plan.

    Raises:
        UnsupportedError: matplotlib is not installed.
        UsageError: the result has no such bar.
    """
    bar = next((block for block in made.blocks if isinstance(block, Bar)), None)
    if bar is None:
        raise UsageError("only a plan with a context has a picture", "use --html or --md")
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UnsupportedError(
            "a picture needs matplotlib, which is not installed", "pip install 'kvplan-advisor[png]', or use --html"
        ) from None
    figure = Figure(figsize=(10, 3.2), layout="constrained")
    axes = figure.add_subplot()
    left = 0
    for i, piece in enumerate(bar.pieces):
        axes.barh(
            0,
            piece.cells,
            left=left,
            label=f"{piece.name} {piece.size}",
            color=piece.colour if piece.basis else "#d4d4d4",
            edgecolor="white",
            hatch=HATCHES[i % len(HATCHES)],
        )
        left += piece.cells
    axes.set_axis_off()
    axes.set_title(f"{made.title}\n{bar.text}", fontsize=9, loc="left", wrap=True)
    figure.legend(loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    figure.savefig(path, dpi=150)
