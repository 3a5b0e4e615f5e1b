"""`python -m kvplan_kernels.attention.aot_latent`: compile the latent kernels without a GPU, for sm_90 first.

Prints one JSON object: the Triton version and a row per kernel. TRITON_INTERPRET must not be set.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Any

import torch
import triton

from kvplan.formats.ds_mla import latent_view
from kvplan.formats.grammar import parse_any
from kvplan.formats.grid import Tensor, bind
from kvplan.formats.layout import Layout
from kvplan_kernels.aot import GOLDEN_TRITON, Report, compile_ahead, report
from kvplan_kernels.attention import latent_unfused
from kvplan_kernels.attention.latent import latent_constants
from kvplan_kernels.attention.latent_config import LatentConfig, latent_config
from kvplan_kernels.attention.latent_kernel import latent_decode_kernel
from kvplan_kernels.cache import Cache, make_planes
from kvplan_kernels.store import latent as append
from kvplan_kernels.store.aot_check import _compile as compile_arguments
from kvplan_kernels.store.aot_check import _meta as meta

# Capability, format, query rows, heads.
DECODES = (
    (90, "fp8_ds_mla", 1, 16), (90, "fp8_ds_mla", 1, 128), (90, "fp8_ds_mla", 3, 16), (90, "bf16", 1, 16),
    (90, "bf16", 1, 128), (80, "fp8_ds_mla", 1, 128), (100, "fp8_ds_mla", 1, 128), (120, "fp8_ds_mla", 1, 128),
)  # fmt: skip
# Of these on other Tritons than the pinned one.
SAMPLE = ((90, "fp8_ds_mla", 1, 16), (80, "fp8_ds_mla", 1, 128))
NOPE, ROPE, PAGE, BATCH, TOKENS = 512, 64, 64, 4, 256


def latent_layout(spelling: str) -> Layout:
    """Layout of DeepSeek's latent in one format."""
    return bind([Tensor("latent", parse_any(spelling), NOPE + ROPE, ROPE)], 1, "bf16")


def check_latent_decode(
    spelling: str, rows: int, heads: int, config: LatentConfig | None = None, capability: int = 90
) -> tuple[LatentConfig, Report]:
    """Compile the decode kernel for `rows` query rows of `heads` heads."""
    view = latent_view(latent_layout(spelling))
    config = config or latent_config(view, PAGE, rows * heads, capability)
    values = "*i16" if view.quantised else f"*{view.number}"
    signature = {
        "Q": "*bf16", "ROWS": values, "ROPE": f"*{view.rope_storage}", "SCALES": "*fp32" if view.quantised else values,
        "PART_OUT": "*fp32", "PART_LSE": "*fp32", "PAGE_TABLE": "*i32", "LENGTHS": "*i32", "TILE_STARTS": "*i32",
        "sm_scale": "fp32", "num_requests": "i32", "max_pages": "i32",
    }  # fmt: skip
    constants = latent_constants(view, PAGE, rows, heads, config, capability)
    return config, report(compile_ahead(latent_decode_kernel, signature, constants, config.options, capability))


def check_latent_append(spelling: str, tokens: int = TOKENS, capability: int = 90) -> Report:
    """Compile the write kernel for `tokens` new tokens per sequence."""
    rows, counts = meta((BATCH, tokens, NOPE + ROPE), torch.bfloat16), meta((BATCH,), torch.int32)
    args, constants, num_warps = append.launch_arguments(_cache(spelling), rows, counts)
    return compile_arguments(append._append_latent_kernel, args, constants, num_warps, capability)


def check_latent_dequantise(spelling: str, capability: int = 90) -> Report:
    """Compile the dequantise kernel."""
    out = meta((BATCH, TOKENS, NOPE + ROPE), torch.bfloat16)
    args, constants, num_warps = latent_unfused.launch_arguments(_cache(spelling), out)
    return compile_arguments(latent_unfused._dequantise_latent_kernel, args, constants, num_warps, capability)


def latent_rows() -> list[dict[str, Any]]:
    """One row per kernel as JSON; `per_token` is warp instructions of the loop per token and block of columns."""
    rows: list[dict[str, Any]] = []
    for capability, spelling, num_rows, heads in DECODES if triton.__version__ == GOLDEN_TRITON else SAMPLE:
        config, result = check_latent_decode(spelling, num_rows, heads, capability=capability)
        per_token = round(result.loop_instructions * config.num_warps / config.block_tokens, 2)
        name = f"latent decode {spelling} {num_rows}x{heads} sm_{capability}"
        rows.append({"kernel": name, "config": asdict(config), **asdict(result), "per_token": per_token})
    for spelling in ("fp8_ds_mla", "bf16"):
        rows.append({"kernel": f"latent append {spelling}", **asdict(check_latent_append(spelling))})
        rows.append({"kernel": f"latent append {spelling} one", **asdict(check_latent_append(spelling, 1))})
        rows.append({"kernel": f"latent dequantise {spelling}", **asdict(check_latent_dequantise(spelling))})
    return rows


def _cache(spelling: str) -> Cache:
    layout, pages = latent_layout(spelling), TOKENS // PAGE
    planes = make_planes(layout, BATCH * pages, BATCH, PAGE, "meta")
    return Cache(layout, PAGE, planes, meta((BATCH, pages), torch.int32), meta((BATCH,), torch.int32))


def main() -> int:
    json.dump({"triton": triton.__version__, "kernels": latent_rows()}, sys.stdout, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
