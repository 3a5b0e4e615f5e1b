"""Tile functions of 4-bit floats and of scales that are one byte, the kernels' side of blocks.py.

e2m1 to fp16 by moving bits: 3 bits of magnitude to fp16's lowest exponent bits and first mantissa bit, the sign to the
top. What comes out is value * 2^-14, exact, 0.5 being a subnormal. Scales stay apart from the codes: an e8m0 byte is
the exponent of an fp32, an e4m3 byte placed one bit lower is an fp16 2^8 too small.
"""

import triton
import triton.language as tl

from kvplan_kernels.codecs.convert import float_bits
from kvplan_kernels.dialect import INTERPRET, as_fp16


@triton.jit
def unpack_fp4(w):
    """Words `w` -> planes of fields 0 to 3, fp16, value * 2^-14."""
    if INTERPRET:
        return e2m1_twin(w), e2m1_twin(w >> 4), e2m1_twin(w >> 8), e2m1_twin(w >> 12)
    else:
        # Both bytes at once: x holds fields 0 and 2, y fields 1 and 3, each as the upper byte of its fp16.
        return tl.inline_asm_elementwise(
            """{
            .reg .b32 a, x, y;
            shl.b32 a, $4, 1;
            and.b32 a, a, 0x0e0e0e0e;
            shl.b32 x, $4, 4;
            lop3.b32 x, x, 0x80808080, a, 0xea;
            shr.u32 a, $4, 3;
            and.b32 a, a, 0x0e0e0e0e;
            lop3.b32 y, $4, 0x80808080, a, 0xea;
            prmt.b32 $0, x, 0, 0x2404;
            prmt.b32 $1, y, 0, 0x2404;
            and.b32 $2, x, 0xff00ff00;
            and.b32 $3, y, 0xff00ff00;
            }""",
            "=&r,=&r,=&r,=&r,r",
            [w],
            dtype=(tl.float16, tl.float16, tl.float16, tl.float16),
            is_pure=True,
            pack=2,
        )


@triton.jit
def e2m1_twin(code):
    """The code in the low 4 bits -> fp16, value * 2^-14."""
    return as_fp16(((code & 0x8) << 12) | ((code & 0x7) << 9))


@triton.jit
def e2m1_value(code):
    """The code in the low 4 bits of an int32 -> fp32."""
    return e2m1_twin(code).to(tl.float32) * 16384.0


@triton.jit
def scale_of_byte(byte, T: tl.constexpr):
    """A stored scale of one byte, in the low bits of an int32: e8m0 -> fp32, e4m3 -> fp16 of scale * 2^-8."""
    if T.meta_storage == "e8m0":
        return ((byte & 0xFF) << 23).to(tl.float32, bitcast=True)
    else:
        return as_fp16((byte & 0x7F) << 7)


@triton.jit
def e4m3_scales(word):
    """Four e4m3 scales of an int32 word at once, fp16 of scale * 2^-8 each; their sign bits are 0."""
    return tl.inline_asm_elementwise(
        """{
        .reg .b32 a, b;
        prmt.b32 a, $4, 0, 0x1404;
        shr.u32 a, a, 1;
        mov.b32 {$0, $1}, a;
        prmt.b32 b, $4, 0, 0x3424;
        shr.u32 b, b, 1;
        mov.b32 {$2, $3}, b;
        }""",
        "=h,=h,=h,=h,r",
        [word],
        dtype=(tl.float16, tl.float16, tl.float16, tl.float16),
        is_pure=True,
        pack=1,
    )


@triton.jit
def full_scale(byte, p_global, T: tl.constexpr):
    """`scale_of_byte` in fp32 as the reference has it: e4m3 at its size, times the layer's global scale."""
    scale = scale_of_byte(byte.to(tl.int32), T).to(tl.float32)
    if T.meta_storage != "e8m0":
        scale = scale * 256.0
    if T.has_global:
        scale = scale * tl.load(p_global)
    return scale


@triton.jit
def scale_byte(span, p_global, T: tl.constexpr, G: tl.constexpr):
    """fp32 absmax of a group -> the byte that is stored for it, int8."""
    if T.meta_storage == "e8m0":
        exponent = ((span.to(tl.int32, bitcast=True) >> 23) & 0xFF) - G.emax
        byte = tl.minimum(tl.maximum(exponent, G.scale_min_code), G.scale_max_code).to(tl.int8)
    else:
        scale = tl.div_rn(span, tl.full(span.shape, G.divisor, tl.float32))
        if T.has_global:
            scale = tl.div_rn(scale, tl.zeros(span.shape, tl.float32) + tl.load(p_global))
        byte = float_bits(tl.minimum(tl.maximum(scale, G.scale_min), G.scale_max), 3, 7, 7)
    return byte
