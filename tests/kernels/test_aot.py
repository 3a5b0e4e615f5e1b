"""The decode kernels compile for sm_90 without a GPU: on the installed Triton, and on those in KVPLAN_TRITON_DIRS."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

CompileAhead = Callable[[str, str], dict[str, Any]]
RECORDED = {
    "decode bf16 bf16": 1.070,
    "decode fp16 fp16": 1.070,
    "decode int8 int8": 1.715,
    "decode int8:head int8:head": 1.562,
    "decode fp8_e4m3 fp8_e4m3": 1.469,
    "decode int8 fp8_e4m3": 1.602,
    "decode int4 int4": 1.371,
    "decode int4:token,asym int4:token,asym": 1.379,
    "decode int2:token,asym int2:token,asym": 1.241,
    "decode int8:group/32,asym int8:group/32,asym": 2.398,
    "decode int4:group/32 int4:group/32": 2.457,
    "decode int4:group/32,asym int4:group/32,asym": 2.422,
    "decode int4:group/64,asym int4:group/64,asym": 1.895,
    "decode int2:group/32,asym int2:group/32,asym": 2.465,
    "decode int2:channel/32,asym,recent=128 int2:group/32,asym,recent=128": 2.422,
    "decode int8:channel/32 int8:channel/32": 2.471,
    "decode fp4_e2m1 fp4_e2m1": 3.109,
    "decode mxfp4 mxfp4": 2.766,
    "decode nvfp4 nvfp4": 3.316,
    "decode mxfp8 mxfp8": 2.453,
    "decode int4:token,asym,rot int4:token,asym,rot": 1.379,
    "decode int3,rot int3,rot": 2.383,
}
"""Thread instructions per element of K and V in the loop, on Triton 3.6.0."""


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


def test_loop_is_as_long_as_recorded_on_the_pinned_triton(compile_ahead: CompileAhead) -> None:
    found = compile_ahead("kvplan_kernels.aot_check", "installed")
    if found["triton"] != "3.6.0":
        pytest.skip("instruction counts are recorded for Triton 3.6.0")
    counts = {k["kernel"]: k["per_element"] for k in found["kernels"]}
    for name, recorded in RECORDED.items():
        assert abs(counts[name] / recorded - 1) <= 0.05, (name, counts[name])
