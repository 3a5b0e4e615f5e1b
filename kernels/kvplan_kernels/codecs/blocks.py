"""Reference codec of the 4-bit float and of scales that are one byte: torch, independent of the kernels' bit tricks.

e2m1 is 1 sign, 2 exponent and 1 mantissa bit: the magnitudes below. The rules of scales, with their sources:

- `e8m0` (mxfp4, mxfp8): OCP Microscaling Formats (MX) Specification 1.0, section 6.3. The scale is a power of two,
  2^(floor(log2(absmax)) - emax), emax being the exponent of the element's largest number (e2m1 2, e4m3 8, e5m2 15);
  elements are rounded to nearest even and saturate: a block whose absmax is 6 to 8 times its scale is clipped (e2m1).
  The byte is the exponent + 127. Absmax 0 gets the smallest scale of `limits.py`; NaN (255) is never written.
- `e4m3` (nvfp4): a scale of a block is absmax / 6, divided by the layer's `global` scale, rounded to nearest even. The
  global scale is calibrated: absmax of the layer / (6 * 448), so that the largest block gets the largest scale. Source:
  NVIDIA Transformer Engine's and ModelOpt's two-level NVFP4 recipe. A value is code * (scale * global), both products
  rounded to fp32.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from kvplan.formats.layout import TensorView
from kvplan_kernels.codecs.limits import Grid

MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Value of an e2m1 code without its sign bit."""


def e2m1_codes(q: Tensor) -> Tensor:
    """fp32 -> codes 0 to 15 (int32): nearest, halves to the even code, beyond 6 saturated; bit 3 is the sign."""
    size = q.abs()
    code = torch.zeros_like(size, dtype=torch.int32)
    for i, (low, high) in enumerate(pairwise(MAGNITUDES)):
        half = (low + high) / 2
        # Between codes i and i + 1 a half goes to the even one.
        code += (size > half if i % 2 == 0 else size >= half).to(torch.int32)
    return code | torch.signbit(q).to(torch.int32) << 3


def e2m1_values(codes: Tensor) -> Tensor:
    """Inverse of `e2m1_codes`, fp32."""
    table = torch.tensor([*MAGNITUDES, *(-x for x in MAGNITUDES)], device=codes.device)
    return table[codes.long()]


def byte_scales(view: TensorView, grid: Grid, span: Tensor, static: dict[str, Tensor]) -> Tensor:
    """Scales of `absmax` in their storage: uint8 exponents (e8m0), or fp8 (e4m3) below the layer's global scale."""
    if view.meta_storage == "e8m0":
        # frexp's mantissa lies in [0.5, 1): its exponent is floor(log2) + 1. Infinity has none: the largest.
        exponent = torch.frexp(span).exponent - 1 - grid.emax + 127
        exponent = torch.where(span == torch.inf, grid.scale_max_code, exponent)
        exponent = torch.where(span == 0, grid.scale_min_code, exponent)
        return exponent.clamp(grid.scale_min_code, grid.scale_max_code).to(torch.uint8)
    scale = span / span.new_tensor(grid.divisor)
    if view.has_global:
        scale = scale / static["global"].float()
    return scale.clamp(grid.scale_min, grid.scale_max).to(torch.float8_e4m3fn)


def scale_values(view: TensorView, encoded: dict[str, Tensor]) -> Tensor:
    """Stored scales in fp32, the global one included."""
    scale = encoded["scale"]
    if view.meta_storage == "e8m0":
        # The exponent of an fp32.
        return (scale.to(torch.int32) << 23).view(torch.float32)
    return scale.float() * encoded["global"].float() if view.has_global else scale.float()


def global_scale(grid: Grid, absmax: Tensor) -> Tensor:
    """fp32 `(1, 1)` of a layer whose largest magnitude is `absmax`."""
    largest = absmax.new_tensor(grid.divisor) * absmax.new_tensor(grid.scale_max)
    return (absmax / largest).clamp(2.0**-100, 2.0**100).view(1, 1)
