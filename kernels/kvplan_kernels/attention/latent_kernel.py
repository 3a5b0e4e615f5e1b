"""Fused dequantise + decode attention over a paged MLA latent: all query heads read one row per token.

Loads tiles of BN slots: the nope part as `[words, BN]` per group of channels that share a scale (as keys and as
values), the rope part `[rope, BN]` (keys only), one fp32 scale per group and token. Query heads of all rows are
columns, HEADS at a time; a block of them stands where other kernels have a KV head, so the work list and the combine
kernel are the same. Tokens lie on the matrix unit's M axis: scores are `[BN, HEADS]`, outputs `[channels, HEADS]`. fp8
codes are decoded to fp16 and never scaled: the scales go on a group's scores and on its probabilities.
"""

import triton
import triton.language as tl

from kvplan_kernels.attention.load import power_of_two
from kvplan_kernels.attention.step import NO_SCORE, P_SHIFT
from kvplan_kernels.attention.tile import float_exponent, zero_planes
from kvplan_kernels.attention.work import busy_programs, find_request, next_page
from kvplan_kernels.codecs.grid_tiles import unpack_e4m3
from kvplan_kernels.dialect import INTERPRET, cast, dot, loop_bound


@triton.jit
def load_latent_query(p_query, o_column, G: tl.constexpr, L: tl.constexpr):
    """Query rows of one block of columns as planes, divided by a power of two, which is returned too.

    Returns (nope planes [PART, HEADS], rope [rope, HEADS], the power of two).
    """
    PARTS: tl.constexpr = L.parts
    PART: tl.constexpr = L.part
    DTYPE: tl.constexpr = tl.bfloat16 if L.number == "bf16" else tl.float16
    ROPE_DTYPE: tl.constexpr = tl.bfloat16 if L.rope_storage == "bf16" else tl.float16
    m_column = (o_column < G)[None, :]
    p_column = p_query + o_column[None, :] * L.dim
    o_rope = L.nope + tl.arange(0, L.rope)
    rope = tl.load(p_column + o_rope[:, None], mask=m_column, other=0.0).to(tl.float32)
    top = tl.max(tl.max(tl.abs(rope), 1), 0)
    rows = ()
    for i in tl.static_range(PARTS):
        o_channel = i * PART + tl.arange(0, PART)
        x = tl.load(p_column + o_channel[:, None], mask=m_column, other=0.0).to(tl.float32)
        top = tl.maximum(top, tl.max(tl.max(tl.abs(x), 1), 0))
        rows = rows + (x,)
    unit, inverse = power_of_two(top)
    planes = ()
    for i in tl.static_range(PARTS):
        planes = planes + (cast(rows[i] * inverse, DTYPE),)
    return planes, cast(rope * inverse, ROPE_DTYPE), unit


@triton.jit
def latent_values(words, NATIVE_FP8: tl.constexpr):
    """Words [PART / 2, BN] of fp8 codes -> their values [PART, BN] in fp16, before sm_89 times 2^-8.

    Declared impure, so that the compiler decodes once, for keys and values, instead of twice in two layouts at once:
    those would not fit the registers.
    """
    if NATIVE_FP8 and not INTERPRET:
        even, odd = tl.inline_asm_elementwise(
            "{ .reg .b32 t; cvt.rn.f16x2.e4m3x2 t, $2; mov.b32 {$0, $1}, t; }",
            "=h,=h,h",
            [words],
            dtype=(tl.float16, tl.float16),
            is_pure=False,
            pack=1,
        )
    else:
        even, odd = unpack_e4m3(words, NATIVE_FP8)
    return tl.permute(tl.join(even, odd), (0, 2, 1)).reshape(2 * words.shape[0], words.shape[1])


@triton.jit
def attend_latent(
    i_token, m, l, acc, q, q_rope, factor, ROWS, ROPE, SCALES, i_page, o_token, length, seen,
    L: tl.constexpr, PAGE: tl.constexpr, NATIVE_FP8: tl.constexpr,
):  # fmt: skip
    """Add the tile of tokens from `i_token` on to the running softmax: m [HEADS], l [HEADS], acc planes.

    `seen`: [HEADS], tokens that each column sees, those from there on do not count for it; those from `length` on are
    not read, whatever the page holds there.
    """
    PARTS: tl.constexpr = L.parts
    WORDS: tl.constexpr = L.part // 2 if L.quantised else L.part
    UNIT: tl.constexpr = 1.0 if NATIVE_FP8 else 256.0
    # Slots in units of 2 and of 4 bytes.
    HALVES: tl.constexpr = L.slot_bytes // 2
    SLOT: tl.constexpr = L.slot_bytes // 4
    row = i_page.to(tl.int64) * PAGE + i_token % PAGE
    m_token = i_token + o_token < length
    p_rows = ROWS + row * HALVES + o_token[None, :] * HALVES + tl.arange(0, WORDS)[:, None]
    p_rope = ROPE + row * HALVES + L.rope_at // 2 + o_token[None, :] * HALVES + tl.arange(0, L.rope)[:, None]
    p_scale = SCALES + row * SLOT + L.scale_at // 4 + o_token * SLOT
    rope = tl.load(p_rope, mask=m_token[None, :], other=0.0)
    s = dot(tl.trans(rope), q_rope, tl.zeros([o_token.shape[0], m.shape[0]], tl.float32))
    # Each part is loaded where it is used, or all parts would lie in registers at once.
    values = ()
    scales = ()
    top = tl.zeros([o_token.shape[0]], tl.float32)
    for i in tl.static_range(PARTS):
        b_values = tl.load(p_rows + i * WORDS, mask=m_token[None, :], other=0)
        if L.quantised:
            b_values = latent_values(b_values, NATIVE_FP8)
            scales = scales + (tl.load(p_scale + i, mask=m_token, other=0.0) * UNIT,)
            top = tl.maximum(top, scales[i])
            b_part = dot(tl.trans(b_values), q[i], tl.zeros(s.shape, tl.float32))
            s += b_part * scales[i][:, None]
        else:
            s = dot(tl.trans(b_values), q[i], s)
        values = values + (b_values,)
    s = s * factor
    counts = (i_token + o_token)[:, None] < seen[None, :]
    s = tl.where(counts, s, NO_SCORE)
    if L.quantised:
        # Probabilities times scales go through fp16: the maximum counts a token's score with its largest scale.
        m_new = tl.maximum(m, tl.max(s + float_exponent(top)[:, None], 0))
    else:
        m_new = tl.maximum(m, tl.max(s, 0))
    keep = tl.math.exp2(m - m_new)
    # A column that has seen nothing yet has no score to subtract.
    p = tl.where(counts, tl.math.exp2(s - (m_new - P_SHIFT)[None, :]), 0.0)
    l = l * keep + tl.sum(p, 0)
    new = ()
    for i in tl.static_range(PARTS):
        if L.quantised:
            weighted = (p * scales[i][:, None]).to(tl.float16)
        else:
            weighted = cast(p, values[i].dtype)
        new = new + (dot(values[i], weighted, acc[i] * keep[None, :]),)
    return m_new, l, new


@triton.jit(do_not_specialize=["sm_scale", "num_requests", "max_pages"])
def latent_decode_kernel(
    Q, ROWS, ROPE, SCALES, PART_OUT, PART_LSE, PAGE_TABLE, LENGTHS, TILE_STARTS, sm_scale, num_requests, max_pages,
    L: tl.constexpr, BLOCKS: tl.constexpr, G: tl.constexpr, HEADS: tl.constexpr, HQ: tl.constexpr, R: tl.constexpr,
    PAGE: tl.constexpr, BN: tl.constexpr, NATIVE_FP8: tl.constexpr, STAGES: tl.constexpr, SCAN: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """One program: its range of the work list, one (request, block of columns) segment after the other.

    Q `[B, BLOCKS * G, L.dim]`, column c being head c % HQ of row c // HQ; ROWS, ROPE, SCALES: the plane of slots in
    words (16 bit: in values), in rope values and in fp32; PART_OUT `[slots, G, L.nope]`, PART_LSE `[slots, G]`;
    PAGE_TABLE `[B, max_pages]`; TILE_STARTS `[B + 1]`. `sm_scale` includes log2(e).
    """
    PARTS: tl.constexpr = L.parts
    PART: tl.constexpr = L.part
    i_program = tl.program_id(0)
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    total = tl.load(TILE_STARTS + num_requests).to(tl.int64) * BLOCKS
    programs = busy_programs(total)
    at = i_program * total // tl.maximum(programs, 1)
    end = tl.where(i_program < programs, (i_program + 1) * total // tl.maximum(programs, 1), at)
    o_column = tl.arange(0, HEADS)
    o_token = tl.arange(0, BN)
    while at < end:
        i_request, begin, length = find_request(TILE_STARTS, LENGTHS, num_requests, (at // BLOCKS).to(tl.int32), SCAN)
        tiles = (length + BN - 1) // BN
        inside = (at - begin.to(tl.int64) * BLOCKS).to(tl.int32)
        i_block = inside // tiles
        first = inside % tiles
        last = tl.minimum(tiles, first + (end - at).to(tl.int32))
        # Row r sees the tokens before length - R + 1 + r.
        seen = length - (R - 1) + tl.minimum((i_block * G + o_column) // HQ, R - 1)
        i_pair = i_request.to(tl.int64) * BLOCKS + i_block
        p_table = PAGE_TABLE + i_request.to(tl.int64) * max_pages
        q, q_rope, unit = load_latent_query(Q + i_pair * (G * L.dim), o_column, G, L)
        factor = sm_scale * unit
        m = tl.full([HEADS], NO_SCORE, tl.float32)
        l = tl.zeros([HEADS], tl.float32)
        acc = zero_planes(PART, HEADS, PARTS)
        # A page is looked up one tile ahead: its latency would otherwise cost the pipeline a stage.
        i_page = tl.load(p_table + first * BN // PAGE)
        for i_tile in tl.range(loop_bound(first), loop_bound(last), num_stages=STAGES):
            i_next = next_page(p_table, i_page, i_tile + 1, last, PAGE, BN)
            m, l, acc = attend_latent(
                i_tile * BN, m, l, acc, q, q_rope, factor, ROWS, ROPE, SCALES, i_page, o_token, length, seen,
                L, PAGE, NATIVE_FP8,
            )  # fmt: skip
            i_page = i_next
        slot = i_program + i_pair
        # Columns that saw nothing here weigh nothing in the combine kernel.
        b_lse = tl.where(l > 0, m + tl.math.log2(l), NO_SCORE)
        tl.store(PART_LSE + slot * G + o_column, b_lse, mask=o_column < G)
        b_inverse = 1.0 / tl.where(l > 0, l, 1.0)
        for i in tl.static_range(PARTS):
            o_channel = i * PART + tl.arange(0, PART)
            p_out = PART_OUT + (slot * G + o_column[None, :]) * L.nope + o_channel[:, None]
            tl.store(p_out, acc[i] * b_inverse[None, :], mask=(o_column < G)[None, :])
        at += last - first
