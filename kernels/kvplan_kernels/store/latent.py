"""Quantise and append MLA latent rows: one to many tokens, at any offset.

Loads rows `(B, T, nope + rope)` of fp16, bf16 or fp32; stores slots where the page table says. One program per (tile of
tokens, sequence). Codes and scales are bit-exact with the reference codec: the scale is divided and kept in fp32,
divisions are correctly rounded, halves go to even.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvplan.formats.ds_mla import latent_view
from kvplan_kernels.cache import Cache
from kvplan_kernels.codecs.convert import round_code, round_to, to_fp32
from kvplan_kernels.codecs.ds_mla import latent_grid, slot_views
from kvplan_kernels.store.door import check_rows, check_vector
from kvplan_kernels.store.encode import to_number

# Tokens per program of a bulk write.
TILE_TOKENS = 16


@triton.jit
def _append_latent_kernel(
    p_x, p_codes, p_rope, p_scale, p_table, p_lengths, p_counts, stride_b, stride_t, num_tokens, max_pages,
    L: tl.constexpr, G: tl.constexpr, PAGE: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    PARTS: tl.constexpr = L.parts
    PART: tl.constexpr = L.part
    ROPE: tl.constexpr = L.rope
    STORAGE: tl.constexpr = L.number
    ROPE_STORAGE: tl.constexpr = L.rope_storage
    CODE_BYTES: tl.constexpr = 1 if L.quantised else 2
    i_seq = tl.program_id(1).to(tl.int64)
    count = num_tokens
    if p_counts is not None:
        count = tl.minimum(tl.load(p_counts + i_seq), num_tokens)
    # (TILE,)
    o_token = tl.program_id(0) * TILE + tl.arange(0, TILE)
    position = tl.load(p_lengths + i_seq) + o_token
    m_token = (o_token < count) & (position < max_pages * PAGE)
    page = tl.load(p_table + i_seq * max_pages + position // PAGE, mask=m_token, other=0).to(tl.int64)
    o_slot = page * PAGE + position % PAGE
    p_row = p_x + i_seq * stride_b + o_token.to(tl.int64) * stride_t
    for i in tl.static_range(PARTS):
        o_channel = i * PART + tl.arange(0, PART)
        # (TILE, PART)
        x = tl.load(p_row[:, None] + o_channel[None, :], mask=m_token[:, None], other=0.0)
        if L.quantised:
            x = to_number(x)
            scale = tl.div_rn(tl.max(tl.abs(x), 1), tl.full([TILE], G.high, tl.float32))
            scale = tl.minimum(tl.maximum(scale, G.scale_min), G.scale_max)
            tl.store(p_scale + o_slot * (L.slot_bytes // 4) + L.scale_at // 4 + i, scale, mask=m_token)
            x = round_code(tl.div_rn(x, tl.broadcast_to(scale[:, None], x.shape)), G)
        elif p_codes.dtype.element_ty != x.dtype:
            x = round_to(to_fp32(x), STORAGE)
        p_out = p_codes + (o_slot * (L.slot_bytes // CODE_BYTES))[:, None] + o_channel[None, :]
        tl.store(p_out, x, mask=m_token[:, None])
    o_channel = tl.arange(0, ROPE)
    x = tl.load(p_row[:, None] + L.nope + o_channel[None, :], mask=m_token[:, None], other=0.0)
    if p_rope.dtype.element_ty != x.dtype:
        x = round_to(to_fp32(x), ROPE_STORAGE)
    p_out = p_rope + (o_slot * (L.slot_bytes // 2) + L.rope_at // 2)[:, None] + o_channel[None, :]
    tl.store(p_out, x, mask=m_token[:, None])


def append_latent(cache: Cache, latent: Tensor, *, counts: Tensor | None = None, max_length: int | None = None) -> None:
    """Quantise new latent rows into the cache behind each sequence's stored tokens, and advance `cache.lengths`.

    Nothing synchronises with the host, so the call can be captured in a CUDA graph.

    Args:
        latent: `(B, T, nope + rope)`, fp16, bf16 or fp32, channels contiguous; the rope part is already rotated.
        counts: int32 `(B,)`, rows of each sequence that are real (the first ones); default all T.
        max_length: upper bound of `cache.lengths` after the write, refused if the cache cannot hold it. Without it only
            T is checked, and rows beyond `cache.max_tokens` are dropped on the device.

    Raises:
        UnsupportedError: no latent, or a format without a kernel.
        ValueError: shapes, dtypes, strides or capacity that do not fit.
    """
    view = latent_view(cache.layout)
    cache.check()
    batch = cache.num_sequences
    if latent.dim() != 3 or (latent.shape[0], latent.shape[2]) != (batch, view.dim):
        raise ValueError(f"latent: want ({batch}, T, {view.dim}), got {tuple(latent.shape)}")
    check_rows("latent", latent)
    tokens = latent.shape[1]
    need = tokens if max_length is None and counts is None else max_length or 0
    if need > cache.max_tokens:
        raise ValueError(f"{need} tokens do not fit the {cache.max_tokens} that the cache holds")
    check_vector("page_table", cache.page_table, torch.int32, (batch, cache.page_table.shape[1]))
    check_vector("lengths", cache.lengths, torch.int32, (batch,))
    check_vector("counts", counts, torch.int32, (batch,))
    if tokens == 0 or batch == 0:
        return
    args, constants, num_warps = launch_arguments(cache, latent, counts)
    _append_latent_kernel[(triton.cdiv(tokens, constants["TILE"]), batch)](*args, **constants, num_warps=num_warps)
    cache.lengths.add_(tokens if counts is None else counts.clamp(0, tokens))
    cache.lengths.clamp_(max=cache.max_tokens)


def launch_arguments(cache: Cache, latent: Tensor, counts: Tensor | None) -> tuple[list[Any], dict[str, Any], int]:
    """(arguments, constexprs, num_warps) of the kernel; also what the ahead-of-time compile tests compile."""
    view = latent_view(cache.layout)
    codes, rope, scales = slot_views(cache)
    if view.quantised:
        codes = codes.view(torch.int8)
    tile = min(TILE_TOKENS, triton.next_power_of_2(latent.shape[1]))
    args = [
        latent, codes, rope, scales, cache.page_table, cache.lengths, counts, *latent.stride()[:2], latent.shape[1],
        cache.page_table.shape[1],
    ]  # fmt: skip
    grid = latent_grid(view) if view.quantised else None
    constants = {"L": view, "G": grid, "PAGE": cache.page_size, "TILE": tile}
    return args, constants, 4 if tile > 4 else 1
