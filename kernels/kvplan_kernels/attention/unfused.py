"""The unfused baseline: dequantise every page in use to a dense 16-bit copy in memory, then torch's attention on it.

Loads codes and scales through the page table and waiting rows from the residual, stores `(B, HKV, T, D)`. It exists so
that the benefit of fusion is measured; its scratch memory is `Layout.dense_bytes`.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvplan.formats.layout import Layout
from kvplan_kernels.cache import Cache
from kvplan_kernels.codecs.block_tiles import e2m1_value, full_scale
from kvplan_kernels.codecs.convert import decode_code, field_of, round_to, to_fp32
from kvplan_kernels.codecs.limits import check_kernel, grid_of
from kvplan_kernels.codecs.rotation import rotate
from kvplan_kernels.codecs.rows import code_offset, meta_offset
from kvplan_kernels.codecs.split import packed_tokens
from kvplan_kernels.store.door import code_bits, meta_bits

# Tokens per program, and elements of a row padded: more of them spill registers, and such a kernel for 576 channels
# gave wrong rows on an H200.
TILE_TOKENS, TILE_ELEMENTS = 32, 8192

_NAMES = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}


@triton.jit
def _dequantise_kernel(
    p_k_out, p_v_out, p_k_codes, p_v_codes, p_k_meta, p_v_meta, p_k_scale, p_v_scale, p_k_zero, p_v_zero,
    p_k_high, p_v_high, p_k_ring, p_v_ring, p_table, p_lengths, num_tokens, max_pages,
    K: tl.constexpr, V: tl.constexpr, KG: tl.constexpr, VG: tl.constexpr,
    HKV: tl.constexpr, PAGE: tl.constexpr, TILE: tl.constexpr, OUT: tl.constexpr,
):  # fmt: skip
    i_side = tl.program_id(1) // HKV
    i_head = tl.program_id(1) % HKV
    i_seq = tl.program_id(2).to(tl.int64)
    # (TILE,)
    o_token = tl.program_id(0) * TILE + tl.arange(0, TILE)
    m_out = o_token < num_tokens
    length = tl.load(p_lengths + i_seq)
    m_page = m_out & (o_token < tl.maximum(packed_tokens(length, K), packed_tokens(length, V)))
    page = tl.load(p_table + i_seq * max_pages + o_token // PAGE, mask=m_page, other=0).to(tl.int64)
    o_row = (page * HKV + i_head) * PAGE + o_token % PAGE
    o_out = (i_seq * HKV + i_head) * num_tokens + o_token
    if i_side == 0:
        m_token = m_page & (o_token < packed_tokens(length, K)) if K.recent else m_page
        _read_rows(p_k_out, o_out, m_out, o_row, m_token, i_head, p_k_codes, p_k_high, p_k_meta, p_k_scale, p_k_zero,
                   K, KG, OUT, PAGE)  # fmt: skip
        _read_ring(p_k_out, o_out, o_token, m_out, length, p_k_ring, i_seq * HKV + i_head, K, OUT)
    else:
        m_token = m_page & (o_token < packed_tokens(length, V)) if V.recent else m_page
        _read_rows(p_v_out, o_out, m_out, o_row, m_token, i_head, p_v_codes, p_v_high, p_v_meta, p_v_scale, p_v_zero,
                   V, VG, OUT, PAGE)  # fmt: skip
        _read_ring(p_v_out, o_out, o_token, m_out, length, p_v_ring, i_seq * HKV + i_head, V, OUT)


@triton.jit
def _read_ring(p_out, o_out, o_token, m_out, length, p_ring, i_pair, L: tl.constexpr, OUT: tl.constexpr):
    """Rows of one tile that wait in the residual, over the zeros that `_read_rows` left for them."""
    if L.recent:
        o_channel = tl.arange(0, triton.next_power_of_2(L.dim))
        m_row = m_out & (o_token < length) & (o_token >= packed_tokens(length, L))
        m = m_row[:, None] & (o_channel < L.dim)[None, :]
        o_slot = i_pair * L.recent + o_token % L.recent
        x = tl.load(p_ring + o_slot[:, None] * L.dim + o_channel[None, :], mask=m, other=0.0)
        if L.recent_storage != OUT:
            x = round_to(to_fp32(x), OUT)
        # The zeros were stored by other threads of this program.
        tl.debug_barrier()
        tl.store(p_out + o_out[:, None] * L.dim + o_channel[None, :], x, mask=m)


@triton.jit
def _read_rows(
    p_out, o_out, m_out, o_row, m_token, i_head, p_codes, p_high, p_meta, p_scale, p_zero,
    L: tl.constexpr, G: tl.constexpr, OUT: tl.constexpr, PAGE: tl.constexpr,
):  # fmt: skip
    """Decode the rows of one tile of one head; rows beyond the length become zeros, never stale bits."""
    GROUPS: tl.constexpr = G.groups
    WIDTH: tl.constexpr = G.width
    WIDE: tl.constexpr = G.tile
    DIM: tl.constexpr = L.dim
    PLANAR: tl.constexpr = L.planar
    if PLANAR:
        _read_words(p_out, o_out, m_out, o_row, m_token, i_head, p_codes, p_high, p_meta, p_scale, p_zero,
                    L, G, OUT, PAGE)  # fmt: skip
    else:
        for i_group in tl.static_range(GROUPS):
            o_channel = i_group * WIDTH + tl.arange(0, WIDE)
            m_channel = tl.arange(0, WIDE) < WIDTH
            # (TILE, WIDE)
            m = m_token[:, None] & m_channel[None, :]
            x = tl.load(p_codes + code_offset(o_row, L, PAGE)[:, None] + o_channel[None, :], mask=m, other=0)
            if L.quantised:
                x = decode_code(x, L)
                x = _value(x, o_channel, m_channel, o_row, m_token, i_head, p_meta, p_scale, p_zero, i_group, L, PAGE)
                x = round_to(tl.where(m, x, 0.0), OUT)
            elif L.number != OUT:
                x = round_to(to_fp32(x), OUT)
            # 64-bit: the dense copy of a large batch passes 2^31 elements.
            tl.store(p_out + o_out[:, None] * DIM + o_channel[None, :], x, mask=m_out[:, None] & m_channel[None, :])


@triton.jit
def _read_words(
    p_out, o_out, m_out, o_row, m_token, i_head, p_codes, p_high, p_meta, p_scale, p_zero,
    L: tl.constexpr, G: tl.constexpr, OUT: tl.constexpr, PAGE: tl.constexpr,
):  # fmt: skip
    """`_read_rows` of codes below 8 bits: one load of words, then one field after the other."""
    WORDS: tl.constexpr = L.words
    STRIPES: tl.constexpr = L.stripes
    STRIPE: tl.constexpr = L.stripe_words
    FIELDS: tl.constexpr = L.fields_per_word
    WIDTH: tl.constexpr = G.width
    o_word = tl.arange(0, triton.next_power_of_2(STRIPE))
    m_word = o_word < STRIPE
    # (TILE, STRIPE padded)
    m = m_token[:, None] & m_word[None, :]
    for i_stripe in tl.static_range(STRIPES):
        o_at = i_stripe * STRIPE + o_word
        words = tl.load(p_codes + code_offset(o_row, L, PAGE)[:, None] + o_at[None, :], mask=m, other=0)
        if L.two_parts:
            # Third bit of field j of word w: bit 2j, or 2j + 1 in the upper half, of word w modulo `high_words`.
            p_word = p_high + (o_row * L.high_words)[:, None] + (o_at % L.high_words)[None, :]
            high = tl.load(p_word, mask=m, other=0).to(tl.int32) >> (o_at // L.high_words)[None, :]
        for j in tl.static_range(FIELDS):
            o_channel = j * WORDS + o_at
            code = field_of(words, j, L.field_bits)
            if L.two_parts:
                code |= ((high >> (2 * j)) & 1) << 2
            if L.is_int:
                x = (code - G.excess).to(tl.float32)
            else:
                x = e2m1_value(code)
            i_group = (j * WORDS + i_stripe * STRIPE) // WIDTH
            x = _value(x, o_channel, m_word, o_row, m_token, i_head, p_meta, p_scale, p_zero, i_group, L, PAGE)
            x = round_to(tl.where(m, x, 0.0), OUT)
            tl.store(p_out + o_out[:, None] * L.dim + o_channel[None, :], x, mask=m_out[:, None] & m_word[None, :])


@triton.jit
def _value(
    code, o_channel, m_channel, o_row, m_token, i_head, p_meta, p_scale, p_zero, i_group,
    L: tl.constexpr, PAGE: tl.constexpr,
):  # fmt: skip
    """scale * code + zero of fp32 codes (TILE, channels), all of one group of channels."""
    if L.by_channel:
        # A group never straddles a page, so its slot is a row's over the group; (TILE, channels).
        p_slot = p_meta + (o_row // L.group * L.meta_stride)[:, None] + o_channel[None, :]
        m = m_token[:, None] & m_channel[None, :]
        x = code * to_fp32(tl.load(p_slot + L.scale_at, mask=m, other=0.0))
        if L.asym:
            x = x + to_fp32(tl.load(p_slot + L.zero_at, mask=m, other=0.0))
    elif L.has_row_scale:
        p_row = p_meta + meta_offset(o_row, L, PAGE) + i_group
        if L.meta_bits == 8:
            x = code * full_scale(tl.load(p_row + L.scale_at, mask=m_token, other=0), p_scale, L)[:, None]
        else:
            x = code * to_fp32(tl.load(p_row + L.scale_at, mask=m_token, other=0.0))[:, None]
        if L.asym:
            x = x + to_fp32(tl.load(p_row + L.zero_at, mask=m_token, other=0.0))[:, None]
    else:
        ITEMS: tl.constexpr = L.static_items
        o_static = (o_channel if ITEMS > 1 else o_channel * 0) + (i_head * ITEMS if L.static_per_head else 0)
        x = code * to_fp32(tl.load(p_scale + o_static, mask=m_channel, other=0.0))[None, :]
        if L.asym:
            x = x + to_fp32(tl.load(p_zero + o_static, mask=m_channel, other=0.0))[None, :]
    return x


def dequantise(cache: Cache, k_out: Tensor, v_out: Tensor) -> None:
    """Write the first T rows of every sequence as dense 16-bit values; rows beyond a sequence's length are zeros.

    Rows of `rot` formats stay rotated, as they are stored: it is cheaper to turn the query and the output.

    Args:
        k_out, v_out: contiguous `(B, HKV, T, Dk)` and `(B, HKV, T, Dv)`, fp16, bf16 or fp32, of one dtype.

    Raises:
        UnsupportedError: a format without this kernel.
        ValueError: outputs that do not fit the cache.
    """
    check_kernel(cache.layout)
    cache.check()
    batch, heads, tokens = cache.num_sequences, cache.layout.heads, k_out.shape[2]
    for role, out in (("k", k_out), ("v", v_out)):
        want = (batch, heads, tokens, cache.layout.tensor(role).dim)
        if tuple(out.shape) != want or out.dtype != k_out.dtype or out.dtype not in _NAMES or not out.is_contiguous():
            raise ValueError(f"{role}: want contiguous {want} of 16 bit, got {tuple(out.shape)} {out.dtype}")
    if tokens > cache.max_tokens:
        raise ValueError(f"{tokens} tokens are more than the cache holds")
    args, constants, num_warps = launch_arguments(cache, k_out, v_out)
    grid = (triton.cdiv(tokens, constants["TILE"]), 2 * heads, batch)
    _dequantise_kernel[grid](*args, **constants, num_warps=num_warps)


def launch_arguments(cache: Cache, k_out: Tensor, v_out: Tensor) -> tuple[list[Any], dict[str, Any], int]:
    """(arguments, constexprs, num_warps) of the kernel; also what the ahead-of-time compile tests compile."""
    widest = max(triton.next_power_of_2(out.shape[3]) for out in (k_out, v_out))
    tile = min(TILE_TOKENS, max(1, TILE_ELEMENTS // widest), triton.next_power_of_2(k_out.shape[2]))
    args = [
        k_out, v_out, code_bits(cache, "k"), code_bits(cache, "v"), meta_bits(cache, "k"), meta_bits(cache, "v"),
        cache.layer_scale("k"), cache.layer_scale("v"), cache.static("k", "zero"), cache.static("v", "zero"),
        cache.high("k"), cache.high("v"),
        cache.residual("k"), cache.residual("v"), cache.page_table, cache.lengths,
        k_out.shape[2], cache.page_table.shape[1],
    ]  # fmt: skip
    k_view, v_view = cache.layout.view("k"), cache.layout.view("v")
    constants = {"K": k_view, "V": v_view, "KG": grid_of(k_view), "VG": grid_of(v_view)}
    constants |= {"HKV": cache.layout.heads, "PAGE": cache.page_size, "TILE": tile, "OUT": _NAMES[k_out.dtype]}
    return args, constants, 4


def unfused_decode(
    q: Tensor,
    cache: Cache,
    sm_scale: float,
    *,
    num_tokens: int | None = None,
    uniform: bool = False,
    scratch: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Decode attention by dequantising everything first.

    Args:
        q: `(B, HQ, Dk)`, fp16 or bf16.
        num_tokens: upper bound of the lengths, default all that the cache holds.
        uniform: the caller knows that every length equals `num_tokens`; no mask is built, so torch may take its flash
            path.
        scratch: dense K and V to reuse, as in `dequantise`; allocated when not given.

    Returns:
        `(B, HQ, Dv)` in q's dtype; zeros where the length is 0.
    """
    layout, batch = cache.layout, cache.num_sequences
    tokens = cache.max_tokens if num_tokens is None else num_tokens
    k, v = scratch if scratch is not None else _scratch(layout, batch, tokens, q)
    dequantise(cache, k, v)
    if layout.view("k").rot:
        q = rotate(q, torch.empty_like(q))
    out = dense_decode(q, k, v, None if uniform else cache.lengths, sm_scale)
    return rotate(out, torch.empty_like(out), back=True) if layout.view("v").rot else out


def dense_decode(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor | None, sm_scale: float) -> Tensor:
    """Torch's attention on dense K `(B, HKV, T, Dk)` and V: also the 16-bit baseline that is not ours.

    The query heads of a KV head become the query rows of one batched attention, which reads K and V once per group.

    Args:
        lengths: rows of each request, or None when all T count.
    """
    batch, heads, tokens, _ = k.shape
    rows = q.view(batch, heads, q.shape[1] // heads, q.shape[2])
    mask = None
    if lengths is not None:
        mask = (torch.arange(tokens, device=q.device) < lengths[:, None])[:, None, None, :]
    out = torch.nn.functional.scaled_dot_product_attention(rows, k, v, attn_mask=mask, scale=sm_scale)
    out = out.reshape(batch, q.shape[1], v.shape[-1])
    return out if lengths is None else torch.where((lengths > 0)[:, None, None], out, 0.0)


def _scratch(layout: Layout, batch: int, tokens: int, like: Tensor) -> tuple[Tensor, Tensor]:
    shape = (batch, layout.heads, tokens)
    return like.new_empty((*shape, layout.tensor("k").dim)), like.new_empty((*shape, layout.tensor("v").dim))
