"""The unfused baseline of a latent: dequantise all pages in use to dense 16-bit rows, then torch's attention on them.

Loads slots through the page table, stores `(B, T, nope + rope)`. It exists so that the benefit of fusion is measured;
its own scratch memory is `latent_scratch_bytes`. Torch has no flash path for rows this wide: it also keeps all scores.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvplan.formats.ds_mla import latent_view
from kvplan.formats.layout import Layout
from kvplan_kernels.attention.unfused import dense_decode
from kvplan_kernels.cache import Cache
from kvplan_kernels.codecs.convert import decode_code, round_to, to_fp32
from kvplan_kernels.codecs.ds_mla import slot_views

# Tokens per program.
TILE_TOKENS = 16

_NAMES = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}


@triton.jit
def _dequantise_latent_kernel(
    p_out, p_codes, p_rope, p_scale, p_table, p_lengths, num_tokens, max_pages,
    L: tl.constexpr, PAGE: tl.constexpr, TILE: tl.constexpr, OUT: tl.constexpr,
):  # fmt: skip
    PARTS: tl.constexpr = L.parts
    PART: tl.constexpr = L.part
    ROPE: tl.constexpr = L.rope
    CODE_BYTES: tl.constexpr = 1 if L.quantised else 2
    i_seq = tl.program_id(1).to(tl.int64)
    # (TILE,)
    o_token = tl.program_id(0) * TILE + tl.arange(0, TILE)
    m_out = (o_token < num_tokens)[:, None]
    m_token = o_token < tl.minimum(tl.load(p_lengths + i_seq), num_tokens)
    page = tl.load(p_table + i_seq * max_pages + o_token // PAGE, mask=m_token, other=0).to(tl.int64)
    o_slot = page * PAGE + o_token % PAGE
    p_row = p_out + ((i_seq * num_tokens + o_token) * L.dim)[:, None]
    for i in tl.static_range(PARTS):
        o_channel = i * PART + tl.arange(0, PART)
        # (TILE, PART); rows beyond the length become zeros, never stale bits.
        p_in = p_codes + (o_slot * (L.slot_bytes // CODE_BYTES))[:, None] + o_channel[None, :]
        x = tl.load(p_in, mask=m_token[:, None], other=0)
        if L.quantised:
            scale = tl.load(p_scale + o_slot * (L.slot_bytes // 4) + L.scale_at // 4 + i, mask=m_token, other=0.0)
            x = decode_code(x, L) * scale[:, None]
        else:
            x = to_fp32(x)
        tl.store(p_row + o_channel[None, :], round_to(x, OUT), mask=m_out)
    o_channel = tl.arange(0, ROPE)
    p_in = p_rope + (o_slot * (L.slot_bytes // 2) + L.rope_at // 2)[:, None] + o_channel[None, :]
    x = to_fp32(tl.load(p_in, mask=m_token[:, None], other=0.0))
    tl.store(p_row + L.nope + o_channel[None, :], round_to(x, OUT), mask=m_out)


def latent_scratch_bytes(layout: Layout, num_sequences: int, num_tokens: int, element_bytes: int = 2) -> int:
    """Bytes of the dense copy that the unfused path writes and reads back."""
    return num_sequences * num_tokens * latent_view(layout).dim * element_bytes


def dequantise_latent(cache: Cache, out: Tensor) -> None:
    """Write the first T rows of every sequence as dense values; rows beyond a sequence's length are zeros.

    Args:
        out: contiguous `(B, T, nope + rope)`, fp16, bf16 or fp32.

    Raises:
        UnsupportedError: no latent, or a format without a kernel.
        ValueError: an output that does not fit the cache.
    """
    view = latent_view(cache.layout)
    cache.check()
    batch = cache.num_sequences
    if out.dim() != 3 or (out.shape[0], out.shape[2]) != (batch, view.dim):
        raise ValueError(f"out: want ({batch}, T, {view.dim}), got {tuple(out.shape)}")
    if out.dtype not in _NAMES or not out.is_contiguous():
        raise ValueError(f"out: want contiguous fp16, bf16 or fp32, got {out.dtype} {out.stride()}")
    if out.shape[1] > cache.max_tokens:
        raise ValueError(f"{out.shape[1]} tokens are more than the cache holds")
    args, constants, num_warps = launch_arguments(cache, out)
    grid = (triton.cdiv(out.shape[1], constants["TILE"]), batch)
    _dequantise_latent_kernel[grid](*args, **constants, num_warps=num_warps)


def launch_arguments(cache: Cache, out: Tensor) -> tuple[list[Any], dict[str, Any], int]:
    """(arguments, constexprs, num_warps) of the kernel; also what the ahead-of-time compile tests compile."""
    view = latent_view(cache.layout)
    codes, rope, scales = slot_views(cache)
    if view.quantised:
        codes = codes.view(torch.int8)
    args = [
        out, codes, rope, scales, cache.page_table, cache.lengths, out.shape[1], cache.page_table.shape[1]
    ]  # fmt: skip
    return args, {"L": view, "PAGE": cache.page_size, "TILE": TILE_TOKENS, "OUT": _NAMES[out.dtype]}, 4


def latent_unfused_decode(
    q: Tensor, cache: Cache, sm_scale: float, *, num_tokens: int | None = None, uniform: bool = False,
    scratch: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Decode attention of one row per request by dequantising everything first.

    Args:
        q: `(B, HQ, nope + rope)`, fp16 or bf16.
        num_tokens: upper bound of the lengths, default all that the cache holds.
        uniform: the caller knows that every length equals `num_tokens`; no mask is built.
        scratch: dense rows to reuse, as in `dequantise_latent`; allocated when not given.

    Returns:
        `(B, HQ, nope)` in q's dtype; zeros where the length is 0.
    """
    view = latent_view(cache.layout)
    tokens = cache.max_tokens if num_tokens is None else num_tokens
    rows = q.new_empty((cache.num_sequences, tokens, view.dim)) if scratch is None else scratch
    dequantise_latent(cache, rows)
    keys = rows[:, None]
    return dense_decode(q, keys, keys[..., : view.nope], None if uniform else cache.lengths, sm_scale)
