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

from kvplan.formats.layout import Layout
from kvplan_kernels.attention.by_channel import spread_query
from kvplan_kernels.attention.combine import combine
from kvplan_kernels.attention.config import DecodeConfig, default_config, padded_words, part_tokens
from kvplan_kernels.attention.door import check_memory, check_query, check_supported
from kvplan_kernels.attention.load import load_query, shift_queries, word_offsets
from kvplan_kernels.attention.recent import load_plain_query
from kvplan_kernels.attention.tile import NO_SCORE, attend, attend_recent, finish_output, natural_planes, zero_planes
from kvplan_kernels.attention.work import (
    RECENT_TOKENS,
    SCAN,
    busy_programs,
    count_tiles,
    find_request,
    packed_tiles,
    tile_starts,
)
from kvplan_kernels.attention.workspace import Workspace
from kvplan_kernels.cache import Cache
from kvplan_kernels.codecs.grid_tiles import channels, unit_log2
from kvplan_kernels.codecs.planar_tiles import output_plane
from kvplan_kernels.codecs.split import packed_tokens
from kvplan_kernels.dialect import LEAST_COLUMNS, has_dependent_launch, loop_bound

LOG2_E = 1.4426950408889634


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
    K_RING,
    V_RING,
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
    PART: tl.constexpr,
    KW: tl.constexpr,
    VW: tl.constexpr,
    K_UNIT: tl.constexpr,
    V_UNIT: tl.constexpr,
    ONE_META: tl.constexpr,
    EARLY_KEYS: tl.constexpr,
    LATE_KEYS: tl.constexpr,
    NATIVE_FP8: tl.constexpr,
    STAGES: tl.constexpr,
    SCAN: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program: its range of the work list, one (request, KV head) segment after the other.

    Q `[B, HKV * G, K.dim]`; *_WORDS `[pages, HKV, PAGE, words]`; *_META int32 view of `[pages, HKV, slots, items]`;
    *_SCALE, V_ZERO `[HKV or 1, items]`; *_RING `[B, HKV, capacity, dim]`; PART_OUT `[slots, G, V.dim]`, PART_LSE `[slots, G]`; PAGE_TABLE
    `[B, max_pages]`; TILE_STARTS `[B + 1]`. `sm_scale` includes log2(e). KW, VW: words of a stripe, padded.
    """
    # One pointer for one plane, so that loads of the same words are merged.
    if ONE_META:
        V_META = K_META
    V_PLANES: tl.constexpr = V.fields_per_word
    V_STRIPES: tl.constexpr = V.stripes
    K_GROUPS: tl.constexpr = K.groups
    WAITING: tl.constexpr = K.recent + V.recent > 0
    i_program = tl.program_id(0)
    total = tl.load(TILE_STARTS + num_requests).to(tl.int64) * HKV
    programs = busy_programs(total)
    at = i_program * total // tl.maximum(programs, 1)
    end = tl.where(i_program < programs, (i_program + 1) * total // tl.maximum(programs, 1), at)
    o_head = tl.arange(0, HEADS)
    o_token = tl.arange(0, PART)
    o_kw = tl.arange(0, KW)
    o_vw = tl.arange(0, VW)
    o_k = word_offsets(K, KW, PART)
    o_v = word_offsets(V, VW, PART)
    while at < end:
        i_request = find_request(TILE_STARTS, num_requests, (at // HKV).to(tl.int32), SCAN)
        length = tl.load(LENGTHS + i_request)
        k_end = packed_tokens(length, K)
        v_end = packed_tokens(length, V)
        tiles = count_tiles(length, BN, V)
        inside = (at - tl.load(TILE_STARTS + i_request).to(tl.int64) * HKV).to(tl.int32)
        i_head = inside // tiles
        first = inside % tiles
        last = tl.minimum(tiles, first + (end - at).to(tl.int32))
        # Tiles [first, full) are whole, [full, packed) have an end in them, [packed, last) hold values that wait.
        packed = tl.minimum(last, packed_tiles(length, BN, V)) if V.recent else last
        full = tl.minimum(packed, tl.minimum(k_end, v_end) // BN)
        i_pair = i_request.to(tl.int64) * HKV + i_head
        p_table = PAGE_TABLE + i_request.to(tl.int64) * max_pages
        p_query = Q + i_pair * (G * K.dim)
        q, b_qsum, b_unit = load_query(p_query, K_SCALE, i_head, K_WORDS, o_kw, o_head, K, G)
        k_factor = sm_scale * b_unit * (2.0**-K_UNIT)
        q_sum = ()
        if K.meta_dot:
            q_sum = shift_queries(b_qsum, b_unit, sm_scale, K)
        else:
            for g in tl.static_range(K_GROUPS):
                q_sum = q_sum + (b_qsum[g] * sm_scale,)
        if K.by_channel:
            q = spread_query(q, K)
        m = tl.full([HEADS], NO_SCORE, tl.float32)
        l = tl.zeros([8, HEADS], tl.float32)
        acc = zero_planes(VW, HEADS, V_STRIPES * V_PLANES)
        # A page is looked up one tile ahead: its latency would otherwise cost the pipeline a stage.
        if WAITING:
            i_page = tl.load(p_table + first * BN // PAGE, mask=first < full, other=0)
        else:
            i_page = tl.load(p_table + first * BN // PAGE)
        q_plain, plain_factor = 0, 0
        for i_tile in tl.range(loop_bound(first), loop_bound(full), num_stages=STAGES):
            i_next = tl.load(p_table + tl.minimum(i_tile + 1, packed - 1) * BN // PAGE)
            m, l, acc = attend(
                i_tile, m, l, acc, q, q_sum, k_factor, q_plain, plain_factor, K_WORDS, V_WORDS, K_META, V_META, K_RING,
                i_page, i_pair, i_head, k_end, v_end, o_k, o_v, o_kw, o_vw, o_token, K, V, HKV,
                PAGE, BN, K_UNIT, V_UNIT, NATIVE_FP8, LATE_KEYS, False,
            )  # fmt: skip
            i_page = i_next
        if K.recent:
            q_plain, plain_factor = load_plain_query(p_query, K_RING, o_head, sm_scale, K, G)
        if WAITING:
            # Part by part: they are few, and the code stays small.
            i_first = tl.maximum(first, full) * (BN // PART)
            i_last = tl.minimum(packed * (BN // PART), (v_end + PART - 1) // PART)
            for i_part in tl.range(loop_bound(i_first), loop_bound(i_last), num_stages=1):
                i_page = tl.load(p_table + i_part * PART // PAGE)
                m, l, acc = attend(
                    i_part, m, l, acc, q, q_sum, k_factor, q_plain, plain_factor, K_WORDS, V_WORDS, K_META, V_META,
                    K_RING, i_page, i_pair, i_head, k_end, v_end, o_k, o_v, o_kw, o_vw, o_token, K, V, HKV,
                    PAGE, PART, K_UNIT, V_UNIT, NATIVE_FP8, LATE_KEYS, True,
                )  # fmt: skip
        else:
            if last > full:
                m, l, acc = attend(
                    full, m, l, acc, q, q_sum, k_factor, q_plain, plain_factor, K_WORDS, V_WORDS, K_META, V_META,
                    K_RING, i_page, i_pair, i_head, k_end, v_end, o_k, o_v, o_kw, o_vw, o_token, K, V, HKV,
                    PAGE, BN, K_UNIT, V_UNIT, NATIVE_FP8, LATE_KEYS, True,
                )  # fmt: skip
        if V.recent:
            acc = natural_planes(acc, V, V_UNIT)
            for i_tile in tl.range(loop_bound(tl.maximum(first, packed)), loop_bound(last), num_stages=1):
                i_token = (v_end // RECENT_TOKENS + i_tile - packed_tiles(length, BN, V)) * RECENT_TOKENS
                m, l, acc = attend_recent(
                    i_token, m, l, acc, q, q_sum, k_factor, q_plain, plain_factor, K_WORDS, K_META, K_RING, V_RING,
                    p_table, i_pair, i_head, k_end, v_end, length, o_kw, o_vw, K, V, HKV,
                    PAGE, K_UNIT, NATIVE_FP8, EARLY_KEYS,
                )  # fmt: skip
        slot = i_program + i_pair
        b_sum = tl.sum(l, 0)
        tl.store(PART_LSE + slot * G + o_head, m + tl.math.log2(b_sum), mask=o_head < G)
        b_inverse = 1.0 / b_sum
        m_word = o_vw < V.stripe_words
        for i_stripe in tl.static_range(V_STRIPES):
            for j in tl.static_range(V_PLANES):
                o_channel = channels(o_vw, i_stripe, j, V)
                if V.recent:
                    b_out = acc[i_stripe * V_PLANES + j] * b_inverse[None, :]
                else:
                    b_out = output_plane(acc, i_stripe * V_PLANES + j, j, V)
                    b_out = finish_output(b_out, b_inverse, V_SCALE, V_ZERO, i_head, o_channel, m_word, V, V_UNIT)
                p_out = PART_OUT + (slot * G + o_head[None, :]) * V.dim + o_channel[:, None]
                tl.store(p_out, b_out, mask=(o_head < G)[None, :] & m_word[:, None])
        at += last - first
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()


def decode_constants(layout: Layout, page_size: int, group: int, config: DecodeConfig, capability: int) -> dict:
    """Constexprs of `decode_kernel`; `capability` is 10 * major + minor (the interpreter uses 90)."""
    k, v = layout.view("k"), layout.view("v")
    keys, values = layout.tensor("k"), layout.tensor("v")
    native = capability >= 89
    return {
        "K": k,
        "V": v,
        "HKV": layout.heads,
        "G": group,
        "HEADS": max(LEAST_COLUMNS, triton.next_power_of_2(group)),
        "PAGE": page_size,
        "BN": config.block_tokens,
        "PART": part_tokens(layout, config.block_tokens),
        "KW": padded_words(k.stripe_words),
        "VW": padded_words(v.stripe_words),
        "K_UNIT": unit_log2(k, native),
        "V_UNIT": unit_log2(v, native),
        "ONE_META": k.meta_stride > 0 and v.meta_stride > 0 and layout.plane("k", "scale") is layout.plane("v", "scale"),
        # Whether keys may be packed where values wait, and the other way round.
        "EARLY_KEYS": not values.waits_at_most_like(keys),
        "LATE_KEYS": not keys.waits_at_most_like(values),
        "NATIVE_FP8": native,
        "STAGES": config.num_stages,
        "SCAN": SCAN,
        "PDL": has_dependent_launch(capability),
    }


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
        work: `tile_starts(cache.lengths, config.block_tokens, layout.view("v"))`, once per step for all layers; made
            here if not given.
        workspace: from `make_workspace`; allocated here if not given.

    Returns:
        `out`. Nothing waits for the device, so the call can be captured in a CUDA graph.

    Raises:
        UnsupportedError: a format without a kernel.
        ValueError: a shape, dtype or stride that the layout does not declare.
    """
    layout, requests = cache.layout, cache.num_sequences
    check_supported(layout)
    group = check_query(q, cache)
    config = config or default_config(layout, cache.page_size, group)
    k, v = layout.view("k"), layout.view("v")
    if out is None:
        out = torch.empty((requests, q.shape[1], v.dim), dtype=q.dtype, device=q.device)
    if workspace is None:
        workspace = make_workspace(q, cache, config)
    check_memory(cache, config, out, (requests, q.shape[1], v.dim), work, workspace)
    programs = config.num_programs(q.device)
    if work is None:
        work = tile_starts(cache.lengths, config.block_tokens, v, workspace.tile_starts)
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
        _or(cache.residual("k"), q),
        _or(cache.residual("v"), q),
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
    layout = cache.layout
    group, dim_v = q.shape[1] // layout.heads, layout.view("v").dim
    config = config or default_config(layout, cache.page_size, group)
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
