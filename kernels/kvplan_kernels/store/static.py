"""Static scales of a cache: calibrated from sample rows, kept in the layer planes."""

from __future__ import annotations

import torch
from torch import Tensor

from kvplan_kernels.cache import DTYPES, Cache
from kvplan_kernels.codecs.grid import Encoded, calibrate


def set_static(cache: Cache, role: str, static: Encoded) -> None:
    """Copy static scales (and zeros) of tensor `role` into the cache's layer planes.

    Raises:
        ValueError: a name, shape or dtype that the layout does not declare.
    """
    for name, value in static.items():
        plane = cache.static(role, name)
        if plane is None or plane.shape != value.shape or plane.dtype != value.dtype:
            declared = "nothing" if plane is None else f"{tuple(plane.shape)} {plane.dtype}"
            got = f"{tuple(value.shape)} {value.dtype}"
            raise ValueError(f"static {role} {name}: layout declares {declared}, got {got}")
        plane.copy_(value)


def get_static(cache: Cache, role: str) -> Encoded | None:
    """Static scales (and zeros, or the global one) of `role`, as the reference codec takes them; None for others."""
    found = {name: cache.static(role, name) for name in ("scale", "zero", "global")}
    return {name: plane for name, plane in found.items() if plane is not None} or None


def calibrate_cache(cache: Cache, k: Tensor, v: Tensor, margin: float = 1.0) -> None:
    """Calibrate K and V of a static format from sample rows `(B, T, HKV, D)` and store the scales; else do nothing.

    Args:
        margin: factor by which the calibrated range is widened.
    """
    for role, x in (("k", k), ("v", v)):
        set_static(cache, role, calibrate(cache.layout, role, x.transpose(1, 2), margin))


def double_scales(cache: Cache, role: str) -> None:
    """Double every scale of `role` in place, for proofs that kernels read them; one-byte scales up to the largest."""
    view = cache.layout.view(role)
    scales = cache.static(role) if view.has_static_scale else cache.field(role, "scale")
    assert scales is not None
    if view.meta_bits > 8:
        if cache.layout.plane(role, "scale").pack:
            scales = scales.view(DTYPES[view.meta_storage])
        scales.mul_(2)
        return
    # The exponent is the whole byte (e8m0) or begins at bit 3 (e4m3, whose largest finite code is 0x7E).
    step, top = (1, 0xFE) if view.meta_storage == "e8m0" else (8, 0x7E)
    bits = scales.view(torch.uint8)
    bits.copy_((bits.to(torch.int32) + step).clamp(max=top))
