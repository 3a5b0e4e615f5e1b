"""Tile functions between fp32 and stored bits, in integer arithmetic: the interpreter and the GPU agree bit by bit.

Triton's interpreter truncates casts to bf16 and neither saturates nor carries in casts to fp8, and fp8 types do not
compile below sm_89; none of these casts is used here. 8-bit codes travel as int8 bits.
"""

import triton
import triton.language as tl


@triton.jit
def round_code(q, G: tl.constexpr):
    """fp32 (x - zero) / scale -> int8 bits: clip, then round half to even (`int`) or to the nearest `fp8`, `fp4`."""
    q = tl.minimum(tl.maximum(q, G.low), G.high)
    if G.kind == "fp4":
        code = float_bits(q, 1, 1, 3)
    elif G.kind == "fp8":
        code = float_bits(q, 3 if G.high == 448.0 else 2, 7 if G.high == 448.0 else 15, 7)
    else:
        # Adding 1.5 * 2^23 leaves the rounded integer in the low mantissa bits, two's complement included.
        code = (q + 12582912.0).to(tl.int32, bitcast=True).to(tl.int8)
    return code


@triton.jit
def float_bits(q, MANTISSA: tl.constexpr, BIAS: tl.constexpr, SIGN: tl.constexpr):
    """fp32 within the range of a small float -> its bits as int8, nearest even, subnormals and -0 included.

    MANTISSA bits, exponent bias BIAS, sign at bit SIGN: e4m3 is 3, 7, 7; e5m2 2, 15, 7; e2m1 1, 1, 3.
    """
    SHIFT: tl.constexpr = 23 - MANTISSA
    REBIAS: tl.constexpr = (127 - BIAS) << MANTISSA
    NORMAL: tl.constexpr = (128 - BIAS) << 23
    # A float whose last mantissa bit is worth one subnormal step: adding it rounds to that step.
    MAGIC: tl.constexpr = 2.0 ** (24 - BIAS - MANTISSA)
    MAGIC_BITS: tl.constexpr = (127 + 24 - BIAS - MANTISSA) << 23
    bits = q.to(tl.int32, bitcast=True)
    size = bits & 0x7FFFFFFF
    normal = ((size + ((1 << (SHIFT - 1)) - 1) + ((size >> SHIFT) & 1)) >> SHIFT) - REBIAS
    subnormal = (tl.abs(q) + MAGIC).to(tl.int32, bitcast=True) - MAGIC_BITS
    code = tl.where(size >= NORMAL, normal, subnormal)
    return (code | ((bits >> (31 - SIGN)) & (1 << SIGN))).to(tl.int8)


@triton.jit
def round_e4m3(x):
    """fp32 of magnitude at most 448 -> the nearest e4m3 value, as fp32; NaN stays NaN."""
    bits = x.to(tl.int32, bitcast=True)
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) & -0x100000).to(tl.float32, bitcast=True)
    # Steps of 2^-9 below 2^-6: adding 1.5 * 2^14 rounds to them.
    subnormal = (x + 24576.0) - 24576.0
    return tl.where(tl.abs(x) < 0.015625, subnormal, normal)


@triton.jit
def field_of(words, j: tl.constexpr, BITS: tl.constexpr):
    """Field `j` of planar words (int16) as int32."""
    return (words.to(tl.int32) >> (BITS * j)) & ((1 << BITS) - 1)


@triton.jit
def decode_code(bits, L: tl.constexpr):
    """int8 bits -> fp32 code, by the number of tensor view `L`: signed, unsigned (asymmetric), e4m3 or e5m2."""
    word = bits.to(tl.int32)
    if L.is_int:
        code = (word & 0xFF if L.asym else word).to(tl.float32)
    elif L.number == "fp8_e5m2":
        # e5m2 is the upper byte of fp16.
        code = ((word & 0xFF) << 8).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    else:
        # e4m3 placed one bit lower has fp16's exponent field, 2^8 too small.
        half = ((word & 0x80) << 8) | ((word & 0x7F) << 7)
        code = half.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32) * 256.0
    return code


@triton.jit
def round_to(x, STORAGE: tl.constexpr):
    """fp32 -> the dtype named by STORAGE (fp16, bf16, fp32), nearest even."""
    if STORAGE == "fp16":
        x = x.to(tl.float16)
    elif STORAGE == "bf16":
        bits = x.to(tl.int32, bitcast=True)
        upper = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        x = tl.where(x == x, upper, 0x7FC0).to(tl.int16).to(tl.bfloat16, bitcast=True)
    return x


@triton.jit
def to_fp32(x):
    """fp16, bf16 or fp32 -> fp32 exactly."""
    if x.dtype == tl.bfloat16:
        x = (x.to(tl.int16, bitcast=True).to(tl.int32) << 16).to(tl.float32, bitcast=True)
    return x.to(tl.float32)
