"""Where a row lies in its plane: element offsets of codes and metadata, for planes of one field and for page planes.

`row`: (page * heads + head) * page size + slot. A page plane (`pack=page`) holds, head after head, a block of codes and
a block of scales; kernels are given pointers to the first block of each kind, so that both kinds of plane differ in the
stride between heads only.
"""

import triton
import triton.language as tl


@triton.jit
def code_offset(row, T: tl.constexpr, PAGE: tl.constexpr):
    """First element of the row's codes, as the store kernels count them: `T.code_items` a row."""
    if T.part_bytes > 0:
        return row // PAGE * (PAGE * T.part_bytes // T.code_bytes) + row % PAGE * T.code_items
    else:
        return row * T.code_items


@triton.jit
def word_offset(row, T: tl.constexpr, PAGE: tl.constexpr):
    """First 16-bit word of the row's codes, as the attention kernels read codes of any width."""
    if T.part_bytes > 0:
        return row // PAGE * (PAGE * T.part_bytes // 2) + row % PAGE * T.words
    else:
        return row * T.words


@triton.jit
def meta_offset(row, T: tl.constexpr, PAGE: tl.constexpr):
    """First metadata item of the row."""
    if T.part_bytes > 0:
        return row // PAGE * (PAGE * T.part_bytes * 8 // T.meta_bits) + row % PAGE * T.meta_stride
    else:
        return row * T.meta_stride
