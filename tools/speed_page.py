"""Write docs/speed.md from the stored benchmarks and print the README's table: python tools/speed_page.py"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kvplan.recommend.timemodel import measured_speeds

REPO = Path(__file__).resolve().parents[1]
RESULTS = REPO / "docs" / "results"
DECODE, APPEND = RESULTS / "decode_h200.json", RESULTS / "append_h200.json"
PAGE = REPO / "docs" / "speed.md"
SUMMARY = "16x32k"
Row = dict[str, Any]


def markdown(headings: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table whose first column is text and whose others are figures."""
    head = list(headings)
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def figure(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def beside(value: float | None, must: float | None) -> str:
    """A figure and its must, marked where it is missed."""
    if must is None:
        return figure(value, 3)
    return f"{figure(value, 3)} / {must:.3g}" + ("" if value is not None and value >= must else " missed")


def decode_table(report: Row, case: str) -> str:
    """All formats at one shape."""
    headings = ("format", "us", "TB/s", "of the read roof / must", "x best 16 bit / must", "kernel error")
    rows = []
    for r in (r for r in report["rows"] if r["case"] == case):
        seconds, rate = r["seconds"], r["bytes_per_second"]
        micro = "red" if seconds is None else f"{seconds * 1e6:.1f}"
        if r["microseconds_must"] is not None:
            micro += f" / {r['microseconds_must']:g}" + (" missed" if "microseconds" in r["misses"] else "")
        error = "-" if r.get("error") is None else f"{r['error']:.1e}" + ("" if r["error_ok"] else " missed")
        shares = beside(r["fraction"], r["fraction_must"]), beside(r["speedup"], r["speedup_must"])
        rows.append((f"`{r['format']}`", micro, figure(rate and rate / 1e12), *shares, error))
    return markdown(headings, rows)


def peers_table(report: Row) -> str:
    headings = ("peer", "shape", "us", "page", "fp8 here is faster by / must")
    ours = {r["case"]: r for r in report["rows"] if r["format"] == "fp8_e4m3"}
    rows = []
    for p in report["peers"]:
        own, gain = ours.get(p["case"]), "-"
        if p["bits"] == 8 and own and own["seconds"] and p["seconds"]:
            gain = f"{p['seconds'] / own['seconds']:.2f}x" + (f" / {m:.2f}" if (m := own["rival_must"]) else "")
        time = f"{p['seconds'] * 1e6:.1f}" if p["seconds"] else p.get("failed", "no speed")
        rows.append((p["name"], p["case"], time, str(p.get("page_size", "-")), gain))
    return markdown(headings, rows)


def misses_table(reports: Iterable[Row]) -> str:
    missed = [r for report in reports for r in report["rows"] if r["misses"]]
    rows = [(f"`{r['format']}`", r["case"], ", ".join(r["misses"]), r["reason"] or "open") for r in missed]
    return markdown(("format", "shape", "missed", "reason"), rows) if rows else "None."


def append_tables(report: Row, decode: Row) -> str:
    """Writes, and what a step of 64 x 4k gains when its own write is counted."""
    one = {r["format"]: r for r in report["rows"] if r.get("tokens") == 1}
    rows = [
        (f"`{f}`", f"{r['seconds'] * 1e6:.1f}", f"{r['worst_seconds'] * 1e6:.1f}", str(r["steps"]))
        for f, r in one.items()
    ]
    parts = [markdown(("one token, 64 requests", "us, mean", "us, worst step", "steps"), rows)]
    bulk = [r for r in report["rows"] if r.get("share") is not None]
    rows = [
        (f"`{r['format']}`", r["case"], f"{r['seconds'] * 1e6:.1f}", beside(r["share"], r["share_must"])) for r in bulk
    ]
    parts.append(markdown(("bulk", "shape", "us", "of a plain copy / must"), rows))
    steps = {r["format"]: r["seconds"] for r in decode["rows"] if r["case"] == "64x4k" and r["seconds"]}
    if "fp16" in steps and "fp16" in one:
        whole = {f: steps[f] + r["seconds"] for f, r in one.items() if f in steps}
        rows = [(f"`{f}`", f"{s * 1e6:.1f}", f"{whole['fp16'] / s:.2f}") for f, s in whole.items()]
        parts.append(markdown(("decode and mean append, 64x4k", "us", "x our fp16"), rows))
    return "\n\n".join(parts)


def model_table() -> str:
    rows = []
    for key, s in measured_speeds().items():
        held_out = "-" if s.worst_held_out_error is None else f"{s.worst_held_out_error:.1%}"
        rows.append((f"`{key}`", f"{s.fixed_seconds * 1e6:.1f}", f"{s.roof_share:.3f}", held_out, s.source))
    return markdown(("format", "fixed us", "share of the roof", "worst held-out error", "source"), rows)


def page() -> str:
    """docs/speed.md."""
    decode = json.loads(DECODE.read_text(encoding="utf-8"))
    append = json.loads(APPEND.read_text(encoding="utf-8")) if APPEND.is_file() else None
    cases = list(dict.fromkeys(r["case"] for r in decode["rows"]))
    parts = [
        "# Speed of the kernels",
        "Written by `python tools/speed_page.py` from `docs/results/decode_h200.json` and `append_h200.json`. One "
        "layer; no throughput of a served model follows from it.",
        f"Decode: `{decode['command']}` on one {decode['device']}, torch {decode['versions']['torch']}, Triton "
        f"{decode['versions']['triton']}; read roof {decode['roof']['bytes_per_second'] / 1e12:.2f} TB/s. "
        f"Method: {decode['method']}.",
        *(f"## {case}\n\n{decode_table(decode, case)}" for case in cases),
    ]
    if decode["peers"]:
        parts.append(f"## Peers\n\n{peers_table(decode)}")
    if append:
        parts.append(f"## Writes\n\n`{append['command']}`. {append['method']}.\n\n{append_tables(append, decode)}")
    parts += [
        f"## Missed\n\n{misses_table([decode, *([append] if append else [])])}",
        "## The time model of `kvplan recommend`\n\nt = fixed + bytes / (share x read roof), fitted by "
        f"`python tools/fit_times.py`.\n\n{model_table()}",
    ]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(decode_table(json.loads(DECODE.read_text(encoding="utf-8")), SUMMARY))
