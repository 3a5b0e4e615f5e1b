"""The prefill kernel compiles without a GPU; for sm_90 to warp-group matrix instructions fed by asynchronous copies."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

TOOL = Path(__file__).resolve().parents[2] / "tools" / "make_aot_goldens.py"


def test_prefill_compiles_to_warp_group_matrix_instructions(
    compile_ahead: Callable[[str, str], dict[str, Any]], triton_folder: str
) -> None:
    found = compile_ahead("kvplan_kernels.attention.prefill_aot", triton_folder)
    assert len(found["kernels"]) == (10 if found["triton"] == "3.6.0" else 2)
    for kernel in found["kernels"]:
        loop = kernel["loop"]
        if "sm_" in kernel["kernel"]:
            assert kernel["matrix_instructions"] > 0 and kernel["asynchronous_copies"] > 0, kernel
            continue
        assert loop.get("HGMMA", 0) > 0 and loop.get("LDGSTS", 0) > 0, kernel
        # Rows never pass through registers on their way to shared memory, nothing is spilled where time is spent.
        assert not {"LDL", "STL", "LDG", "STS"} & set(loop), kernel
        if found["triton"] == "3.6.0":
            assert kernel["spills"] == 0, kernel


def test_counts_are_the_recorded_ones_on_the_pinned_triton(compile_ahead: Callable[[str, str], dict[str, Any]]) -> None:
    tool = runpy.run_path(str(TOOL))
    found = compile_ahead("kvplan_kernels.attention.prefill_aot", "installed")
    assert tool["differing"](found, ("prefill",)) == {}, "run python tools/make_aot_goldens.py"
