"""The latent kernels compile without a GPU, on every Triton at hand."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

CompileAhead = Callable[[str, str], dict[str, Any]]
TOOL = Path(__file__).resolve().parents[2] / "tools" / "make_aot_goldens.py"
MODULE = "kvplan_kernels.attention.aot_latent"
RECORDED = {
    "latent decode fp8_ds_mla 1x16 sm_90": 63.8,
    "latent decode fp8_ds_mla 1x128 sm_90": 88.1,
    "latent decode fp8_ds_mla 3x16 sm_90": 90.5,
    "latent decode bf16 1x16 sm_90": 61.6,
    "latent decode bf16 1x128 sm_90": 172.5,
}
"""Warp instructions of the loop per token and block of columns, on Triton 3.6.0."""

# Loads and stores of spilled registers in the loop: fp8 blocks do not fit the registers, of 32 columns least.
SPILLED_IN_LOOP = {
    "latent decode fp8_ds_mla 1x16 sm_90": 8,
    "latent decode fp8_ds_mla 1x128 sm_90": 85,
    "latent decode fp8_ds_mla 3x16 sm_90": 89,
    "latent decode bf16 1x128 sm_90": 16,
}


def test_the_loop_copies_asynchronously_and_multiplies_by_warp_groups(
    compile_ahead: CompileAhead, triton_folder: str
) -> None:
    found = compile_ahead(MODULE, triton_folder)
    rows = found["kernels"]
    assert len(rows) == (14 if found["triton"] == "3.6.0" else 8)
    for row in rows:
        if "decode" not in row["kernel"]:
            assert row["spills"] == 0, row
            continue
        assert row["asynchronous_copies"] > 0 and row["matrix_instructions"] > 0, row
        if not row["kernel"].endswith("sm_90"):
            # What a program may take of an SM of sm_120; single warps multiply.
            assert row["shared_bytes"] <= 99 * 1024 and row["loop"]["HMMA"] > 0, row
            assert not {"LDL", "STL"} & set(row["loop"]), row
            continue
        assert row["loop"]["HGMMA"] >= 68 and row["loop"]["LDGSTS"] > 0, row
        # The page table's.
        assert row["loop"].get("LDG", 0) <= 1, row
        # 227 KiB is what a program may take of an SM.
        assert row["shared_bytes"] <= 227 * 1024, row


def test_loop_is_as_long_as_recorded_on_the_pinned_triton(compile_ahead: CompileAhead) -> None:
    found = compile_ahead(MODULE, "installed")
    if found["triton"] != "3.6.0":
        pytest.skip("instruction counts are recorded for Triton 3.6.0")
    tool = runpy.run_path(str(TOOL))
    assert tool["differing"](found, ("latent",)) == {}, "run python tools/make_aot_goldens.py"
    rows = {row["kernel"]: row for row in found["kernels"]}
    for name, recorded in RECORDED.items():
        assert abs(rows[name]["per_token"] / recorded - 1) <= 0.05, (name, rows[name]["per_token"])
        spilled = sum(rows[name]["loop"].get(op, 0) for op in ("LDL", "STL"))
        assert spilled <= SPILLED_IN_LOOP.get(name, 0), (name, spilled)
