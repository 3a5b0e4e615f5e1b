"""Tile functions of the grid formats: words of codes to planes of values, metadata words to scales and zeros.

Codes arrive as tiles of 16-bit words, two words to a 32-bit register. Plane j holds field j of each word: channels
2w + j of 8-bit codes, channels j * words + w of narrower ones. Integer codes are masked out and read as fp16
SUBNORMALS: the value is `code * weight * 2**unit_log2`, exact, and the matrix units take it at full speed. The powers
of two go into the query, the softmax scale and the output. Such a value must never be multiplied in fp16.

To add a format: its number in `unit_log2`, `unpack` and `centre`, and here only.
"""

import triton
import triton.language as tl

from kvplan.formats.layout import TensorView
from kvplan_kernels.codecs.planar_tiles import unpack_int2, unpack_int4
from kvplan_kernels.dialect import INTERPRET, as_fp16

_UNIT_LOG2 = {"fp16": 0, "bf16": 0, "int8": -24, "int4": -24, "int2": -24, "fp8_e4m3": 0, "fp8_e5m2": 0}


def has_tiles(view: TensorView) -> bool:
    """Whether the kernels can read this tensor: its number is known here and its scales are of whole words of a row."""
    group_ends_on_a_word = view.granularity != "group" or view.group * view.bits % 16 == 0
    return view.number in _UNIT_LOG2 and view.whole_words and group_ends_on_a_word


def unit_log2(view: TensorView, native_fp8: bool) -> int:
    """log2 of the value that code 1 of field 0 has after `unpack`."""
    return -8 if view.number == "fp8_e4m3" and not native_fp8 else _UNIT_LOG2[view.number]


@triton.jit
def channels(o_word, i_stripe: tl.constexpr, j: tl.constexpr, T: tl.constexpr):
    """Channel of field `j` of the words `o_word` of a stripe."""
    if T.planar:
        return j * T.words + i_stripe * T.stripe_words + o_word
    else:
        return (i_stripe * T.stripe_words + o_word) * T.fields_per_word + j


@triton.jit
def centre(T: tl.constexpr):
    """Code that stands for 0 after `unpack`: signed codes come out in excess notation, int8 as code + 128."""
    if T.is_int and not T.asym:
        return 2.0 ** (T.bits - 1)
    else:
        return 0.0


@triton.jit
def unpack(w, T: tl.constexpr, NATIVE_FP8: tl.constexpr):
    """Words `w` [W, BN] -> tuple of `fields_per_word` planes [W, BN], fp16 (16-bit rows: their own dtype)."""
    if not T.quantised:
        return (w,)
    elif T.number == "int4":
        return unpack_int4(w, T.nested)
    elif T.number == "int2":
        return unpack_int2(w, T.nested)
    elif T.is_int:
        return unpack_int8(w, T.asym)
    elif T.number == "fp8_e5m2":
        return unpack_e5m2(w)
    else:
        return unpack_e4m3(w, NATIVE_FP8)


@triton.jit
def unpack_int8(w, UNSIGNED: tl.constexpr):
    """Bytes to code * 2^-24; signed codes are moved to 0..255 by flipping their top bit."""
    if INTERPRET:
        if not UNSIGNED:
            w = w ^ -32640
        return as_fp16(w & 0xFF), as_fp16((w >> 8) & 0xFF)
    elif UNSIGNED:
        return tl.inline_asm_elementwise(
            "and.b32 $0, $2, 0x00ff00ff; prmt.b32 $1, $2, 0, 0x4341;",
            "=&r,=r,r",
            [w],
            dtype=(tl.float16, tl.float16),
            is_pure=True,
            pack=2,
        )
    else:
        return tl.inline_asm_elementwise(
            """{
            .reg .b32 t;
            lop3.b32 $0, $2, 0x00ff00ff, 0x00800080, 0x6a;
            prmt.b32 t, $2, 0, 0x4341;
            xor.b32 $1, t, 0x00800080;
            }""",
            "=&r,=r,r",
            [w],
            dtype=(tl.float16, tl.float16),
            is_pure=True,
            pack=2,
        )


@triton.jit
def unpack_e5m2(w):
    """e5m2 is the upper half of fp16."""
    if INTERPRET:
        return as_fp16((w & 0xFF) << 8), as_fp16(w & -256)
    else:
        return tl.inline_asm_elementwise(
            "prmt.b32 $0, $2, 0, 0x2404; and.b32 $1, $2, 0xff00ff00;",
            "=&r,=r,r",
            [w],
            dtype=(tl.float16, tl.float16),
            is_pure=True,
            pack=2,
        )


@triton.jit
def unpack_e4m3(w, NATIVE: tl.constexpr):
    """e4m3 by the hardware's conversion, or before sm_89 as value * 2^-8 by moving its bits (NaN then reads as 480)."""
    if INTERPRET:
        return e4m3_twin(w & 0xFF), e4m3_twin((w >> 8) & 0xFF)
    elif NATIVE:
        return tl.inline_asm_elementwise(
            """{
            .reg .b32 t;
            .reg .b16 x, y;
            prmt.b32 t, $2, 0, 0x3120;
            mov.b32 {x, y}, t;
            cvt.rn.f16x2.e4m3x2 $0, x;
            cvt.rn.f16x2.e4m3x2 $1, y;
            }""",
            "=&r,=r,r",
            [w],
            dtype=(tl.float16, tl.float16),
            is_pure=True,
            pack=2,
        )
    else:
        return tl.inline_asm_elementwise(
            """{
            .reg .b32 a, b;
            shl.b32 a, $2, 8;
            shl.b32 b, $2, 7;
            and.b32 b, b, 0x3f803f80;
            lop3.b32 $0, a, 0x80008000, b, 0xea;
            shr.u32 b, $2, 1;
            and.b32 b, b, 0x3f803f80;
            lop3.b32 $1, $2, 0x80008000, b, 0xea;
            }""",
            "=&r,=r,r",
            [w],
            dtype=(tl.float16, tl.float16),
            is_pure=True,
            pack=2,
        )


@triton.jit
def e4m3_twin(code):
    """One e4m3 code in the low byte -> fp16, for the interpreter, whose own fp8 casts get NaN wrong."""
    value = as_fp16(((code & 0x80) << 8) | ((code & 0x7F) << 7)).to(tl.float32) * 256.0
    return tl.where((code & 0x7F) == 0x7F, float("nan"), value).to(tl.float16)


@triton.jit
def load_meta(p_meta, o_token, m_token, AT: tl.constexpr, T: tl.constexpr, MASKED: tl.constexpr):
    """Int32 words that hold metadata item `AT` of each token; words, so that the copy can be asynchronous.

    `p_meta` points to the first token's items. Masked tokens read 0.
    """
    o_item = o_token * T.meta_stride + AT
    if T.meta_storage != "fp32":
        if T.meta_stride % 2 == 0:
            o_item = o_token * (T.meta_stride // 2) + AT // 2
        else:
            o_item = o_item // 2
    if MASKED:
        return tl.load(p_meta + o_item, mask=m_token, other=0)
    else:
        return tl.load(p_meta + o_item)


@triton.jit
def meta_value(words, o_token, AT: tl.constexpr, T: tl.constexpr):
    """The item out of its word: fp16 metadata stays fp16, bf16 and fp32 become fp32. `[BN]`"""
    if T.meta_storage == "fp32":
        return words.to(tl.float32, bitcast=True)
    if T.meta_stride % 2 == 0:
        half = words >> (16 * (AT % 2))
    else:
        half = words >> (((o_token * T.meta_stride + AT) % 2) * 16)
    if T.meta_storage == "fp16":
        return as_fp16(half)
    else:
        return (half << 16).to(tl.float32, bitcast=True)


@triton.jit
def scale_columns(p, scale):
    """`p` [BN, M] fp32 times a scale per token [BN] -> fp16; fp16 scales by packed multiplies, which Triton lacks."""
    if scale.dtype == tl.float16 and not INTERPRET:
        return tl.inline_asm_elementwise(
            "mul.rn.f16x2 $0, $1, $2;",
            "=r,r,r",
            [p.to(tl.float16), tl.broadcast_to(scale[:, None], p.shape)],
            dtype=tl.float16,
            is_pure=True,
            pack=2,
        )
    else:
        return (p * scale.to(tl.float32)[:, None]).to(tl.float16)
