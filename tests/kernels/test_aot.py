"""The decode kernels compile for sm_90 without a GPU: on the installed Triton, and on those in KVPLAN_TRITON_DIRS."""

from __future__ import annotations

import json
import re
import runpy
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

REPO = Path(__file__).resolve().parents[2]

HINT = "run python tools/make_aot_goldens.py"
CompileAhead = Callable[[str, str], dict[str, Any]]


def test_kernels_compile_to_asynchronous_copies_and_matrix_instructions(
    compile_ahead: CompileAhead, triton_folder: str
) -> None:
    found = compile_ahead("kvplan_kernels.aot_check", triton_folder)
    oldest = found["triton"].startswith("3.4.")
    for kernel in found["kernels"]:
        if kernel["kernel"].startswith("combine"):
            assert kernel["spills"] == 0
            continue
        assert kernel["asynchronous_copies"] > 0 and kernel["matrix_instructions"] > 0, kernel
        by_channel = "channel/" in kernel["kernel"]
        # One load per tile is the page table's; rows and scales arrive asynchronously.
        loads = kernel["loop"].get("LDG", 0)
        assert kernel["loop"]["HMMA"] > 0 and (loads <= 1 or (oldest and by_channel)), kernel
        # Triton 3.4 pads the query heads to 16 columns and runs out of registers. Scales by channel fill them all: with
        # the pinned Triton nothing is spilled in the loop.
        assert oldest or by_channel or kernel["spills"] == 0, kernel
        if by_channel and found["triton"] == "3.6.0":
            assert not {"LDL", "STL", "STS"} & set(kernel["loop"]), kernel


def load_tool() -> Any:
    return SimpleNamespace(**runpy.run_path(str(REPO / "tools" / "make_aot_goldens.py")))


def test_counts_are_the_recorded_ones_on_the_pinned_triton(compile_ahead: CompileAhead) -> None:
    """Anything else is a changed kernel: measure it, note it in docs/kernel_notes.md, record it."""
    tool = load_tool()
    assert tool.differing(compile_ahead(tool.MODULES[0], "installed"), ("decode", "combine")) == {}, HINT


def test_every_golden_stands_in_the_notes_with_what_was_measured() -> None:
    tool = load_tool()
    stored = json.loads(tool.GOLDENS.read_text())["kernels"]
    measured = tool.rows_of(tool.NOTES.read_text().split(tool.START)[1].split(tool.END)[0])
    assert set(measured) == {tool.row(name, counts) for name, counts in stored.items()}
    for start, text in measured.items():
        cited = re.fullmatch(r"(.*) \((\S+\.json)(?:: `(\S+)`)?\)", text)
        if not cited:
            assert text.startswith("not timed: "), (start, text)
            continue
        report = json.loads((REPO / "docs" / "results" / cited[2]).read_text())
        assert cited[1] in shown(report, cited[3]), start


def shown(report: dict[str, Any], fmt: str | None) -> set[str]:
    """What the notes may say of a stored validation, decode benchmark (of one format) or benchmark of latents."""
    if "results" in report:
        times = [r["times"] for r in report["results"] if r["format"] == fmt]
        return {f"{t['roof_share']:.1%} of the roof, {t['speedup']:.2f}x" for t in times}
    rows = [r for r in report["rows"] if r["case"] == "16x32k"]
    if fmt is None:
        return {f"{r['seconds'] * 1e6:.0f} us at 16 x 32k" for r in rows if "latent" in r}
    return {f"{r['fraction']:.1%} of the roof, {r['speedup']:.2f}x" for r in rows if r["format"] == fmt}
