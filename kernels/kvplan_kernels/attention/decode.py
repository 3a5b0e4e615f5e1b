"""Fused dequantise + decode attention over a paged, quantised KV cache, split over the context.

Loads tiles of BN tokens of one KV head: K and V words `[words, BN]` (tokens on the MMA's M axis, query heads on N), one
32-bit word of metadata per token. Scores are `[BN, HEADS]`, outputs `[words, HEADS]` per plane of channels. Codes are
unpacked to fp16 in registers; scales never touch them: K's go on the scores, V's on the probabilities, static ones on
the softmax scale and the output. Softmax in base 2, probabilities kept times 256 so that fp16 does not lose small ones.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kvplan.errors import UnsupportedError
from kvplan.formats.layout import Layout
from kvplan_kernels.attention.combine import combine
from kvplan_kernels.attention.config import DecodeConfig, default_config, padded_words
from kvplan_kernels.attention.work import SCAN, busy_programs, find_request, tile_starts
from kvplan_kernels.attention.workspace import Workspace
from kvplan_kernels.cache import Cache
from kvplan_kernels.codecs.grid_tiles import (
    centre,
    channels,
    has_tiles,
    load_meta,
    meta_value,
    scale_columns,
    unit_log2,
    unpack,
)
from kvplan_kernels.dialect import LEAST_COLUMNS, cast, dot, has_dependent_launch, loop_bound

LOG2_E = 1.4426950408889634
NO_SCORE = tl.constexpr(-1.0e30)
P_SHIFT = tl.constexpr(8.0)


@triton.jit(do_not_specialize=["sm_scale", "num_requests", "max_pages"])
def decode_kernel(
    Q,
    K_WORDS,
    V_WORDS,
    K_META,
    V_META,
    K_SCALE,
    V_SCALE,
    V_ZERO,
    PART_OUT,
    PART_LSE,
    PAGE_TABLE,
    LENGTHS,
    TILE_STARTS,
    sm_scale,
    num_requests,
    max_pages,
    K: tl.constexpr,
    V: tl.constexpr,
    HKV: tl.constexpr,
    G: tl.constexpr,
    HEADS: tl.constexpr,
    PAGE: tl.constexpr,
    BN: tl.constexpr,
    KW: tl.constexpr,
    VW: tl.constexpr,
    K_UNIT: tl.constexpr,
    V_UNIT: tl.constexpr,
    NATIVE_FP8: tl.constexpr,
    STAGES: tl.constexpr,
    SCAN: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program: its range of the work list, one (request, KV head) segment after the other.

    Q `[B, HKV * G, K.dim]`; *_WORDS `[pages, HKV, PAGE, words]`; *_META int32 view of `[pages, HKV, PAGE, items]`;
    *_SCALE, V_ZERO `[HKV or 1, items]`; PART_OUT `[slots, G, V.dim]`, PART_LSE `[slots, G]`; PAGE_TABLE
    `[B, max_pages]`; TILE_STARTS `[B + 1]`. `sm_scale` includes log2(e). KW, VW: words of a row, padded.
    """
    K_PLANES: tl.constexpr = K.fields_per_word
    V_PLANES: tl.constexpr = V.fields_per_word
    i_program = tl.program_id(0)
    total = tl.load(TILE_STARTS + num_requests).to(tl.int64) * HKV
    programs = busy_programs(total)
    at = i_program * total // tl.maximum(programs, 1)
    end = tl.where(i_program < programs, (i_program + 1) * total // tl.maximum(programs, 1), at)
    o_head = tl.arange(0, HEADS)
    o_token = tl.arange(0, BN)
    o_kw = tl.arange(0, KW)
    o_vw = tl.arange(0, VW)
    # [words, BN]: a row's words are contiguous
    o_k = o_token[None, :] * K.words + o_kw[:, None]
    o_v = o_token[None, :] * V.words + o_vw[:, None]
    while at < end:
        i_request = find_request(TILE_STARTS, num_requests, (at // HKV).to(tl.int32), SCAN)
        length = tl.load(LENGTHS + i_request)
        tiles = (length + BN - 1) // BN
        inside = (at - tl.load(TILE_STARTS + i_request).to(tl.int64) * HKV).to(tl.int32)
        i_head = inside // tiles
        first = inside % tiles
        last = tl.minimum(tiles, first + (end - at).to(tl.int32))
        full = tl.minimum(last, length // BN)
        i_pair = i_request.to(tl.int64) * HKV + i_head
        p_table = PAGE_TABLE + i_request.to(tl.int64) * max_pages
        q, b_qsum, b_unit = load_query(Q + i_pair * (G * K.dim), K_SCALE, i_head, K_WORDS, o_kw, o_head, K, G)
        k_factor = sm_scale * b_unit * (2.0**-K_UNIT)
        q_sum = b_qsum * sm_scale
        m = tl.full([HEADS], NO_SCORE, tl.float32)
        l = tl.zeros([8, HEADS], tl.float32)
        acc = zero_planes(VW, HEADS, V_PLANES)
        # A page is looked up one tile ahead: its latency would otherwise cost the pipeline a stage.
        i_page = tl.load(p_table + first * BN // PAGE)
        for i_tile in tl.range(loop_bound(first), loop_bound(full), num_stages=STAGES):
            i_next = tl.load(p_table + tl.minimum(i_tile + 1, last - 1) * BN // PAGE)
            m, l, acc = attend(
                i_tile, m, l, acc, q, q_sum, k_factor, K_WORDS, V_WORDS, K_META, V_META, i_page, i_head, length,
                o_k, o_v, o_kw, o_vw, o_token, K, V, HKV, PAGE, BN, K_UNIT, V_UNIT, NATIVE_FP8, False,
            )  # fmt: skip
            i_page = i_next
        if last > full:
            m, l, acc = attend(
                full, m, l, acc, q, q_sum, k_factor, K_WORDS, V_WORDS, K_META, V_META, i_page, i_head, length,
                o_k, o_v, o_kw, o_vw, o_token, K, V, HKV, PAGE, BN, K_UNIT, V_UNIT, NATIVE_FP8, True,
            )  # fmt: skip
        slot = i_program + i_pair
        b_sum = tl.sum(l, 0)
        tl.store(PART_LSE + slot * G + o_head, m + tl.math.log2(b_sum), mask=o_head < G)
        b_inverse = 1.0 / b_sum
        for j in tl.static_range(V_PLANES):
            o_channel = channels(o_vw, j, V)
            b_out = finish_output(acc[j], b_inverse, V_SCALE, V_ZERO, i_head, o_channel, o_vw < V.words, V, V_UNIT)
            p_out = PART_OUT + (slot * G + o_head[None, :]) * V.dim + o_channel[:, None]
            tl.store(p_out, b_out, mask=(o_head < G)[None, :] & (o_vw < V.words)[:, None])
        at += last - first
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def attend(
    i_tile, m, l, acc, q, q_sum, k_factor, K_WORDS, V_WORDS, K_META, V_META, i_page, i_head, length,
    o_k, o_v, o_kw, o_vw, o_token, K: tl.constexpr, V: tl.constexpr, HKV: tl.constexpr, PAGE: tl.constexpr,
    BN: tl.constexpr, K_UNIT: tl.constexpr, V_UNIT: tl.constexpr, NATIVE_FP8: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Add one tile of BN tokens to the running softmax: m [HEADS], l [8, HEADS], acc planes [VW, HEADS]."""
    K_PLANES: tl.constexpr = K.fields_per_word
    V_PLANES: tl.constexpr = V.fields_per_word
    i_token = i_tile * BN
    row = (i_page.to(tl.int64) * HKV + i_head) * PAGE + i_token % PAGE
    m_token = o_token < length - i_token
    b_kw = load_words(K_WORDS + row * K.words, o_k, o_kw, m_token, K, MASKED)
    if K.has_row_scale:
        p_meta = K_META + row * K.meta_stride // (1 if K.meta_storage == "fp32" else 2)
        b_kmeta = load_meta(p_meta, o_token, m_token, K.scale_at, K, MASKED)
        if K.asym:
            b_kzero = load_meta(p_meta, o_token, m_token, K.zero_at, K, MASKED)
    b_vw = load_words(V_WORDS + row * V.words, o_v, o_vw, m_token, V, MASKED)
    if V.has_row_scale:
        p_meta = V_META + row * V.meta_stride // (1 if V.meta_storage == "fp32" else 2)
        b_vmeta = load_meta(p_meta, o_token, m_token, V.scale_at, V, MASKED)
        if V.asym:
            b_vzero = load_meta(p_meta, o_token, m_token, V.zero_at, V, MASKED)

    # Scores [BN, HEADS], base 2.
    k = unpack(b_kw, K, NATIVE_FP8)
    s = tl.zeros([BN, m.shape[0]], tl.float32)
    for j in tl.static_range(K_PLANES):
        s = dot(tl.trans(k[j]), q[j], s)
    if K.has_row_scale:
        b_kscale = meta_value(b_kmeta, o_token, K.scale_at, K).to(tl.float32)
        s = s * (b_kscale * k_factor)[:, None]
        if K.asym:
            s += meta_value(b_kzero, o_token, K.zero_at, K).to(tl.float32)[:, None] * q_sum[None, :]
        elif K.is_int:
            s -= (b_kscale * centre(K))[:, None] * q_sum[None, :]
    else:
        # A static zero, or the centre of static codes, moves all scores of a head alike: softmax does not see it.
        s = s * k_factor
    if MASKED:
        s = tl.where(m_token[:, None], s, NO_SCORE)

    m_new = tl.maximum(m, tl.max(s, 0))
    p = tl.math.exp2(s - (m_new - P_SHIFT)[None, :])
    keep = tl.math.exp2(m - m_new)
    # Eight partial sums per head, so that the loop needs no exchange between threads for l.
    l = l * keep[None, :] + tl.sum(p.reshape(BN // 8, 8, m.shape[0]), 0)

    # Outputs [VW, HEADS]; integer codes are centred tile by tile, or the matrix unit's truncation would drift.
    if V.has_row_scale:
        b_p = scale_columns(p, meta_value(b_vmeta, o_token, V.scale_at, V))
    elif V.number == "bf16":
        b_p = cast(p, tl.bfloat16)
    else:
        b_p = p.to(tl.float16)
    v = unpack(b_vw, V, NATIVE_FP8)
    new = ()
    for j in tl.static_range(V_PLANES):
        start = acc[j] * keep[None, :]
        if V.is_int:
            if V.has_row_scale and V.asym:
                b_zero = meta_value(b_vzero, o_token, V.zero_at, V).to(tl.float32)
                start += (tl.sum(p * b_zero[:, None], 0) * (2.0**V_UNIT))[None, :]
            else:
                start -= (tl.sum(b_p.to(tl.float32), 0) * (128.0 * 2.0**V_UNIT))[None, :]
        new = new + (dot(v[j], b_p, start),)
    return m_new, l, new


@triton.jit
def load_words(p_row, o_words, o_word, m_token, T: tl.constexpr, MASKED: tl.constexpr):
    """Tile of words [padded words, BN]; padding and rows beyond the length read 0, whatever the page holds there."""
    PADDED: tl.constexpr = o_word.shape[0] != T.words
    if MASKED and PADDED:
        return tl.load(p_row + o_words, mask=m_token[None, :] & (o_word < T.words)[:, None], other=0)
    elif MASKED:
        return tl.load(p_row + o_words, mask=m_token[None, :], other=0)
    elif PADDED:
        return tl.load(p_row + o_words, mask=(o_word < T.words)[:, None], other=0)
    else:
        return tl.load(p_row + o_words)


@triton.jit
def load_query(p_query, K_SCALE, i_head, K_WORDS, o_word, o_head, K: tl.constexpr, G: tl.constexpr):
    """Query rows of one KV head as planes [words, HEADS] in the compute dtype, divided by a power of two.

    Returns (planes, sum over channels [HEADS] of the undivided rows, what the scores must be multiplied by).
    The power of two makes the conversion of bf16 rows exact and keeps fp16 from overflowing.
    """
    PLANES: tl.constexpr = K.fields_per_word
    DTYPE: tl.constexpr = tl.bfloat16 if K.number == "bf16" else tl.float16
    m_query = (o_word < K.words)[:, None] & (o_head < G)[None, :]
    rows = ()
    top = 0.0
    total = tl.zeros([o_head.shape[0]], tl.float32)
    for j in tl.static_range(PLANES):
        o_channel = channels(o_word, j, K)
        x = tl.load(p_query + o_head[None, :] * K.dim + o_channel[:, None], mask=m_query, other=0.0).to(tl.float32)
        if K.static_items > 1:
            p_scale = K_SCALE + (i_head * K.static_items if K.static_per_head else 0) + o_channel
            x = x * tl.load(p_scale, mask=o_word < K.words, other=0.0).to(tl.float32)[:, None]
        rows = rows + (x,)
        top = tl.maximum(top, tl.max(tl.max(tl.abs(x), 1), 0))
        total += tl.sum(x, 0)
    exponent = top.to(tl.int32, bitcast=True) & 0x7F800000
    unit = exponent.to(tl.float32, bitcast=True)
    inverse = (0x7F000000 - exponent).to(tl.float32, bitcast=True)
    planes = ()
    for j in tl.static_range(PLANES):
        planes = planes + (cast(rows[j] * inverse, DTYPE),)
    if K.static_items == 1:
        unit = unit * tl.load(K_SCALE + (i_head if K.static_per_head else 0)).to(tl.float32)
    return planes, total, unit


@triton.jit
def zero_planes(W: tl.constexpr, HEADS: tl.constexpr, PLANES: tl.constexpr):
    """Tuple of PLANES zero tiles [W, HEADS]."""
    planes = ()
    for _ in tl.static_range(PLANES):
        planes = planes + (tl.zeros([W, HEADS], tl.float32),)
    return planes


@triton.jit
def finish_output(
    acc, b_inverse, V_SCALE, V_ZERO, i_head, o_channel, m_word, V: tl.constexpr, V_UNIT: tl.constexpr
):
    """One plane [VW, HEADS] divided by the softmax sum, with the static scale and zero of V."""
    b_out = acc * (b_inverse * (2.0**-V_UNIT))[None, :]
    if V.has_static_scale:
        o_static = (i_head * V.static_items if V.static_per_head else 0) + (o_channel if V.static_items > 1 else 0 * o_channel)
        b_scale = tl.load(V_SCALE + o_static, mask=m_word, other=0.0).to(tl.float32)
        b_out = b_out * b_scale[:, None]
        if V.asym:
            # The codes were centred on 128 in the loop.
            b_zero = tl.load(V_ZERO + o_static, mask=m_word, other=0.0).to(tl.float32)
            b_out += (b_zero + 128.0 * b_scale)[:, None]
    return b_out


def decode_constants(layout: Layout, page_size: int, group: int, config: DecodeConfig, capability: int) -> dict:
    """Constexprs of `decode_kernel`; `capability` is 10 * major + minor (the interpreter uses 90)."""
    k, v = layout.view("k"), layout.view("v")
    native = capability >= 89
    return {
        "K": k,
        "V": v,
        "HKV": layout.heads,
        "G": group,
        "HEADS": max(LEAST_COLUMNS, triton.next_power_of_2(group)),
        "PAGE": page_size,
        "BN": config.block_tokens,
        "KW": padded_words(k.words),
        "VW": padded_words(v.words),
        "K_UNIT": unit_log2(k, native),
        "V_UNIT": unit_log2(v, native),
        "NATIVE_FP8": native,
        "STAGES": config.num_stages,
        "SCAN": SCAN,
        "PDL": has_dependent_launch(capability),
    }


def check_supported(layout: Layout) -> None:
    """Refuse by name what the kernel cannot read yet.

    Raises:
        UnsupportedError: groups inside a row or over tokens, residuals, 32-bit rows, numbers without tile functions.
    """
    for role in ("k", "v"):
        tensor, view = layout.tensor(role), layout.view(role)
        if not has_tiles(view) or tensor.recent:
            raise UnsupportedError(
                f"{role} format {tensor.spelling} has no decode kernel yet",
                "kernels read fp16, bf16, and int8 and fp8 by tensor, head, channel or token",
            )


def check_call(q: torch.Tensor, cache: Cache, config: DecodeConfig) -> int:
    """The door: shapes, dtypes and strides of a call; returns the query heads per KV head.

    Raises:
        UnsupportedError: a format without a kernel.
        ValueError: naming what differs.
    """
    check_supported(cache.layout)
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
    if cache.page_size % config.block_tokens:
        raise ValueError(f"tiles of {config.block_tokens} tokens straddle pages of {cache.page_size}")
    return q.shape[1] // heads


def decode(
    q: torch.Tensor,
    cache: Cache,
    *,
    sm_scale: float | None = None,
    out: torch.Tensor | None = None,
    work: torch.Tensor | None = None,
    workspace: Workspace | None = None,
    config: DecodeConfig | None = None,
) -> torch.Tensor:
    """Attention of one query token per request over its cached rows.

    Args:
        q: fp16 or bf16 `(B, HQ, Dk)`; query head i reads KV head i // (HQ // HKV).
        cache: K and V of one layer; `cache.lengths[b]` rows of request b are read, 0 gives zeros.
        sm_scale: factor on the logits, default Dk ** -0.5.
        out: `(B, HQ, Dv)`, fp16, bf16 or fp32; allocated in q's dtype if not given.
        work: `tile_starts(cache.lengths, config.block_tokens)`, once per step for all layers; made here if not given.
        workspace: from `make_workspace`; allocated here if not given.

    Returns:
        `out`. Nothing waits for the device, so the call can be captured in a CUDA graph.

    Raises:
        UnsupportedError: a format without a kernel.
        ValueError: a shape, dtype or stride that the layout does not declare.
    """
    config = config or default_config(cache.layout, cache.page_size)
    group = check_call(q, cache, config)
    layout, requests = cache.layout, q.shape[0]
    k, v = layout.view("k"), layout.view("v")
    if out is None:
        out = torch.empty((requests, q.shape[1], v.dim), dtype=q.dtype, device=q.device)
    elif out.shape != (requests, q.shape[1], v.dim) or not out.is_contiguous():
        raise ValueError(f"out is {tuple(out.shape)}, expected {(requests, q.shape[1], v.dim)}, contiguous")
    programs = config.num_programs(q.device)
    if workspace is None:
        workspace = make_workspace(q, cache, config)
    if work is None:
        work = tile_starts(cache.lengths, config.block_tokens, workspace.tile_starts)
    constants = decode_constants(layout, cache.page_size, group, config, _capability(q.device))
    scale = (k.dim**-0.5 if sm_scale is None else sm_scale) * LOG2_E
    decode_kernel[(programs,)](
        q,
        cache.words("k"),
        cache.words("v"),
        _words(cache.meta("k"), q),
        _words(cache.meta("v"), q),
        _or(cache.static("k"), q),
        _or(cache.static("v"), q),
        _or(cache.static("v", "zero"), q),
        workspace.part_out,
        workspace.part_lse,
        cache.page_table,
        cache.lengths,
        work,
        scale,
        requests,
        cache.page_table.shape[1],
        **constants,
        **config.options,
    )
    combine(workspace.part_out, workspace.part_lse, out, work, programs, layout.heads, pdl=constants["PDL"])
    return out


def make_workspace(q: torch.Tensor, cache: Cache, config: DecodeConfig | None = None) -> Workspace:
    """Scratch memory for `decode` with these shapes, to be kept and reused."""
    config = config or default_config(cache.layout, cache.page_size)
    layout = cache.layout
    group, dim_v = q.shape[1] // layout.heads, layout.view("v").dim
    return Workspace.allocate(config.num_programs(q.device), q.shape[0], layout.heads, group, dim_v, q.device)


def _capability(device: torch.device) -> int:
    if device.type != "cuda":
        return 90
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


def _words(meta: torch.Tensor | None, q: torch.Tensor) -> torch.Tensor:
    """Metadata as the int32 words that the kernel reads; any tensor where the format has none."""
    return q if meta is None else meta.view(-1).view(torch.int32)


def _or(tensor: torch.Tensor | None, q: torch.Tensor) -> torch.Tensor:
    return q if tensor is None else tensor
