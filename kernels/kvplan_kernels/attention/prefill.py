"""The launcher of causal attention over dense 16-bit rows (prefill_kernel.py), and prefill that fills the cache."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import triton
from torch import Tensor

from kvplan_kernels.attention.prefill_kernel import STRIDE_UNIT, merge_kernel, prefill_kernel
from kvplan_kernels.attention.reference import LOG2_E
from kvplan_kernels.attention.variant import PLAIN, Variant
from kvplan_kernels.cache import Cache
from kvplan_kernels.dialect import capability_of
from kvplan_kernels.store.append import append

Prefix = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class PrefillConfig:
    """Shape of a prefill launch.

    Attributes:
        block_rows: query rows of a program, heads of the group included.
        block_keys: keys of a tile.
    """

    block_rows: int
    block_keys: int
    num_warps: int
    num_stages: int


# A long prefix is shared by so many programs at most, of so many tiles at least.
MOST_SPLITS, LEAST_TILES = 32, 4
# What counts as a full device in the interpreter, so that its tests split too.
INTERPRETED_PROGRAMS = 8
LEAST_DIM, LARGEST_DIM = 16, 256
# Rows of values up to so many channels leave registers for 64 scores of each query row.
NARROW = 128
# Two groups of four warps with 64 rows each: tiles for the 227 KiB of sm_90 and sm_100.
LARGE_SHARED = {"narrow": PrefillConfig(128, 64, 8, 3), "wide": PrefillConfig(128, 32, 8, 2)}
# Some 100 KiB, and matrix instructions of single warps (sm_80 to sm_89, sm_120).
SMALL_SHARED = {"narrow": PrefillConfig(64, 32, 4, 2), "wide": PrefillConfig(64, 32, 4, 2)}


def default_prefill_config(dim_v: int, rows: int, capability: int) -> PrefillConfig:
    """The table's entry for values of `dim_v` channels; a call of few rows takes small tiles.

    Args:
        rows: query rows of one KV head, R * G.
        capability: 10 * major + minor.
    """
    table = LARGE_SHARED if 90 <= capability < 120 else SMALL_SHARED
    if dim_v > NARROW:
        return table["wide"]
    return replace(table["narrow"], block_rows=64, block_keys=32, num_warps=4) if rows <= 64 else table["narrow"]


def prefill(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    sm_scale: float | None = None,
    variant: Variant = PLAIN,
    counts: Tensor | None = None,
    prefix: Prefix | None = None,
    out: Tensor | None = None,
    lse: Tensor | None = None,
    config: PrefillConfig | None = None,
) -> Tensor:
    """Causal attention of R new rows per request over dense 16-bit rows.

    Args:
        q: fp16 or bf16 `(B, R, HQ, Dk)`; query head i reads KV head i // (HQ // HKV).
        k, v: `(B, R, HKV, Dk)` and `(B, R, HKV, Dv)` of q's dtype. Channels are contiguous, other strides multiples
            of 8 elements, as in slices of one projection.
        sm_scale: factor on the logits, above 0, default Dk ** -0.5.
        counts: int32 `(B,)`, rows of each request that are real (the first ones), default all R. The others give
            zeros, and what q, k and v hold there does not matter.
        prefix: `(k, v, lengths)` with rows that come before the chunk: `(B, HKV, T, Dk)` and `(B, HKV, T, Dv)` of q's
            dtype, int32 `(B,)`. Row r of request b stands at position lengths[b] + r; lengths are at most T.
        out: contiguous `(B, R, HQ, Dv)`, fp16, bf16 or fp32; allocated in q's dtype if not given.
        lse: fp32 `(B, R, HQ)`, receives the base-2 logarithm of each row's softmax sum, -inf for rows that are not
            real. The result is then a partial one: sinks are left to whoever merges it.

    Returns:
        `out`. Nothing waits for the device, so the call can be captured in a CUDA graph.

    Raises:
        ValueError: a shape, dtype or stride that does not fit.
    """
    batch, rows, q_heads, dim_k = check_prefill(q, k, v, counts, prefix, variant)
    heads, dim_v = k.shape[2], v.shape[3]
    scale = dim_k**-0.5 if sm_scale is None else sm_scale
    if not scale > 0:
        raise ValueError(f"sm_scale is {scale}, expected a number above 0")
    if out is None:
        out = torch.empty((batch, rows, q_heads, dim_v), dtype=q.dtype, device=q.device)
    _check("out", out, (batch, rows, q_heads, dim_v), (torch.float16, torch.bfloat16, torch.float32))
    if lse is not None:
        _check("lse", lse, (batch, rows, q_heads), (torch.float32,))
    if not out.numel():
        return out
    group = q_heads // heads
    config = config or default_prefill_config(dim_v, rows * group, capability_of(q.device))
    tiles = triton.cdiv(rows * group, config.block_rows)
    splits = 1
    if prefix is not None and lse is None:
        splits = prefix_splits(tiles * heads * batch, prefix[0].shape[2], config.block_keys, q.device)
    parts, part_lse = out, lse
    if splits > 1:
        parts = q.new_empty((splits, *out.shape), dtype=torch.float32)
        part_lse = q.new_empty((splits, *out.shape[:3]), dtype=torch.float32)
    args, constants, options = launch_arguments(
        q, k, v, scale, variant, counts, prefix, parts, part_lse, config, splits
    )
    prefill_kernel[(tiles * splits, heads, batch)](*args, **constants, **options)
    if part_lse is not None and lse is None:
        _merge(parts, part_lse, out, variant.sinks)
    return out


def prefix_splits(programs: int, prefix_rows: int, block_keys: int, device: torch.device) -> int:
    """Parts into which a prefix is cut so that `programs` programs become enough for the device.

    A power of two, of which few kernels are compiled; each part has some tiles, or merging costs more than it gives.
    """
    wanted = INTERPRETED_PROGRAMS
    if device.type == "cuda":
        wanted = torch.cuda.get_device_properties(device).multi_processor_count
    most = min(MOST_SPLITS, max(1, prefix_rows // (LEAST_TILES * block_keys)), max(1, wanted // programs))
    return 1 << (most.bit_length() - 1)


def _merge(parts: Tensor, lse: Tensor, out: Tensor, sinks: Tensor | None) -> None:
    """Merge `parts` `(S, B, R, HQ, Dv)` with sums `lse` `(S, B, R, HQ)` into `out`."""
    splits, dim_v = parts.shape[0], out.shape[3]
    rows = lse[0].numel()
    sizes = {"WIDE": triton.next_power_of_2(dim_v), "SPLITS": splits, "PADDED": triton.next_power_of_2(splits)}
    merge_kernel[(rows,)](parts, lse, out, sinks, rows, HQ=out.shape[2], DV=dim_v, **sizes, num_warps=1)


def prefill_and_write(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cache: Cache,
    *,
    sm_scale: float | None = None,
    variant: Variant = PLAIN,
    counts: Tensor | None = None,
    max_length: int | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """First prefill of requests whose cache is empty: attention on the original 16-bit rows, which are then quantised.

    What later steps read has the format's error; this step's output has not. A request that has rows already needs
    `prefix_attention`, then `append`.

    Args:
        cache: receives the rows behind `cache.lengths`, which must be 0 and are advanced.
        max_length: as in `append`.
        q, k, v, sm_scale, variant, counts, out: as in `prefill`.

    Returns:
        `out` `(B, R, HQ, Dv)`.
    """
    out = prefill(q, k, v, sm_scale=sm_scale, variant=variant, counts=counts, out=out)
    append(cache, k, v, counts=counts, max_length=max_length)
    return out


def launch_arguments(
    q: Tensor, k: Tensor, v: Tensor, scale: float, variant: Variant, counts: Tensor | None, prefix: Prefix | None,
    out: Tensor, lse: Tensor | None, config: PrefillConfig, splits: int = 1,
) -> tuple[list[Any], dict[str, Any], dict[str, int]]:  # fmt: skip
    """(arguments, constexprs, compile options) of the kernel; also what the ahead-of-time check compiles."""
    dim_k, dim_v = q.shape[3], v.shape[3]
    prefix_k, prefix_v, lengths = prefix if prefix is not None else (None, None, None)
    cap = variant.softcap
    inner, factor = (1.0, scale * LOG2_E) if cap is None else (scale / cap, cap * LOG2_E)
    args = [
        q, k, v, prefix_k, prefix_v, out, lse, lengths, counts, variant.sinks if lse is None else None,
        *_strides(q, (0, 1, 2)), *_strides(k, (0, 1, 2)), *_strides(v, (0, 1, 2)),
        *_strides(prefix_k, (0, 2, 1)), *_strides(prefix_v, (0, 2, 1)),
        q.shape[1], 0 if prefix_k is None else prefix_k.shape[2], inner, factor, variant.window or 0,
    ]  # fmt: skip
    k_first, k_rest = row_parts(dim_k)
    v_first, v_rest = row_parts(dim_v)
    constants = {
        "G": q.shape[2] // k.shape[2], "DK": dim_k, "DV": dim_v,
        "K_FIRST": k_first, "K_REST": k_rest, "V_FIRST": v_first, "V_REST": v_rest,
        "BM": config.block_rows, "BN": config.block_keys, "STAGES": config.num_stages,
        "SOFTCAP": cap is not None, "WINDOW": variant.window is not None, "SPLITS": splits,
    }  # fmt: skip
    return args, constants, {"num_warps": config.num_warps, "num_stages": config.num_stages}


def row_parts(dim: int) -> tuple[int, int]:
    """Largest power of two within `dim`, and the rest padded to one of at least 16, or 0: 192 -> 128, 64."""
    first = 1 << (dim.bit_length() - 1)
    return first, max(16, triton.next_power_of_2(dim - first)) if dim > first else 0


def check_prefill(
    q: Tensor, k: Tensor, v: Tensor, counts: Tensor | None, prefix: Prefix | None, variant: Variant
) -> tuple[int, int, int, int]:
    """The door; returns (B, R, HQ, Dk).

    Raises:
        ValueError: naming what differs.
    """
    if q.dim() != 4 or k.dim() != 4 or v.dim() != 4 or not k.shape[2] or q.shape[2] % k.shape[2]:
        shapes = [tuple(x.shape) for x in (q, k, v)]
        raise ValueError(f"q, k, v are {shapes}, expected (B, R, HQ, Dk), (B, R, HKV, Dk), (B, R, HKV, Dv)")
    batch, rows, q_heads, dim_k = q.shape
    heads, dim_v = k.shape[2], v.shape[3]
    if not all(LEAST_DIM <= d <= LARGEST_DIM and d % STRIDE_UNIT == 0 for d in (dim_k, dim_v)):
        raise ValueError(f"head dimensions {dim_k} and {dim_v}: multiples of 8 from {LEAST_DIM} to {LARGEST_DIM} fit")
    tensors = {"q": (q, q.shape), "k": (k, (batch, rows, heads, dim_k)), "v": (v, (batch, rows, heads, dim_v))}
    if prefix is not None:
        tokens = prefix[0].shape[2] if prefix[0].dim() == 4 else 0
        tensors["prefix k"] = (prefix[0], (batch, heads, tokens, dim_k))
        tensors["prefix v"] = (prefix[1], (batch, heads, tokens, dim_v))
        _check("prefix lengths", prefix[2], (batch,), (torch.int32,))
    for name, (x, shape) in tensors.items():
        if tuple(x.shape) != tuple(shape) or x.dtype != q.dtype or x.device != q.device:
            raise ValueError(f"{name} is {tuple(x.shape)} {x.dtype}, expected {tuple(shape)} {q.dtype} on {q.device}")
        if x.stride(-1) != 1 or any(s % STRIDE_UNIT for s, n in zip(x.stride()[:3], shape, strict=False) if n > 1):
            raise ValueError(f"{name} has strides {x.stride()}, expected 1 for channels and multiples of {STRIDE_UNIT}")
        if x.data_ptr() % (2 * STRIDE_UNIT):
            raise ValueError(f"{name} does not start at a multiple of {2 * STRIDE_UNIT} bytes")
    if q.dtype not in (torch.float16, torch.bfloat16):
        raise ValueError(f"q must be fp16 or bf16, got {q.dtype}")
    if counts is not None:
        _check("counts", counts, (batch,), (torch.int32,))
    if variant.sinks is not None:
        _check("sinks", variant.sinks, (q_heads,), (torch.float32,))
    return batch, rows, q_heads, dim_k


def _check(name: str, x: Tensor, shape: tuple[int, ...], dtypes: tuple[torch.dtype, ...]) -> None:
    if tuple(x.shape) != shape or x.dtype not in dtypes or not x.is_contiguous():
        raise ValueError(f"{name} is {tuple(x.shape)} {x.dtype}, expected contiguous {shape} of {dtypes}")


def _strides(x: Tensor | None, axes: tuple[int, int, int]) -> list[int]:
    """Strides of batch, row and head in units of 8 elements."""
    return [0, 0, 0] if x is None else [x.stride(axis) // STRIDE_UNIT for axis in axes]
