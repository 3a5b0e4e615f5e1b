"""`python -m kvplan_kernels.attention.prefill_aot`: compile the prefill kernel for sm_90 without a GPU.

Prints one JSON object: the Triton version and a row per kernel. TRITON_INTERPRET must not be set. The arguments are the
launcher's own, on tensors of torch's `meta` device.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Any

import torch
import triton
from torch import Tensor

from kvplan_kernels.aot import GOLDEN_TRITON, Report, compile_ahead, report
from kvplan_kernels.attention.prefill import default_prefill_config, launch_arguments
from kvplan_kernels.attention.prefill_kernel import prefill_kernel
from kvplan_kernels.attention.variant import PLAIN, Variant

HEADS, GROUP, BATCH, ROWS, PREFIX_ROWS = 8, 4, 2, 2048, 4096
SAMPLE = ("prefill 192 128",)
DIMS = ((64, 64), (80, 80), (128, 128), (192, 128), (256, 256))
_TYPES = {torch.float16: "*fp16", torch.bfloat16: "*bf16", torch.float32: "*fp32", torch.int32: "*i32"}


def check_prefill(
    dims: tuple[int, int] = (128, 128), *, prefix: bool = True, variant: Variant = PLAIN, rows: int = ROWS,
    capability: int = 90,
) -> Report:  # fmt: skip
    """Compile the kernel for `rows` bf16 rows of these channels, with counts, and a log sum where there is a prefix."""
    dim_k, dim_v = dims
    heads = HEADS * GROUP
    q, k, v = (_meta(BATCH, rows, h, d) for h, d in ((heads, dim_k), (HEADS, dim_k), (HEADS, dim_v)))
    before = (_meta(BATCH, HEADS, PREFIX_ROWS, dim_k), _meta(BATCH, HEADS, PREFIX_ROWS, dim_v))
    integers = _meta(BATCH, dtype=torch.int32)
    args, constants, options = launch_arguments(
        q, k, v, dim_k**-0.5, variant, integers, (*before, integers) if prefix else None,
        _meta(BATCH, rows, heads, dim_v), _meta(BATCH, rows, heads, dtype=torch.float32) if prefix else None,
        default_prefill_config(dim_v, rows * GROUP, capability),
    )  # fmt: skip
    named = dict(zip(prefill_kernel.arg_names, args, strict=False))
    signature = {name: _type(x) for name, x in named.items() if x is not None}
    constants |= {name: None for name, x in named.items() if x is None}
    return report(compile_ahead(prefill_kernel, signature, constants, options, capability))


def prefill_rows() -> list[dict[str, Any]]:
    """One row per compiled kernel: every head dimension, then what a variant, a missing prefix and few rows change, and
    one for each other architecture. On other Tritons than the pinned one a sample."""
    sinks = _meta(HEADS * GROUP, dtype=torch.float32)
    cases: dict[str, dict[str, Any]] = {f"prefill {k} {v}": {"dims": (k, v)} for k, v in DIMS}
    cases["prefill without prefix"] = {"prefix": False}
    cases["prefill window, softcap, sinks"] = {"prefix": False, "variant": Variant(1024, 30.0, sinks)}
    cases["prefill one row"] = {"rows": 1}
    others: tuple[int, ...] = (80, 100)
    if triton.__version__ != GOLDEN_TRITON:
        cases, others = {name: cases[name] for name in SAMPLE}, others[:1]
    cases |= {f"prefill 128 128 sm_{capability}": {"capability": capability} for capability in others}
    return [{"kernel": name, **asdict(check_prefill(**case))} for name, case in cases.items()]


def main() -> int:
    json.dump({"triton": triton.__version__, "kernels": prefill_rows()}, sys.stdout, indent=1)
    return 0


def _meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _type(x: Tensor | float) -> str:
    return _TYPES[x.dtype] if isinstance(x, Tensor) else "fp32" if isinstance(x, float) else "i32"


if __name__ == "__main__":
    sys.exit(main())
