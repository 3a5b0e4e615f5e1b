"""docs/speed.md and the README's speed table are the stored benchmarks; they are shown in full, misses and all."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

REPO = Path(__file__).resolve().parents[2]


@pytest.fixture
def tool() -> Any:
    return runpy.run_path(str(REPO / "tools" / "speed_page.py"))


def row(fmt: str, seconds: float | None, misses: tuple[str, ...] = (), case: str = "16x32k") -> dict[str, Any]:
    return {
        "format": fmt, "case": case, "seconds": seconds, "bytes_per_second": seconds and 1e9 / seconds,
        "fraction": seconds and 0.9, "fraction_must": 0.92, "speedup": seconds and 1.9, "speedup_must": 1.85,
        "microseconds_must": None, "error": 1e-4, "error_ok": True, "rival_must": 1.40, "misses": list(misses),
        "reason": None,
    }  # fmt: skip


REPORT = {
    "rows": [row("fp8_e4m3", 250e-6, ("fraction",)), row("int8", None, ("fraction", "speedup"))],
    "peers": [
        {"name": "A", "case": "16x32k", "bits": 8, "seconds": 500e-6, "page_size": 16},
        {"name": "B", "case": "16x32k", "bits": 8, "seconds": None, "failed": "no module"},
    ],
}


def test_misses_and_red_rows_are_shown(tool: Any) -> None:
    table = tool["decode_table"](REPORT, "16x32k")
    assert "| `fp8_e4m3` | 250.0 | 4.00 | 0.900 / 0.92 missed | 1.900 / 1.85 | 1.0e-04 |" in table
    assert "| `int8` | red | - | - / 0.92 missed | - / 1.85 missed |" in table
    assert "| `int8` | 16x32k | fraction, speedup | open |" in tool["misses_table"]([REPORT])
    peers = tool["peers_table"](REPORT)
    assert "| A | 16x32k | 500.0 | 16 | 2.00x / 1.40 |" in peers and "no module" in peers


def test_the_write_counts_in_the_verdict(tool: Any) -> None:
    one = {"tokens": 1, "steps": 32, "worst_seconds": 9e-6, "misses": []}
    report = {"rows": [{"format": f, "seconds": s} | one for f, s in (("fp16", 5e-6), ("kivi2", 15e-6))]}
    decode = {"rows": [row("fp16", 245e-6, case="64x4k"), row("kivi2", 85e-6, case="64x4k")]}
    assert "| `kivi2` | 100.0 | 2.50 |" in tool["append_tables"](report, decode)


def test_the_committed_page_is_current(tool: Any) -> None:
    if not tool["DECODE"].is_file():
        # Nothing is shown before it is measured.
        assert not tool["PAGE"].exists()
        return
    assert tool["PAGE"].read_text(encoding="utf-8") == tool["page"](), "run python tools/speed_page.py"
    report = json.loads(tool["DECODE"].read_text(encoding="utf-8"))
    assert tool["decode_table"](report, "16x32k") in (REPO / "README.md").read_text(encoding="utf-8")


def test_stored_benchmarks_say_where_they_come_from(tool: Any) -> None:
    for name in ("DECODE", "APPEND"):
        if not tool[name].is_file():
            continue
        report = json.loads(tool[name].read_text(encoding="utf-8"))
        assert report["device"] == "NVIDIA H200" and set(report["versions"]) >= {"torch", "triton", "cuda"}
        assert report["command"].startswith("python -m kvplan_kernels.bench.")
        assert not re.search(r"/(work|tmp|root)/", json.dumps(report))
        assert all(r["green"] for r in report["rows"])
