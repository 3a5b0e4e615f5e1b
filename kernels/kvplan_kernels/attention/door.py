"""The door of the attention launchers: what a call must bring, checked before anything is launched."""

from __future__ import annotations

import torch

from kvplan.errors import UnsupportedError
from kvplan.formats.layout import Layout
from kvplan_kernels.attention.by_channel import COLUMNS
from kvplan_kernels.attention.config import DecodeConfig, part_tokens
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
                "kernels read fp16, bf16, fp8, int8, int4 and int2, by any granularity",
            )
        if (view.by_channel and view.group % RECENT_TOKENS.value) or view.recent_storage == "fp32":
            raise UnsupportedError(
                f"{role} format {tensor.spelling} has no decode kernel: a matrix step takes 16 tokens of one group, "
                "and recent rows of 16 bit",
                "use channel/16, channel/32 or another multiple of 16, with a 16-bit model",
            )


def check_query(q: torch.Tensor, cache: Cache) -> int:
    """The door for queries, pages, table and lengths; returns the query heads per KV head.

    Raises:
        ValueError: naming what differs.
    """
    cache.check()
    requests, dim, heads = cache.num_sequences, cache.layout.view("k").dim, cache.layout.heads
    if q.dim() != 3 or q.shape[0] != requests or q.shape[2] != dim or q.shape[1] % heads or not q.shape[1]:
        raise ValueError(f"q is {tuple(q.shape)}, expected ({requests}, multiple of {heads}, {dim})")
    if q.dtype not in (torch.float16, torch.bfloat16) or not q.is_contiguous():
        raise ValueError(f"q must be contiguous fp16 or bf16, got {q.dtype} with strides {q.stride()}")
    for name, tensor, dims in (("page_table", cache.page_table, 2), ("lengths", cache.lengths, 1)):
        good = tensor.dtype == torch.int32 and tensor.dim() == dims and tensor.is_contiguous()
        if not good or tensor.shape[0] != requests or tensor.device != q.device:
            raise ValueError(f"{name} must be contiguous int32 with {requests} rows on {q.device}, got {tensor.dtype}")
    return q.shape[1] // heads


def check_memory(
    cache: Cache,
    config: DecodeConfig,
    out: torch.Tensor,
    out_shape: tuple[int, int, int],
    work: torch.Tensor | None,
    workspace: Workspace,
) -> None:
    """The door for what the call writes, and for its tile.

    Raises:
        ValueError: naming what differs.
    """
    if cache.page_size % config.block_tokens:
        raise ValueError(f"tiles of {config.block_tokens} tokens straddle pages of {cache.page_size}")
    parts = config.block_tokens // part_tokens(cache.layout, config.block_tokens)
    if parts > COLUMNS.value:
        raise ValueError(f"tiles of {config.block_tokens} tokens have {parts} groups, at most {COLUMNS.value}")
    if tuple(out.shape) != out_shape or not out.is_contiguous():
        raise ValueError(f"out is {tuple(out.shape)}, expected {out_shape}, contiguous")
    requests, heads, dim_v = out_shape
    kv_heads = cache.layout.heads
    slots = num_slots(config.num_programs(out.device), requests, kv_heads)
    wanted = (slots, heads // kv_heads, dim_v)
    if tuple(workspace.part_out.shape) != wanted or workspace.buffer.device != out.device:
        raise ValueError(f"workspace is for {tuple(workspace.part_out.shape)}, this call needs {wanted}")
    if work is not None and (work.shape != (requests + 1,) or work.dtype != torch.int32):
        raise ValueError(f"work is {tuple(work.shape)} {work.dtype}, expected ({requests + 1},) int32")
