"""The door of the attention launchers: what a call must bring, checked before anything is launched."""

from __future__ import annotations

import torch
from torch import Tensor

from kvplan.errors import UnsupportedError
from kvplan.formats.layout import Layout
from kvplan_kernels.attention.by_channel import COLUMNS
from kvplan_kernels.attention.config import DecodeConfig, part_tokens
from kvplan_kernels.attention.mode import Mode
from kvplan_kernels.attention.variant import Variant
from kvplan_kernels.attention.work import RECENT_TOKENS
from kvplan_kernels.attention.workspace import Workspace, num_slots
from kvplan_kernels.cache import Cache
from kvplan_kernels.codecs.grid_tiles import has_tiles


def check_supported(layout: Layout) -> None:
    """Refuse by name what the kernel cannot read yet.

    Raises:
        UnsupportedError: 32-bit rows, numbers without tile functions, groups of tokens that cut a matrix step.
    """
    for role in ("k", "v"):
        tensor, view = layout.tensor(role), layout.view(role)
        if not has_tiles(view):
            raise UnsupportedError(
                f"{role} format {tensor.spelling} has no decode kernel yet",
                "kernels read 16 bit, fp8, int8, int4 and int2 by any granularity; fp4, int3 and rot not by channel/N",
            )
        if (view.by_channel and view.group % RECENT_TOKENS.value) or view.recent_storage == "fp32":
            raise UnsupportedError(
                f"{role} format {tensor.spelling} has no decode kernel: a matrix step takes 16 tokens of one group, "
                "and recent rows of 16 bit",
                "use channel/16, channel/32 or another multiple of 16, with a 16-bit model",
            )


def check_fp8_domain(layout: Layout) -> None:
    """Refuse formats that backends do not multiply in 8 bit.

    Raises:
        UnsupportedError: naming the format.
    """
    for role in ("k", "v"):
        view = layout.view(role)
        if view.number != "fp8_e4m3" or view.granularity not in ("tensor", "head") or view.rot:
            raise UnsupportedError(
                f"{role} format {layout.tensor(role).spelling} has no FP8-domain path",
                "it takes fp8_e4m3 or fp8_e4m3:head for K and V",
            )


def check_query(q: Tensor, cache: Cache) -> tuple[int, int]:
    """The door for queries, pages, table and lengths; returns (query rows, query heads per KV head).

    Raises:
        ValueError: naming what differs.
    """
    cache.check()
    requests, dim, heads = cache.num_sequences, cache.layout.view("k").dim, cache.layout.heads
    shape = tuple(q.shape)
    if q.dim() not in (3, 4) or shape[0] != requests or shape[-1] != dim or shape[-2] % heads or not q.numel():
        raise ValueError(f"q is {shape}, expected ({requests}, [rows,] multiple of {heads}, {dim})")
    check_rows(q, cache)
    return (1 if q.dim() == 3 else shape[1]), shape[-2] // heads


def check_rows(q: Tensor, cache: Cache) -> None:
    """What any query and any page table must be, whatever the cache stores.

    Raises:
        ValueError: naming what differs.
    """
    requests = cache.num_sequences
    if q.dtype not in (torch.float16, torch.bfloat16) or not q.is_contiguous():
        raise ValueError(f"q must be contiguous fp16 or bf16, got {q.dtype} with strides {q.stride()}")
    for name, tensor, dims in (("page_table", cache.page_table, 2), ("lengths", cache.lengths, 1)):
        good = tensor.dtype == torch.int32 and tensor.dim() == dims and tensor.is_contiguous()
        if not good or tensor.shape[0] != requests or tensor.device != q.device:
            raise ValueError(f"{name} must be contiguous int32 with {requests} rows on {q.device}, got {tensor.dtype}")


def check_variant(q: Tensor, variant: Variant, own: tuple[Tensor, Tensor] | None, dim_v: int) -> None:
    """The door for sinks and for a partial result over the rows' own keys.

    Raises:
        ValueError: naming what differs.
    """
    rows = (*q.shape[:-1],) if q.dim() == 4 else (q.shape[0], 1, q.shape[1])
    wanted = {"sinks": (variant.sinks, rows[2:])}
    if own is not None:
        wanted |= {"own out": (own[0], (*rows, dim_v)), "own lse": (own[1], rows)}
    for name, (x, shape) in wanted.items():
        if x is None:
            continue
        if tuple(x.shape) != shape or x.dtype != torch.float32 or not x.is_contiguous() or x.device != q.device:
            raise ValueError(f"{name} must be contiguous fp32 {shape} on {q.device}, got {tuple(x.shape)} {x.dtype}")


def check_memory(
    cache: Cache,
    config: DecodeConfig,
    mode: Mode,
    q: Tensor,
    out: Tensor,
    work: Tensor | None,
    workspace: Workspace,
) -> None:
    """The door for what the call writes, and for its tile.

    Raises:
        ValueError: naming what differs.
    """
    check_scratch(
        cache, config, mode, cache.layout.heads, out, (*q.shape[:-1], cache.layout.view("v").dim), work, workspace
    )
    parts = config.block_tokens // part_tokens(cache.layout, config.block_tokens)
    if parts > COLUMNS.value:
        raise ValueError(f"tiles of {config.block_tokens} tokens have {parts} groups, at most {COLUMNS.value}")
    requests, kv_heads = cache.num_sequences, cache.layout.heads
    view = cache.layout.view("k")
    query = (requests, mode.rows, kv_heads * mode.group, view.dim if view.rot else 0)
    if tuple(workspace.query.shape) != query:
        raise ValueError(f"workspace has room for rotated queries {tuple(workspace.query.shape)}, not {query}")


def check_scratch(
    cache: Cache, config: DecodeConfig, mode: Mode, kv_heads: int, out: Tensor, out_shape: tuple[int, ...],
    work: Tensor | None, workspace: Workspace,
) -> None:  # fmt: skip
    """The tile, the output, the parts of the workspace and the work list of any decode.

    Raises:
        ValueError: naming what differs.
    """
    if cache.page_size % config.block_tokens:
        raise ValueError(f"tiles of {config.block_tokens} tokens straddle pages of {cache.page_size}")
    if tuple(out.shape) != out_shape or not out.is_contiguous():
        raise ValueError(f"out is {tuple(out.shape)}, expected {out_shape}, contiguous")
    requests = cache.num_sequences
    slots = num_slots(config.num_programs(out.device), requests * kv_heads * mode.blocks)
    wanted = (slots, mode.columns, out_shape[-1])
    if tuple(workspace.part_out.shape) != wanted or workspace.buffer.device != out.device:
        raise ValueError(f"workspace is for {tuple(workspace.part_out.shape)}, this call needs {wanted}")
    if work is not None and (work.shape != (requests + 1,) or work.dtype != torch.int32):
        raise ValueError(f"work is {tuple(work.shape)} {work.dtype}, expected ({requests + 1},) int32")
