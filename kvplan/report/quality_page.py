"""A quality report or a prediction as one HTML page that loads nothing: a table, and pictures by matplotlib as SVG."""

from __future__ import annotations

import importlib.util
import io
import re
from collections.abc import Sequence
from html import escape
from typing import Any

from kvplan.errors import UnsupportedError
from kvplan.formats.grid import row_bytes
from kvplan.quality.law import PredictionReport
from kvplan.quality.report import QualityReport

STYLE = """body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 64rem; padding: 0 1rem; }
table { border-collapse: collapse; } th, td { padding: .15rem .7rem; border-bottom: 1px solid #8884; text-align: left; }
svg { max-width: 100%; height: auto; } h2 { font-size: 1.05rem; }"""
HEAD_DIM = 128
"""Bytes on the pages are those of a row of this many channels, so that pages can be compared."""

MEASURED = "Evidence: measured on this model."

Picture = tuple[str, str]
"""Heading and SVG."""


def quality_page(report: QualityReport) -> str:
    """Error against bytes, K against V, KL by position.

    Raises:
        UnsupportedError: matplotlib is not installed.
    """
    check_library()
    fs = report.formats
    names = [f.format for f in fs]
    pictures = [_against_bytes([(f.format, _bytes(f.k, f.v), f.kl_mean) for f in fs])]
    parts = [
        (f.format, f.k_only.kl_mean, f.v_only.kl_mean) for f in fs if f.k_only is not None and f.v_only is not None
    ]
    if parts:
        pictures.append(_k_against_v("KL with only K, only V stored", parts))
    spans = [f"{b.start:,}-{b.stop:,}" for b in fs[0].buckets] if fs else []
    rows = [[b.kl_mean for b in f.buckets] for f in fs]
    if spans:
        pictures.append(_heat("KL by position", names, spans, rows))
    table = [[f.format, f"{f.kl_mean:.5f}", f"{f.kl_p99:.4f}", f"{f.top1:.1%}", f"{f.ppl:.3f}"] for f in fs]
    title = f"Quality of {report.request.model} on {report.request.text.name}"
    headings = ["format", "KL mean", "KL p99", "top-1", "ppl"]
    return _page(title, pictures, headings, table, [MEASURED, report.scope, *report.notes, report.command])


def prediction_page(report: PredictionReport) -> str:
    """Error against bytes, K against V, errors by layer, their distribution over heads.

    Raises:
        UnsupportedError: matplotlib is not installed.
    """
    check_library()
    fs = report.formats
    pictures = [_against_bytes([(f.format, _bytes(f.k, f.v), f.kl) for f in fs])]
    run = [f for f in fs if f.error_k is not None and f.error_v is not None]
    if run:
        both = [(f.format, f.error_k or 0.0, f.error_v or 0.0) for f in run]
        pictures.append(_k_against_v("Error of the attention output with only K, only V stored", both))
    by_head = [f for f in run if f.heads_k]
    if by_head:
        layers = [str(i) for i in report.layers]
        rows = [[sum(heads) / len(heads) for heads in f.heads_k] for f in by_head]
        pictures.append(_heat("K's error by layer", [f.format for f in by_head], layers, rows))
        spread = [(f.format, [e for heads in f.heads_k for e in heads]) for f in by_head]
        pictures.append(_distribution("K's error over the heads of all layers", spread))
    table = [[f.format, f"{f.kl:.5f}", f"{f.low:.5f} to {f.high:.5f}", f.evidence] for f in fs]
    headings = ["format", "KL", "90% interval", "evidence"]
    return _page(f"Predicted quality of {report.model}", pictures, headings, table, [report.tensors, *report.notes])


def pareto(points: Sequence[tuple[str, float, float]]) -> list[tuple[str, float, float]]:
    """Those that no other beats in bytes and error, by bytes."""
    best, found = float("inf"), []
    for point in sorted(points, key=lambda p: (p[1], p[2])):
        if point[2] < best:
            best = point[2]
            found.append(point)
    return found


def _bytes(k: str, v: str) -> int:
    return row_bytes(k, v, HEAD_DIM)


def _against_bytes(points: Sequence[tuple[str, float, float]]) -> Picture:
    figure, axes = _figure()
    shown = [p for p in points if p[2] > 0]
    axes.scatter([p[1] for p in shown], [p[2] for p in shown], s=18)
    line = pareto(shown)
    axes.plot([p[1] for p in line], [p[2] for p in line], drawstyle="steps-post", linewidth=1)
    for name, x, y in line:
        axes.annotate(name, (x, y), fontsize=6, xytext=(3, 3), textcoords="offset points")
    axes.set_yscale("log")
    axes.set_xlabel(f"bytes of K + V per token and head of {HEAD_DIM}")
    axes.set_ylabel("KL")
    return "Error against bytes, with the Pareto line", _svg(figure)


def _k_against_v(heading: str, points: Sequence[tuple[str, float, float]]) -> Picture:
    figure, axes = _figure(0.22 * len(points) + 1.2)
    at = range(len(points))
    axes.barh([i - 0.2 for i in at], [p[1] for p in points], height=0.4, label="K")
    axes.barh([i + 0.2 for i in at], [p[2] for p in points], height=0.4, label="V")
    axes.set_yticks(list(at), [p[0] for p in points], fontsize=7)
    axes.set_xscale("log")
    axes.invert_yaxis()
    axes.legend()
    return heading, _svg(figure)


def _heat(heading: str, names: Sequence[str], columns: Sequence[str], rows: Sequence[Sequence[float]]) -> Picture:
    from matplotlib.colors import LogNorm

    figure, axes = _figure(0.22 * len(names) + 1.2)
    floored = [[max(x, 1e-9) for x in row] for row in rows]
    image = axes.imshow(floored, aspect="auto", norm=LogNorm())
    axes.set_yticks(range(len(names)), names, fontsize=7)
    axes.set_xticks(range(len(columns)), columns, fontsize=7)
    figure.colorbar(image, ax=axes)
    return heading, _svg(figure)


def _distribution(heading: str, spread: Sequence[tuple[str, Sequence[float]]]) -> Picture:
    figure, axes = _figure(0.22 * len(spread) + 1.2)
    axes.boxplot([values for _, values in spread], orientation="horizontal")
    axes.set_yticks(range(1, len(spread) + 1), [name for name, _ in spread], fontsize=7)
    axes.set_xscale("log")
    axes.invert_yaxis()
    return heading, _svg(figure)


def check_library() -> None:
    """Refuse before anything is measured.

    Raises:
        UnsupportedError: matplotlib is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise UnsupportedError(
            "a page with pictures needs matplotlib, which is not installed",
            "pip install 'kvplan-advisor[png]', or use --out FILE.json",
        )


def _figure(height: float = 4.0) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, height), layout="constrained")
    return figure, figure.add_subplot()


def _svg(figure: Any) -> str:
    """The picture's `<svg>` element; letters as outlines, so that no font is loaded."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    # The preamble names a DTD by its address; comments repeat each text.
    text = buffer.getvalue()
    return re.sub(r"<!--.*?-->", "", text[text.index("<svg") :], flags=re.DOTALL)


def _page(
    title: str,
    pictures: Sequence[Picture],
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    notes: Sequence[str],
) -> str:
    drawn = "\n".join(f"<h2>{escape(heading)}</h2>\n{svg}" for heading, svg in pictures)
    head = "".join(f"<th>{escape(h)}</th>" for h in headings)
    body = "\n".join("<tr>" + "".join(f"<td>{escape(x)}</td>" for x in row) + "</tr>" for row in rows)
    said = "\n".join(f"<p>{escape(note)}</p>" for note in notes)
    return f"""<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><title>{escape(title)}</title><style>{STYLE}</style></head>
<body>
<h1>{escape(title)}</h1>
<table><tr>{head}</tr>
{body}
</table>
{drawn}
{said}
</body>
</html>
"""
