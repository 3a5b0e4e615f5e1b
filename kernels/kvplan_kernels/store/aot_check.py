"""`python -m kvplan_kernels.store.aot_check [--capability 80 ...]`: compile the append and dequantise kernels.

For sm_90, the default, every kernel, for other architectures one of each family. Needs no GPU. Prints one JSON object:
the Triton version and a row per kernel. TRITON_INTERPRET must not be set. The arguments are the launchers' own, on
tensors of torch's `meta` device.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Any

import torch
import triton
from torch import Tensor

from kvplan.formats.grammar import parse_any
from kvplan.formats.grid import Tensor as Stored
from kvplan.formats.grid import bind
from kvplan_kernels.aot import GOLDEN_CAPABILITY, GOLDEN_TRITON, Report, capabilities, compile_ahead, report
from kvplan_kernels.attention import unfused
from kvplan_kernels.cache import Cache, make_planes
from kvplan_kernels.codecs import rotation
from kvplan_kernels.store import append

PAIRS = (
    ("fp16", "bf16", 128, 128),
    ("int8", "int8", 128, 128),
    ("int8", "int8,asym", 192, 128),
    ("int8,scale=bf16", "fp8_e4m3:token,scale=fp32", 128, 128),
    ("int8:head,asym", "int8:channel,asym", 96, 96),
    ("int8:group/32,asym", "int8:group/16", 96, 80),
    ("fp8_e4m3", "fp8_e4m3", 128, 128),
    ("fp8_e4m3:head", "fp8_e5m2:token", 64, 64),
    ("int4", "int4:token,asym", 128, 128),
    ("int4:group/32,asym", "int4:group/32", 96, 128),
    ("int2:token,asym", "int2:group/32,asym", 128, 128),
    ("int2:channel/32,asym,recent=128", "int2:group/32,asym,recent=128", 128, 128),
    ("int8:channel/64,asym", "int8:token,recent=128,flush=whole", 96, 128),
    ("nvfp4", "mxfp4", 128, 128),
    ("mxfp8", "fp4_e2m1", 128, 128),
    ("int3,rot", "int3:token,asym,rot", 128, 128),
    ("int8:head,rot", "int8:group/16,pack=page", 128, 128),
)  # fmt: skip
FAMILIES = (PAIRS[0], PAIRS[1], PAIRS[6], PAIRS[9], PAIRS[11], PAIRS[13], PAIRS[15])
HEADS, PAGE, BATCH, TOKENS = 8, 128, 4, 256
_TYPES = {
    torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16",
    torch.int8: "i8", torch.int16: "i16", torch.int32: "i32", torch.int64: "i64",
}  # fmt: skip


def check_append(pair: tuple[str, str, int, int], tokens: int = TOKENS, capability: int = 90) -> Report:
    """Compile the write kernel of one (K spelling, V spelling, Dk, Dv) for `tokens` new tokens per sequence."""
    cache = _cache(pair)
    # Rotated rows arrive in fp32.
    rows = {role: torch.float32 if cache.layout.view(role).rot else torch.bfloat16 for role in ("k", "v")}
    k, v = (_meta((BATCH, tokens, HEADS, dim), dtype) for dim, dtype in zip(pair[2:], rows.values(), strict=True))
    counts, saturated = _meta((BATCH,), torch.int32), _meta((2, HEADS), torch.int64)
    args, constants, num_warps = append.launch_arguments(cache, k, v, counts, saturated)
    return _compile(append._append_kernel, args, constants, num_warps, capability)


def check_dequantise(pair: tuple[str, str, int, int], capability: int = 90) -> Report:
    """Compile the dequantise kernel of one pair."""
    k, v = (_meta((BATCH, HEADS, TOKENS, dim), torch.bfloat16) for dim in pair[2:])
    args, constants, num_warps = unfused.launch_arguments(_cache(pair), k, v)
    return _compile(unfused._dequantise_kernel, args, constants, num_warps, capability)


def check_rotate(dim: int, dtype: torch.dtype = torch.bfloat16, back: bool = False, capability: int = 90) -> Report:
    """Compile the rotation of rows of one head dimension."""
    x = _meta((BATCH, TOKENS, HEADS, dim), dtype)
    args, constants, num_warps = rotation.launch_arguments(x, _meta(tuple(x.shape), torch.float32), back)
    return _compile(rotation._rotate_kernel, args, constants, num_warps, capability)


def _cache(pair: tuple[str, str, int, int]) -> Cache:
    stored = [Stored(role, parse_any(f), dim) for role, f, dim in zip("kv", pair[:2], pair[2:], strict=True)]
    layout, pages = bind(stored, HEADS, "bf16"), TOKENS // PAGE
    planes = make_planes(layout, BATCH * pages, BATCH, PAGE, "meta")
    return Cache(layout, PAGE, planes, _meta((BATCH, pages), torch.int32), _meta((BATCH,), torch.int32))


def _meta(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _compile(kernel: Any, args: list[Any], constants: dict[str, Any], num_warps: int, capability: int) -> Report:
    signature: dict[str, str] = {}
    for name, value in zip(kernel.arg_names, args, strict=False):
        if isinstance(value, Tensor):
            signature[name] = "*" + _TYPES[value.dtype]
        elif value is not None:
            signature[name] = "i32"
    absent = {name: None for name, value in zip(kernel.arg_names, args, strict=False) if value is None}
    compiled = compile_ahead(kernel, signature, constants | absent, {"num_warps": num_warps}, capability)
    return report(compiled)


def check_all(capability: int) -> dict[str, Report]:
    """Kernels of this architecture by name: every one where counts are recorded, else of the families, and on other
    Tritons of some of them."""
    found = {}
    few = FAMILIES if triton.__version__ == GOLDEN_TRITON else FAMILIES[::3]
    for pair in PAIRS if few == FAMILIES and capability == GOLDEN_CAPABILITY else few:
        name = " ".join(map(str, pair))
        found[f"append {name}"] = check_append(pair, capability=capability)
        found[f"dequantise {name}"] = check_dequantise(pair, capability)
    for dim in (64, 128, 256):
        found[f"rotate {dim}"] = check_rotate(dim, capability=capability)
    found["append one token"] = check_append(PAIRS[1], tokens=1, capability=capability)
    return found


def main() -> int:
    rows = [
        {"kernel": name, "capability": capability, **asdict(result)}
        for capability in capabilities(__doc__)
        for name, result in check_all(capability).items()
    ]
    json.dump({"triton": triton.__version__, "kernels": rows}, sys.stdout, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
