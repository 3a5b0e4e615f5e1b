"""A plan's memory or a validation's times as a picture; needs matplotlib."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvplan.errors import UnsupportedError, UsageError
from kvplan.report.document import Bar, Document
from kvplan.report.svg import to_svg
from kvplan.validate.report import ValidationReport

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HATCHES = ("", "//", "..", "xx", "\\\\", "oo", "++", "--", "**", "||")


def write_png(result: Any, made: Document, path: Path) -> None:
    """Draw the GPU's memory of a plan, or how long each format of a validation takes.

    Raises:
        UnsupportedError: matplotlib is not installed.
        UsageError: the result has neither.
    """
    figure = _figure()
    if figure is None:
        raise UnsupportedError(
            "a picture needs matplotlib, which is not installed", "pip install 'kvplan-advisor[png]', or use --html"
        )
    bar = next((block for block in made.blocks if isinstance(block, Bar)), None)
    if bar is not None:
        _memory(figure, made.title, bar)
    elif has_times(result):
        _times(figure, made.title, result)
    else:
        raise UsageError("only a plan with a context and a validation with times have a picture", "use --html or --md")
    figure.savefig(path, dpi=150)


def times_svg(result: Any, made: Document) -> str | None:
    """How long each format of a validation takes, as an `<svg>` element; None without times or without matplotlib."""
    figure = _figure() if has_times(result) else None
    if figure is None:
        return None
    _times(figure, made.title, result)
    return to_svg(figure)


def has_times(result: Any) -> bool:
    """Whether the result is a validation that was timed."""
    return isinstance(result, ValidationReport) and any(r.times for r in result.results)


def _figure() -> Figure | None:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return None
    return Figure(figsize=(10, 3.2), layout="constrained")


def _memory(figure: Figure, title: str, bar: Bar) -> None:
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
    axes.set_title(f"{title}\n{bar.text}", fontsize=9, loc="left", wrap=True)
    figure.legend(loc="outside lower center", ncols=3, fontsize=8, frameon=False)


def _times(figure: Figure, title: str, report: ValidationReport) -> None:
    """Decode of one layer, fused beside unfused, in the order of the report."""
    timed = [(r.format, r.times) for r in report.results if r.times]
    figure.set_size_inches(10, 1.6 + 0.35 * len(timed))
    axes = figure.add_subplot()
    rows = range(len(timed))
    fused = axes.barh(rows, [t.fused_seconds * 1e6 for _, t in timed], 0.7, color="#0891b2", label="fused decode")
    axes.bar_label(fused, [f"{t.fused_seconds * 1e6:.0f} us, {t.roof_share:.0%} of roof" for _, t in timed], fontsize=8)
    slow = [(row, t.unfused_seconds * 1e6) for row, (_, t) in enumerate(timed) if t.unfused_seconds]
    axes.plot([us for _, us in slow], [row for row, _ in slow], "kd", label="unfused")
    axes.set_yticks(rows, [name for name, _ in timed], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("microseconds of one layer", fontsize=8)
    axes.set_title(f"{title}\n{report.device.name}", fontsize=9, loc="left", wrap=True)
    axes.legend(fontsize=8, frameon=False)
