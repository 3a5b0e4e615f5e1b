"""One tile of tokens in registers: scores and outputs. Shared by the attention kernels.

Tokens lie on the MMA's M axis and query heads on N: scores are `[BN, HEADS]`, outputs `[words, HEADS]`, one tile per
plane of channels. Both K and V tiles are loaded as `[words, BN]`; other spellings cost the asynchronous copies.
"""

import triton
import triton.language as tl

from kvplan_kernels.attention.by_channel import column, outputs_by_channel, scores_by_channel
from kvplan_kernels.codecs.grid_tiles import centre, meta_value, scale_columns, unpack
from kvplan_kernels.codecs.planar_tiles import output_plane, plane_weight, unpack_int3
from kvplan_kernels.dialect import cast, dot


@triton.jit
def scores(k, q, q_sum, k_factor, k_scales, k_zeros, k_meta, o_token, i: tl.constexpr, K: tl.constexpr):
    """Scores [BN, HEADS] in base 2, group by group of channels that share a scale.

    `q_sum`: per group, [HEADS], or with `meta_dot` what `shift_queries` returns, or with channel/N of the tile what
    `zero_scores` returns, of which this is part `i`; `k_scales`, `k_zeros`: per group, [PART] words of metadata, or
    with channel/N per plane what `load_channel_scales` returns.
    """
    if K.by_channel:
        shift = column(q_sum, i) if K.is_int else 0
        return scores_by_channel(k, q, shift, k_factor, k_scales, o_token.shape[0], K)
    else:
        return scores_by_row(k, q, q_sum, k_factor, k_scales, k_zeros, k_meta, o_token, K)


@triton.jit
def scores_by_row(k, q, q_sum, k_factor, k_scales, k_zeros, k_meta, o_token, K: tl.constexpr):
    """`scores` of formats whose scales belong to a row, or to a layer."""
    GROUPS: tl.constexpr = K.groups
    STRIPES: tl.constexpr = K.stripes
    PLANES: tl.constexpr = K.fields_per_word
    total = tl.zeros([o_token.shape[0], q_sum[0].shape[-1]], tl.float32)
    for g in tl.static_range(GROUPS):
        s = tl.zeros(total.shape, tl.float32)
        for i_stripe in tl.static_range(STRIPES):
            for j in tl.static_range(PLANES):
                if (j * K.field_step + i_stripe * K.stripe_step) // K.group_width == g:
                    s = dot(tl.trans(k[i_stripe * PLANES + j]), q[i_stripe * PLANES + j], s)
        if K.has_row_scale:
            b_scale = meta_value(k_scales[g], o_token, K.scale_at + g, K).to(tl.float32)
            if K.is_int:
                s = s * (b_scale * k_factor)[:, None]
            else:
                s = s * b_scale[:, None]
            if K.meta_dot:
                if g == 0:
                    b_shift = dot(k_meta, q_sum[0], tl.zeros(total.shape, tl.float32))
                    if not K.meta_twice:
                        b_shift = dot(k_meta, q_sum[1], b_shift)
                    s += b_shift * q_sum[2]
            elif K.asym:
                s += meta_value(k_zeros[g], o_token, K.zero_at + g, K).to(tl.float32)[:, None] * q_sum[g][None, :]
            elif K.is_int:
                s -= (b_scale * centre(K))[:, None] * q_sum[g][None, :]
            total = s if g == 0 else total + s
        else:
            # A static zero, or the centre of static codes, moves all scores of a head alike: softmax ignores it.
            total = s * k_factor
    if K.has_row_scale and not K.is_int:
        total = total * k_factor
    return total


@triton.jit
def outputs(
    v, acc, p, keep, v_scales, v_zeros, v_meta, o_token, V: tl.constexpr, V_UNIT: tl.constexpr, FIRST: tl.constexpr
):  # fmt: skip
    """Planes [VW, HEADS] of the output after one more part of probabilities `p` [PART, HEADS]; the FIRST part of a tile
    also takes `keep` of what was there before.
    """
    if V.by_channel:
        return outputs_by_channel(v, acc, p, keep, v_scales, v_zeros, V, V_UNIT, FIRST)
    else:
        return outputs_by_row(v, acc, p, keep, v_scales, v_zeros, v_meta, o_token, V, V_UNIT, FIRST)


@triton.jit
def outputs_by_row(
    v, acc, p, keep, v_scales, v_zeros, v_meta, o_token, V: tl.constexpr, V_UNIT: tl.constexpr, FIRST: tl.constexpr
):  # fmt: skip
    """`outputs` of formats whose scales belong to a row, or to a layer.

    Integer codes are centred part by part, or the matrix unit's truncation would drift.
    """
    GROUPS: tl.constexpr = V.groups
    STRIPES: tl.constexpr = V.stripes
    PLANES: tl.constexpr = V.fields_per_word
    weighted = ()
    shifts = ()
    if V.meta_dot and V.asym and not V.meta_twice:
        b_items = dot(tl.trans(v_meta), p.to(tl.float16), tl.zeros([v_meta.shape[1], p.shape[1]], tl.float32))
        o_item = tl.arange(0, v_meta.shape[1])
    for g in tl.static_range(GROUPS):
        if V.has_row_scale:
            b_p = scale_columns(p, meta_value(v_scales[g], o_token, V.scale_at + g, V))
        elif V.number == "bf16":
            b_p = cast(p, tl.bfloat16)
            b_rest = cast(p - b_p.to(tl.float32), tl.bfloat16)
        else:
            b_p = p.to(tl.float16)
        weighted = weighted + (b_p,)
        if V.meta_twice and V.asym:
            shifts = shifts + (0,)
        elif V.meta_dot and V.asym:
            shifts = shifts + (tl.sum(tl.where((o_item == V.shift_at + g)[:, None], b_items, 0.0), 0),)
        elif V.meta_dot:
            # Sums by the matrix unit, of the same rounded products that the codes get: all rows of the result are one.
            ones = tl.full([16, b_p.shape[0]], 1.0, tl.float16)
            b_one = tl.max(dot(ones, b_p, tl.zeros([16, b_p.shape[1]], tl.float32)), 0)
            shifts = shifts + (b_one * -centre(V),)
        elif V.is_int:
            if V.has_row_scale and V.asym:
                b_zero = meta_value(v_zeros[g], o_token, V.zero_at + g, V).to(tl.float32)
                shifts = shifts + (tl.sum(p * b_zero[:, None], 0),)
            else:
                shifts = shifts + (tl.sum(b_p.to(tl.float32), 0) * -(2.0 ** (V.bits - 1)),)
    new = ()
    for i_stripe in tl.static_range(STRIPES):
        for j in tl.static_range(PLANES):
            start = acc[i_stripe * PLANES + j]
            if FIRST:
                start = start * keep[None, :]
            if V.is_int and not (V.meta_twice and V.asym):
                b_shift = shifts[(j * V.field_step + i_stripe * V.stripe_step) // V.group_width]
                start += (b_shift * (plane_weight(j, V) * 2.0**V_UNIT))[None, :]
            plane = v[i_stripe * PLANES + j]
            if V.number == "bf16":
                # What its eight bits leave of a probability, which would be most of the error.
                start = dot(plane, b_rest, start)
            weights = weighted[(j * V.field_step + i_stripe * V.stripe_step) // V.group_width]
            new = new + (dot(plane, weights, start),)
    return new


@triton.jit
def zero_sums(v_meta, p, so_far, V: tl.constexpr):
    """`so_far` [16, HEADS] and the zeros of the part's rows, as `load_meta_rows` repeats them, times `p`."""
    if V.meta_twice and V.asym:
        return dot(tl.trans(v_meta), p.to(tl.float16), so_far)
    else:
        return so_far


@triton.jit
def add_zeros(acc, sums, V: tl.constexpr, V_UNIT: tl.constexpr):
    """Planes `acc` plus `zero_sums` of their groups.

    The matrix unit hands each plane the sum of its group: as bf16, because sums may leave fp16's range, in two halves.
    """
    if V.meta_twice and V.asym:
        GROUPS: tl.constexpr = V.groups
        PLANES: tl.constexpr = V.fields_per_word
        o_item = tl.arange(0, 16)
        b_high = (sums.to(tl.int32, bitcast=True) & -65536).to(tl.float32, bitcast=True)
        halves = tl.where((o_item < GROUPS)[:, None], b_high, sums - b_high).to(tl.bfloat16)
        o_group = tl.broadcast_to(o_item[None, :], [acc[0].shape[0], 16])
        o_group = tl.where(o_group < 2 * GROUPS, o_group % GROUPS, -1)
        SHARED: tl.constexpr = len(acc) > GROUPS
        rows = ()
        if SHARED:
            # One product serves the planes of a group: fewer matrices to keep in registers.
            for g in tl.static_range(GROUPS):
                chosen = cast((o_group == g).to(tl.float32), tl.bfloat16)
                rows = rows + (dot(chosen, halves, tl.zeros(acc[0].shape, tl.float32)),)
        new = ()
        for i in tl.static_range(len(acc)):
            weight = plane_weight(i % PLANES, V) * 2.0**V_UNIT
            if SHARED:
                b_row = rows[(i % PLANES * V.field_step + i // PLANES * V.stripe_step) // V.group_width]
                new = new + (acc[i] + b_row * weight,)
            else:
                mine = o_group == (i % PLANES * V.field_step + i // PLANES * V.stripe_step) // V.group_width
                chosen = cast(tl.where(mine, weight, 0.0).to(tl.float32), tl.bfloat16)
                new = new + (dot(chosen, halves, acc[i]),)
        return new
    else:
        return acc


@triton.jit
def scale_tops(v_scales, o_token, V: tl.constexpr):
    """Largest scale of each row of a part, as the bits of fp16 or fp32, int32 [PART]: positive floats order so."""
    GROUPS: tl.constexpr = V.groups
    HALVES: tl.constexpr = V.meta_storage == "fp16" and V.meta_stride % 2 == 0
    tops = tl.zeros([o_token.shape[0]], tl.int32)
    for g in tl.static_range(GROUPS):
        if HALVES and (V.scale_at + g) % 2:
            # The upper half decides which word is larger.
            bits = v_scales[g]
        elif HALVES:
            bits = v_scales[g] << 16
        else:
            x = meta_value(v_scales[g], o_token, V.scale_at + g, V)
            if x.dtype == tl.float16:
                bits = x.to(tl.int16, bitcast=True).to(tl.int32) << 16
            else:
                bits = x.to(tl.int32, bitcast=True)
        tops = tl.maximum(tops, bits)
    return tops


@triton.jit
def scale_exponent(top, V: tl.constexpr):
    """By how much to raise a tile's largest score, base 2, for the largest scale in `scale_tops`' bits.

    Probabilities times scales go through fp16. fp16 scales far from 1 move the probabilities within fp16's range, wider
    ones are multiplied in fp32 first and move them as far as it takes.
    """
    if V.meta_storage == "fp16" or V.meta_storage == "fp8_e4m3":
        exponent = ((top >> 26) & 31) - 15
        raised = tl.maximum(exponent - 6, 0) + tl.maximum(tl.minimum(exponent + 8, 0), -7)
        return raised.to(tl.float32)
    else:
        return float_exponent(top.to(tl.float32, bitcast=True))


@triton.jit
def float_exponent(x):
    """Whole part of log2(x) of positive fp32 `x`, not so small that probabilities raised by it, or their sum, leave
    fp32."""
    bits = x.to(tl.int32, bitcast=True)
    return tl.maximum(((bits >> 23) & 255) - 127, -64).to(tl.float32)


@triton.jit
def unpack_stripes(tiles, T: tl.constexpr, NATIVE_FP8: tl.constexpr):
    """Planes of all stripes, `stripe * fields_per_word + field`."""
    STRIPES: tl.constexpr = T.stripes
    planes = ()
    for i_stripe in tl.static_range(STRIPES):
        if T.two_parts:
            planes = planes + unpack_int3(tiles[i_stripe][0], tiles[i_stripe][1][0], tiles[i_stripe][1][1])
        else:
            planes = planes + unpack(tiles[i_stripe], T, NATIVE_FP8)
    return planes


@triton.jit
def natural_planes(acc, V: tl.constexpr, V_UNIT: tl.constexpr):
    """Sums over the fields of packed values as sums over channels, to which waiting values can be added."""
    STRIPES: tl.constexpr = V.stripes
    PLANES: tl.constexpr = V.fields_per_word
    planes = ()
    for i_stripe in tl.static_range(STRIPES):
        for j in tl.static_range(PLANES):
            planes = planes + (output_plane(acc, i_stripe * PLANES + j, j, V) * 2.0**-V_UNIT,)
    return planes


@triton.jit
def zero_planes(W: tl.constexpr, HEADS: tl.constexpr, PLANES: tl.constexpr):
    """Tuple of PLANES zero tiles [W, HEADS]."""
    planes = ()
    for _ in tl.static_range(PLANES):
        planes = planes + (tl.zeros([W, HEADS], tl.float32),)
    return planes


@triton.jit
def finish_output(acc, b_inverse, V_SCALE, V_ZERO, i_head, o_channel, m_word, V: tl.constexpr, V_UNIT: tl.constexpr):
    """One plane [VW, HEADS] divided by the softmax sum, with the static scale and zero of V."""
    b_out = acc * (b_inverse * (2.0**-V_UNIT))[None, :]
    if V.has_static_scale:
        o_static = o_channel * (1 if V.static_items > 1 else 0) + (i_head * V.static_items if V.static_per_head else 0)
        b_scale = tl.load(V_SCALE + o_static, mask=m_word, other=0.0).to(tl.float32)
        b_out = b_out * b_scale[:, None]
        if V.asym:
            # The codes were centred in the loop.
            b_zero = tl.load(V_ZERO + o_static, mask=m_word, other=0.0).to(tl.float32)
            b_out += (b_zero + 2.0 ** (V.bits - 1) * b_scale)[:, None]
    if V.has_global:
        b_out = b_out * tl.load(V_SCALE)
    return b_out
