"""The append and dequantise kernels compile for sm_90 without a GPU, on every Triton at hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def test_kernels_compile_ahead_of_time_for_sm_90(
    compile_ahead: Callable[[str, str], dict[str, Any]], triton_folder: str
) -> None:
    rows = compile_ahead("kvplan_kernels.store.aot_check", triton_folder)["kernels"]
    assert len(rows) == 38
    assert all(row["spills"] == 0 for row in rows), rows
