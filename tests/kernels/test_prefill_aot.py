"""The prefill kernel compiles for sm_90 without a GPU: warp-group matrix instructions fed by asynchronous copies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def test_prefill_compiles_to_warp_group_matrix_instructions(
    compile_ahead: Callable[[str, str], dict[str, Any]], triton_folder: str
) -> None:
    found = compile_ahead("kvplan_kernels.attention.prefill_aot", triton_folder)
    assert len(found["kernels"]) == 8
    for kernel in found["kernels"]:
        loop = kernel["loop"]
        assert loop.get("HGMMA", 0) > 0 and loop.get("LDGSTS", 0) > 0, kernel
        # Rows never pass through registers on their way to shared memory, nothing is spilled where time is spent.
        assert not {"LDL", "STL", "LDG", "STS"} & set(loop), kernel
        if found["triton"] == "3.6.0":
            assert kernel["spills"] == 0, kernel
