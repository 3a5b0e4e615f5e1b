"""Tile functions of codes below 8 bits, several channels of a plane apart in one 16-bit word.

No field is shifted into place: field i of a byte weighs `2**(bits * i)`. Where the fields of the upper byte have one
scale they are NESTED, plane i being the sum of its fields 0 to i: that takes one operation less, and the difference is
taken on the query (`query_plane`) and on the output (`output_plane`). Wider codes pass through unchanged.
"""

import triton
import triton.language as tl

from kvplan_kernels.dialect import INTERPRET, as_fp16


@triton.jit
def query_plane(rows, at: tl.constexpr, j: tl.constexpr, T: tl.constexpr):
    """Rows of the query that meet plane `j`: rows[at] by the field's weight, less the next ones if nested."""
    if T.weighted:
        FIELDS: tl.constexpr = T.fields_per_word // 2
        x = rows[at] * (0.5 ** (T.field_bits * (j % FIELDS)))
        if T.nested and j >= FIELDS and j % FIELDS != FIELDS - 1:
            x -= rows[at + 1] * (0.5 ** (T.field_bits * (j % FIELDS + 1)))
        return x
    else:
        return rows[at]


@triton.jit
def output_plane(acc, at: tl.constexpr, j: tl.constexpr, T: tl.constexpr):
    """Sum over field `j` from the sums over planes."""
    if T.weighted:
        FIELDS: tl.constexpr = T.fields_per_word // 2
        x = acc[at]
        if T.nested and j > FIELDS:
            x -= acc[at - 1]
        return x * (0.5 ** (T.field_bits * (j % FIELDS)))
    else:
        return acc[at]


@triton.jit
def plane_weight(j: tl.constexpr, T: tl.constexpr):
    """What plane `j` holds where every code is 1, in units."""
    if T.weighted:
        FIELDS: tl.constexpr = T.fields_per_word // 2
        if T.nested and j >= FIELDS:
            return (2.0 ** (T.field_bits * (j % FIELDS + 1)) - 1.0) / (2.0**T.field_bits - 1.0)
        else:
            return 2.0 ** (T.field_bits * (j % FIELDS))
    else:
        return 1.0


@triton.jit
def unpack_int4(w, NESTED: tl.constexpr):
    """Fields of each byte in place: c0, 16 c1, c2, 16 c3; nested: c2 + 16 c3 last."""
    if INTERPRET:
        top = (w >> 8) & 0xFF
        return as_fp16(w & 0xF), as_fp16(w & 0xF0), as_fp16(top & 0xF), as_fp16(top & (0xFF if NESTED else 0xF0))
    elif NESTED:
        return tl.inline_asm_elementwise(
            """
            and.b32 $0, $4, 0x000f000f;
            and.b32 $1, $4, 0x00f000f0;
            prmt.b32 $3, $4, 0, 0x4341;
            and.b32 $2, $3, 0x000f000f;
            """,
            "=&r,=&r,=&r,=&r,r",
            [w],
            dtype=(tl.float16, tl.float16, tl.float16, tl.float16),
            is_pure=True,
            pack=2,
        )
    else:
        return tl.inline_asm_elementwise(
            """{
            .reg .b32 t;
            and.b32 $0, $4, 0x000f000f;
            and.b32 $1, $4, 0x00f000f0;
            shr.u32 t, $4, 8;
            and.b32 $2, t, 0x000f000f;
            and.b32 $3, t, 0x00f000f0;
            }""",
            "=&r,=&r,=&r,=&r,r",
            [w],
            dtype=(tl.float16, tl.float16, tl.float16, tl.float16),
            is_pure=True,
            pack=2,
        )


@triton.jit
def unpack_int2(w, NESTED: tl.constexpr):
    """Fields of each byte in place, weights 1, 4, 16, 64; nested: the upper byte's are sums from its first field on."""
    if INTERPRET:
        top = (w >> 8) & 0xFF
        low = as_fp16(w & 0x3), as_fp16(w & 0xC), as_fp16(w & 0x30), as_fp16(w & 0xC0)
        if NESTED:
            return low + (as_fp16(top & 0x3), as_fp16(top & 0xF), as_fp16(top & 0x3F), as_fp16(top))
        else:
            return low + (as_fp16(top & 0x3), as_fp16(top & 0xC), as_fp16(top & 0x30), as_fp16(top & 0xC0))
    elif NESTED:
        return tl.inline_asm_elementwise(
            """
            and.b32 $0, $8, 0x00030003;
            and.b32 $1, $8, 0x000c000c;
            and.b32 $2, $8, 0x00300030;
            and.b32 $3, $8, 0x00c000c0;
            prmt.b32 $7, $8, 0, 0x4341;
            and.b32 $4, $7, 0x00030003;
            and.b32 $5, $7, 0x000f000f;
            and.b32 $6, $7, 0x003f003f;
            """,
            "=&r,=&r,=&r,=&r,=&r,=&r,=&r,=&r,r",
            [w],
            dtype=(tl.float16,) * 8,
            is_pure=True,
            pack=2,
        )
    else:
        return tl.inline_asm_elementwise(
            """{
            .reg .b32 t;
            and.b32 $0, $8, 0x00030003;
            and.b32 $1, $8, 0x000c000c;
            and.b32 $2, $8, 0x00300030;
            and.b32 $3, $8, 0x00c000c0;
            shr.u32 t, $8, 8;
            and.b32 $4, t, 0x00030003;
            and.b32 $5, t, 0x000c000c;
            and.b32 $6, t, 0x00300030;
            and.b32 $7, t, 0x00c000c0;
            }""",
            "=&r,=&r,=&r,=&r,=&r,=&r,=&r,=&r,r",
            [w],
            dtype=(tl.float16,) * 8,
            is_pure=True,
            pack=2,
        )


@triton.jit
def unpack_int3(low, even, odd):
    """Fields of each byte of `low` in place, weights 1, 4, 16, 64, each with its third bit above it.

    Third bit of field j: bit 2j of `even`, or 2j + 1 of `odd`; one of the two words is 0.
    """
    if INTERPRET:
        third = even | (odd >> 1)
        top, upper = (low >> 8) & 0xFF, third >> 6
        third = third << 2
        return (
            as_fp16((low & 0x3) | (third & 0x4)), as_fp16((low & 0xC) | (third & 0x10)),
            as_fp16((low & 0x30) | (third & 0x40)), as_fp16((low & 0xC0) | (third & 0x100)),
            as_fp16((top & 0x3) | (upper & 0x4)), as_fp16((top & 0xC) | (upper & 0x10)),
            as_fp16((top & 0x30) | (upper & 0x40)), as_fp16((top & 0xC0) | (upper & 0x100)),
        )  # fmt: skip
    else:
        # Third bits of fields 0 and 2 are put over fields 1 and 3, which are then not wanted, and the other way round.
        return tl.inline_asm_elementwise(
            """{
            .reg .b32 h, t, u, x;
            shr.u32 h, $10, 1;
            or.b32 h, h, $9;
            shl.b32 t, h, 2;
            shr.u32 h, h, 6;
            shr.u32 u, $8, 8;
            lop3.b32 x, t, $8, 0x00440044, 0xe4;
            and.b32 $0, x, 0x00070007;
            and.b32 $2, x, 0x00700070;
            lop3.b32 x, t, $8, 0x01100110, 0xe4;
            and.b32 $1, x, 0x001c001c;
            and.b32 $3, x, 0x01c001c0;
            lop3.b32 x, h, u, 0x00440044, 0xe4;
            and.b32 $4, x, 0x00070007;
            and.b32 $6, x, 0x00700070;
            lop3.b32 x, h, u, 0x01100110, 0xe4;
            and.b32 $5, x, 0x001c001c;
            and.b32 $7, x, 0x01c001c0;
            }""",
            "=&r,=&r,=&r,=&r,=&r,=&r,=&r,=&r,r,r,r",
            [low, even, odd],
            dtype=(tl.float16,) * 8,
            is_pure=True,
            pack=2,
        )
