"""Where a row lies in its plane: element offsets of codes and metadata, for planes of one field and for page planes.

A page plane (`pack=page`) holds, head after head, a block of codes and a block of scales; kernels are given pointers to
the first block of each kind, so that both kinds of plane differ in the stride between heads only.
"""

import triton
import triton.language as tl


@triton.jit
def code_offset(i_part, i_slot, T: tl.constexpr, PAGE: tl.constexpr):
    """Element (`T.code_items` a row) of the row in slot `i_slot` of part `i_part` = page * heads + head."""
    if T.part_bytes > 0:
        return i_part * (PAGE * T.part_bytes // T.code_bytes) + i_slot * T.code_items
    else:
        return (i_part * PAGE + i_slot) * T.code_items


@triton.jit
def word_offset(i_part, i_slot, T: tl.constexpr, PAGE: tl.constexpr):
    """The same in 16-bit words, as the attention kernels read codes of any width; 16-bit rows are words anyway."""
    if T.part_bytes > 0:
        return i_part * (PAGE * T.part_bytes // 2) + i_slot * T.words
    else:
        return (i_part * PAGE + i_slot) * T.words


@triton.jit
def meta_offset(i_part, i_slot, T: tl.constexpr, PAGE: tl.constexpr):
    """First metadata item of the row."""
    if T.part_bytes > 0:
        return i_part * (PAGE * T.part_bytes * 8 // T.meta_bits) + i_slot * T.meta_stride
    else:
        return (i_part * PAGE + i_slot) * T.meta_stride
