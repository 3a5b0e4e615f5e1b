"""Asks the L2 for the first page of a segment while its query is prepared, so that the first tile finds it there."""

import triton
import triton.language as tl

from kvplan_kernels.codecs.rows import meta_offset, word_offset


@triton.jit
def fetch_page(WORDS, META, row, T: tl.constexpr, PAGE: tl.constexpr):
    """Codes and metadata of `row` and those after it in its page; `row` is a multiple of 16.

    Planes of one field only; third bits, and metadata whose groups are no multiples of 16 bytes, are left to the loop.
    """
    if T.part_bytes == 0:
        rows = PAGE - (row % PAGE).to(tl.int32)
        fetch(WORDS + word_offset(row, T, PAGE), rows * (T.words * 2))
        if T.by_channel:
            GROUP_BYTES: tl.constexpr = T.meta_stride * T.meta_bits // 8
            if GROUP_BYTES % 16 == 0:
                fetch(META + row // T.group * (GROUP_BYTES // 4), tl.cdiv(rows, T.group) * GROUP_BYTES)
        elif T.has_row_scale:
            p_meta = META + meta_offset(row, T, PAGE) // (32 // T.meta_bits)
            fetch(p_meta, rows * T.meta_stride * T.meta_bits // 8)


@triton.jit
def fetch(p, size):
    """One thread asks for `size` bytes from `p` on, both multiples of 16. Nothing is written, nothing waits."""
    tl.inline_asm_elementwise(
        "{ .reg .pred p; mov.u32 $0, %tid.x; setp.eq.u32 p, $0, 0; @p cp.async.bulk.prefetch.L2.global [$1], $2; }",
        "=&r,l,r",
        [p, size],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )
