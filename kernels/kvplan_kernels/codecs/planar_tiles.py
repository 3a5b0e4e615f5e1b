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
def unpack_int3(low, high, odd):
    """Fields of each byte of `low` in place, weights 1, 4, 16, 64, each with its third bit above it.

    Third bit of field j: bit 2j of `high`, or 2j + 1 where `odd` [W] is 1.
    """
    odd = tl.broadcast_to(odd.to(tl.int16)[:, None], low.shape)
    if INTERPRET:
        first = high >> odd
        top, third = (low >> 8) & 0xFF, first >> 6
        first = first << 2
        return (
            as_fp16((low & 0x3) | (first & 0x4)), as_fp16((low & 0xC) | (first & 0x10)),
            as_fp16((low & 0x30) | (first & 0x40)), as_fp16((low & 0xC0) | (first & 0x100)),
            as_fp16((top & 0x3) | (third & 0x4)), as_fp16((top & 0xC) | (third & 0x10)),
            as_fp16((top & 0x30) | (third & 0x40)), as_fp16((top & 0xC0) | (third & 0x100)),
        )  # fmt: skip
    else:
        # Both words of a register lie in one half of the row: one amount of shift serves them.
        return tl.inline_asm_elementwise(
            """{
            .reg .b32 h, t, n;
            and.b32 n, $10, 1;
            shr.u32 h, $9, n;
            shl.b32 t, h, 2;
            shr.u32 h, h, 6;
            and.b32 $0, $8, 0x00030003;
            and.b32 $1, $8, 0x000c000c;
            and.b32 $2, $8, 0x00300030;
            and.b32 $3, $8, 0x00c000c0;
            lop3.b32 $0, t, 0x00040004, $0, 0xea;
            lop3.b32 $1, t, 0x00100010, $1, 0xea;
            lop3.b32 $2, t, 0x00400040, $2, 0xea;
            lop3.b32 $3, t, 0x01000100, $3, 0xea;
            shr.u32 t, $8, 8;
            and.b32 $4, t, 0x00030003;
            and.b32 $5, t, 0x000c000c;
            and.b32 $6, t, 0x00300030;
            and.b32 $7, t, 0x00c000c0;
            lop3.b32 $4, h, 0x00040004, $4, 0xea;
            lop3.b32 $5, h, 0x00100010, $5, 0xea;
            lop3.b32 $6, h, 0x00400040, $6, 0xea;
            lop3.b32 $7, h, 0x01000100, $7, 0xea;
            }""",
            "=&r,=&r,=&r,=&r,=&r,=&r,=&r,=&r,r,r,r",
            [low, high, odd],
            dtype=(tl.float16,) * 8,
            is_pure=True,
            pack=2,
        )
