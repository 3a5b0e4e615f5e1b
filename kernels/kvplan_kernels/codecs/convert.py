"""Tile functions between fp32 and stored bits, in integer arithmetic: the interpreter and the GPU agree bit by bit.

Triton's interpreter truncates casts to bf16 and neither saturates nor carries in casts to fp8, and fp8 types do not
compile below sm_89; none of these casts is used here. 8-bit codes travel as int8 bits.
"""

import triton
import triton.language as tl


@triton.jit
def round_code(q, G: tl.constexpr):
    """fp32 (x - zero) / scale -> int8 bits: clip, then round half to even (`int`) or to the nearest fp8 (`fp8`)."""
    q = tl.minimum(tl.maximum(q, G.low), G.high)
    if G.kind == "fp8":
        code = fp8_bits(q, E4M3=G.high == 448.0)
    else:
        # Adding 1.5 * 2^23 leaves the rounded integer in the low mantissa bits, two's complement included.
        code = (q + 12582912.0).to(tl.int32, bitcast=True).to(tl.int8)
    return code


@triton.jit
def fp8_bits(q, E4M3: tl.constexpr):
    """fp32 within the fp8 range -> e4m3 (else e5m2) bits as int8, nearest even, subnormals and -0 included."""
    # e4m3: 3 mantissa bits, bias 7, smallest normal 2^-6; e5m2: 2 bits, bias 15, smallest normal 2^-14.
    SHIFT: tl.constexpr = 20 if E4M3 else 21
    REBIAS: tl.constexpr = 120 << 3 if E4M3 else 112 << 2
    NORMAL: tl.constexpr = 121 << 23 if E4M3 else 113 << 23
    # A float whose last mantissa bit is worth one fp8 subnormal step: adding it rounds to that step.
    MAGIC: tl.constexpr = 16384.0 if E4M3 else 128.0
    MAGIC_BITS: tl.constexpr = 141 << 23 if E4M3 else 134 << 23
    bits = q.to(tl.int32, bitcast=True)
    size = bits & 0x7FFFFFFF
    normal = ((size + ((1 << (SHIFT - 1)) - 1) + ((size >> SHIFT) & 1)) >> SHIFT) - REBIAS
    subnormal = (tl.abs(q) + MAGIC).to(tl.int32, bitcast=True) - MAGIC_BITS
    code = tl.where(size >= NORMAL, normal, subnormal)
    return (code | ((bits >> 24) & 0x80)).to(tl.int8)


@triton.jit
def decode_field(words, j: tl.constexpr, L: tl.constexpr, G: tl.constexpr):
    """Field `j` of planar words (int16) -> fp32 code, excess taken off."""
    return (((words.to(tl.int32) >> (L.bits * j)) & ((1 << L.bits) - 1)) - G.excess).to(tl.float32)


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
