"""`python -m kvplan_kernels.aot_check [--capability 80 ...]`: compile the decode kernels on the importable Triton.

For sm_90, the default, every kernel, for other architectures one of each family of tile functions. Prints one JSON
object: the Triton version and a row per kernel. Needs no GPU. TRITON_INTERPRET must not be set.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Any

import triton

from kvplan.formats.grammar import parse_any
from kvplan.formats.grid import Tensor, bind
from kvplan.formats.layout import Layout
from kvplan_kernels.aot import GOLDEN_CAPABILITY, GOLDEN_TRITON, Report, capabilities, compile_ahead, report
from kvplan_kernels.attention.combine import combine_constants, combine_kernel
from kvplan_kernels.attention.config import DecodeConfig, default_config
from kvplan_kernels.attention.decode import decode_constants
from kvplan_kernels.attention.kernel import decode_kernel
from kvplan_kernels.attention.mode import Mode
from kvplan_kernels.dialect import has_dependent_launch

PAIRS = (
    ("bf16", "bf16"),
    ("fp16", "fp16"),
    ("int8", "int8"),
    ("int8:head", "int8:head"),
    ("fp8_e4m3", "fp8_e4m3"),
    ("fp8_e4m3:head", "fp8_e4m3:head"),
    ("int8", "fp8_e4m3"),
    ("int4", "int4"),
    ("int4:token,asym", "int4:token,asym"),
    ("int2:token,asym", "int2:token,asym"),
    ("int8:group/32,asym", "int8:group/32,asym"),
    ("int4:group/32", "int4:group/32"),
    ("int4:group/32,asym", "int4:group/32,asym"),
    ("int4:group/64,asym", "int4:group/64,asym"),
    ("int2:group/32,asym", "int2:group/32,asym"),
    ("int2:channel/32,asym,recent=128", "int2:group/32,asym,recent=128"),
    ("int8:channel/32", "int8:channel/32"),
    ("fp4_e2m1", "fp4_e2m1"),
    ("mxfp4", "mxfp4"),
    ("nvfp4", "nvfp4"),
    ("mxfp8", "mxfp8"),
    ("int4:token,asym,rot", "int4:token,asym,rot"),
    ("int3,rot", "int3,rot"),
)
# One pair per family of tile functions.
FAMILIES = tuple(
    (f, f)
    for f in (
        "bf16", "int8", "fp8_e4m3", "int4:token,asym", "int2:token,asym", "int4:group/32,asym", "int8:channel/32",
        "nvfp4", "int3,rot",
    )
)  # fmt: skip
HEADS, GROUP, PAGE = 8, 4, 128
MODE = Mode(group=GROUP, columns=GROUP)
_POINTERS = {"fp16": "*fp16", "bf16": "*bf16", "fp32": "*fp32"}


def decode_layout(k: str, v: str, dim_k: int, dim_v: int, heads: int = HEADS) -> Layout:
    """Layout of one K, V pair of spellings."""
    dtype = "bf16" if "bf16" in (k, v) else "fp16"
    return bind([Tensor("k", parse_any(k), dim_k), Tensor("v", parse_any(v), dim_v)], heads, dtype)


def decode_signature(layout: Layout) -> dict[str, str]:
    """Types of the run-time arguments of `decode_kernel`, as its launcher passes them."""
    k, v = layout.view("k"), layout.view("v")

    def static(role: str) -> str:
        view = layout.view(role)
        if view.has_global:
            return "*fp32"
        return _POINTERS[view.meta_storage] if view.has_static_scale else "*bf16"

    return {
        "Q": "*fp32" if k.rot else "*bf16",
        "K_WORDS": _POINTERS.get(k.number, "*i16"), "V_WORDS": _POINTERS.get(v.number, "*i16"),
        "K_HIGH": "*i16" if k.two_parts else "*bf16", "V_HIGH": "*i16" if v.two_parts else "*bf16",
        "K_RING": _POINTERS[k.recent_storage or "bf16"], "V_RING": _POINTERS[v.recent_storage or "bf16"],
        "K_META": "*i32", "V_META": "*i32", "K_SCALE": static("k"), "V_SCALE": static("v"),
        "K_ZERO": static("k"), "V_ZERO": static("v"),
        "PART_OUT": "*fp32", "PART_LSE": "*fp32", "PAGE_TABLE": "*i32", "LENGTHS": "*i32", "TILE_STARTS": "*i32",
        "sm_scale": "fp32", "num_requests": "i32", "max_pages": "i32", "reach": "i32", "softcap": "fp32",
    }  # fmt: skip


def check_decode(
    k: str, v: str, dim_k: int = 128, dim_v: int = 128, mode: Mode = MODE,
    config: DecodeConfig | None = None, capability: int = 90,
) -> tuple[DecodeConfig, Report]:  # fmt: skip
    """Compile the main kernel of one pair of formats."""
    layout = decode_layout(k, v, dim_k, dim_v)
    config = config or default_config(layout, PAGE, mode.columns)
    constants = decode_constants(layout, PAGE, mode, config, capability)
    compiled = compile_ahead(decode_kernel, decode_signature(layout), constants, config.options, capability)
    return config, report(compiled)


def check_combine(rotated: bool = False, capability: int = 90) -> Report:
    """Compile the combine kernel for 64 requests."""
    constants = {
        **combine_constants(64 * HEADS, 528, HEADS, MODE, 128, rotated),
        "PDL": has_dependent_launch(capability),
    }
    signature = {
        "PART_OUT": "*fp32", "PART_LSE": "*fp32", "OWN_OUT": "*fp32", "OWN_LSE": "*fp32", "SINKS": "*fp32",
        "OUT": "*bf16", "TILE_STARTS": "*i32",
        "num_requests": "i32", "num_programs": "i32",
    }  # fmt: skip
    return report(compile_ahead(combine_kernel, signature, constants, {"num_warps": 1}, capability))


def row(name: str, capability: int, config: DecodeConfig | None, result: Report, elements: int) -> dict[str, Any]:
    """One kernel as JSON; `per_element` is thread instructions of the loop per K and V element."""
    threads = 32 * (config.num_warps if config else 1)
    per_element = round(result.loop_instructions * threads / elements, 3) if elements else None
    settings = asdict(config) if config else None
    head = {"kernel": name, "capability": capability, "config": settings}
    return {**head, **asdict(result), "per_element": per_element}


def main() -> int:
    rows = []
    pinned = triton.__version__ == GOLDEN_TRITON
    for capability in capabilities(__doc__):
        # All pairs where counts are recorded; on other Tritons a sample of the families, for other architectures one.
        few = FAMILIES if pinned else FAMILIES[1::2] if capability == GOLDEN_CAPABILITY else FAMILIES[3:4]
        for k, v in PAIRS if pinned and capability == GOLDEN_CAPABILITY else few:
            config, result = check_decode(k, v, capability=capability)
            rows.append(row(f"decode {k} {v}", capability, config, result, config.block_tokens * 256))
        for name, rotated in (("combine", False), ("combine rotated", True)):
            rows.append(row(name, capability, None, check_combine(rotated, capability), 0))
    json.dump({"triton": triton.__version__, "kernels": rows}, sys.stdout, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
