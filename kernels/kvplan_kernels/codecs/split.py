"""The split law on the device: which tokens of a tensor are quantised and which wait."""

import triton
import triton.language as tl


@triton.jit
def packed_tokens(length, L: tl.constexpr):
    """`BoundTensor.split(length)[0]`: tokens that are quantised when `length` are stored."""
    if L.recent == 0:
        return length
    elif L.flush == "whole":
        return length - length % L.recent
    else:
        return tl.maximum(length - L.recent, 0)
