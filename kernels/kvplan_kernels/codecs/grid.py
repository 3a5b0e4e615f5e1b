"""Reference codec of every number x granularity: torch, CPU or CUDA, fp32 arithmetic, read from the layout alone.

Rows are head-major as in the pages: `x` is `(..., H, T, D)`. An encoded tensor is a dict from field name (`codes`,
`high`, `scale`, `zero`, `global`) to a tensor in the field's storage dtype: codes `(..., H, T, D)`, below 8 bits the
bytes of planar words `(..., H, T, D * bits // 8)` (see planar.py; 3 bits are 2 in `codes` and 1 in `high`), row
metadata `(..., H, T // tokens, items)`, static metadata `(H or 1, items)`.

A value is `scale * code + zero`. Scales are rounded to their storage first and the codes follow from the stored ones.
Rows of `rot` formats are rotated first (rotation.py), and back when they are decoded. Floats of 4 bits and scales of
one byte are in blocks.py.
Not-a-number policy of the quantised formats: NaN is stored as 0, infinities saturate, so no code ever decodes to NaN
or infinity. 16- and 32-bit formats keep what they are given.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kvplan.errors import UsageError
from kvplan.formats.layout import STORAGE_BITS, Layout, Plane, TensorView, code_fields
from kvplan_kernels.cache import DTYPES, field_shape
from kvplan_kernels.codecs import blocks
from kvplan_kernels.codecs.limits import Grid, grid_of
from kvplan_kernels.codecs.planar import pack_code, unpack_code
from kvplan_kernels.codecs.rotation import rotate_back, rotate_reference

Encoded = dict[str, Tensor]

# Mantissa bits and exponent of the smallest normal.
_FLOATS = {"fp8_e4m3": (3, -6), "fp8_e5m2": (2, -14), "fp4_e2m1": (1, 0)}


def encode(layout: Layout, role: str, x: Tensor, static: Encoded | None = None) -> Encoded:
    """Quantise rows `x` `(..., H, T, D)` of tensor `role`.

    Args:
        static: scales (and zeros) from `calibrate`, needed by tensor, head and channel formats and those with a global
            scale only.

    Raises:
        UsageError: a shape that the layout does not allow, or static scales missing or not wanted.
        UnsupportedError: a format that is formula only.
    """
    view = layout.view(role)
    grid = grid_of(view)
    _check_rows(layout, view, x)
    if not view.quantised:
        return _checked(layout, role, x, {"codes": x.to(DTYPES[view.number])})
    if (view.has_static_scale or view.has_global) != (static is not None):
        raise UsageError(
            f"{view.number}:{view.granularity}: static scales {'missing' if static is None else 'not wanted'}",
            "tensor, head and channel formats and those with a global scale take what calibrate() returns; others none",
        )
    values = _numbers(view, x)
    meta = _all_metadata(view, grid, values, static)
    codes = _codes(view, grid, _quotient(view, values, meta))
    return _checked(layout, role, x, {**codes, **meta})


def decode(layout: Layout, role: str, encoded: Encoded, *, turned: bool = False) -> Tensor:
    """Values `(..., H, T, D)` in fp32: scale * code + zero, with scale and zero as stored.

    Args:
        turned: leave rows of a `rot` format rotated, as they are stored.
    """
    view = layout.view(role)
    codes = encoded["codes"]
    if not view.quantised:
        return codes.float()
    if view.planar:
        whole = unpack_code([encoded[name] for name, _ in code_fields(view.number)], _widths(view))
        values = whole.float() - grid_of(view).excess if view.is_int else blocks.e2m1_values(whole)
    else:
        values = codes.view(torch.uint8).float() if view.is_int and view.asym else codes.float()
    values = values * _spread(view, blocks.scale_values(view, encoded))
    if view.asym:
        values = values + _spread(view, encoded["zero"].float())
    return rotate_back(values) if view.rot and not turned else values


def calibrate(layout: Layout, role: str, x: Tensor, margin: float = 1.0) -> Encoded:
    """Static scales (and zeros, or the global scale) of `role` from sample rows `x` `(..., H, T, D)`; {} for others.

    Non-finite samples are ignored; pass only rows that exist (no page padding). `margin` widens the covered range.
    """
    view = layout.view(role)
    if not (view.has_static_scale or view.has_global):
        return {}
    _check_rows(layout, view, x)
    x = _numbers(view, x.float().nan_to_num(nan=0.0, posinf=0.0, neginf=0.0))
    if view.has_global:
        return {"global": blocks.global_scale(grid_of(view), x.abs().amax() * margin)}
    keep = x.shape[-3] if view.static_per_head else 1
    rows = x.movedim(-3, 0).reshape(keep, -1, x.shape[-1])
    over = (1,) if view.granularity == "channel" else (1, 2)
    low, high = rows.amin(over).view(keep, -1), rows.amax(over).view(keep, -1)
    if margin != 1.0:
        widen = (high - low) * (margin - 1) / 2 if view.asym else torch.maximum(high, -low) * (margin - 1)
        low, high = low - widen, high + widen
    return _metadata(view, grid_of(view), (low, high), {})


def saturated(layout: Layout, role: str, x: Tensor, static: Encoded) -> Tensor:
    """Values of `x` `(..., H, T, D)` that a calibrated format clips, counted per head: int64 `(H,)`.

    A value counts when it lies more than half a step beyond the last code (infinities do, NaN does not).
    """
    view = layout.view(role)
    grid = grid_of(view)
    x = _numbers(view, x)
    q = _quotient(view, x, _all_metadata(view, grid, x, static))
    clipped = (q < grid.clip_low) | (q > grid.clip_high)
    return clipped.movedim(-3, 0).flatten(1).sum(1)


def count_ties(layout: Layout, role: str, x: Tensor, static: Encoded | None = None) -> int:
    """Values of `x` `(..., H, T, D)` exactly halfway between two codes, where only the rounding rule decides."""
    view = layout.view(role)
    grid = grid_of(view)
    x = _numbers(view, x)
    size = _quotient(view, x, _all_metadata(view, grid, x, static)).clamp(grid.low, grid.high).abs()
    if grid.kind != "int":
        mantissa, least = _FLOATS[view.number]
        size = torch.ldexp(size, mantissa - (torch.frexp(size).exponent - 1).clamp(min=least))
    return int((size - size.floor() == 0.5).sum())


def _numbers(view: TensorView, x: Tensor) -> Tensor:
    """Rows in fp32 as they are encoded: NaN as 0, rotated if the format asks for it."""
    if view.rot:
        return rotate_reference(x)
    return x.float().nan_to_num(nan=0.0, posinf=torch.inf, neginf=-torch.inf)


def _grouped_range(view: TensorView, grid: Grid, x: Tensor) -> tuple[Tensor, Tensor]:
    """(min, max) of what shares a row scale, shaped like the scale field `(..., H, T // tokens, items)`."""
    if view.granularity == "channel":
        parts, over = x.unflatten(-2, (-1, view.group)), -2
        return parts.amin(over), parts.amax(over)
    parts = x.unflatten(-1, (grid.groups, grid.width))
    return parts.amin(-1), parts.amax(-1)


def _all_metadata(view: TensorView, grid: Grid, x: Tensor, static: Encoded | None) -> Encoded:
    """Static metadata as given, and that of the rows `x`."""
    meta = dict(static or {})
    return meta if view.has_static_scale else meta | _metadata(view, grid, _grouped_range(view, grid, x), meta)


def _metadata(view: TensorView, grid: Grid, extent: tuple[Tensor, Tensor], static: Encoded) -> Encoded:
    """Scale (and zero) in their storage dtype, from the (min, max) that they must cover."""
    low, high = extent
    if view.meta_bits == 8:
        return {"scale": blocks.byte_scales(view, grid, torch.maximum(high, -low), static)}
    dtype = DTYPES[view.meta_storage]
    # A row of one infinity has no range: inf - inf is no number.
    span = (high - low).where(high != low, 0.0) if view.asym else torch.maximum(high, -low)
    # A divisor that is a tensor on the device: CUDA turns division by a Python number into a multiplication.
    scale = (span / span.new_tensor(grid.divisor)).clamp(grid.scale_min, grid.scale_max).to(dtype)
    if not view.asym:
        return {"scale": scale}
    # + 0.0 makes -0 into 0: which of the two is the minimum depends on the order of reduction.
    return {"scale": scale, "zero": (low + 0.0).clamp(-grid.zero_max, grid.zero_max).to(dtype)}


def _quotient(view: TensorView, x: Tensor, meta: Encoded) -> Tensor:
    """(x - zero) / scale in fp32, before rounding and clipping."""
    if view.asym:
        x = x - _spread(view, meta["zero"].float())
    return x / _spread(view, blocks.scale_values(view, meta))


def _codes(view: TensorView, grid: Grid, q: Tensor) -> Encoded:
    """Round half to even and clip, by field name; unsigned codes of 8 bits are kept as the bits of an int8 tensor."""
    if grid.kind == "fp8":
        # Clamped first: casts beyond the range differ between torch versions and devices.
        return {"codes": q.clamp(grid.low, grid.high).to(DTYPES[view.number])}
    if view.planar:
        code = blocks.e2m1_codes(q) if grid.kind == "fp4" else _whole(grid, q).to(torch.int32) + grid.excess
        names = [name for name, _ in code_fields(view.number)]
        return dict(zip(names, pack_code(code, _widths(view)), strict=True))
    whole = _whole(grid, q)
    return {"codes": whole.to(torch.uint8).view(torch.int8) if view.asym else whole.to(torch.int8)}


def _whole(grid: Grid, q: Tensor) -> Tensor:
    return q.round().clamp(grid.low, grid.high)


def _widths(view: TensorView) -> tuple[int, ...]:
    """Bits of the parts of a code, low bits first."""
    return tuple(STORAGE_BITS[storage] for _, storage in code_fields(view.number))


def _spread(view: TensorView, meta: Tensor) -> Tensor:
    """Metadata in fp32, made broadcastable to `(..., H, T, D)`."""
    if view.has_static_scale:
        return meta.unsqueeze(-2)
    if view.granularity == "channel":
        return meta.repeat_interleave(view.group, -2)
    return meta.repeat_interleave(view.group, -1) if view.granularity == "group" else meta


def _check_rows(layout: Layout, view: TensorView, x: Tensor) -> None:
    if x.dim() < 3 or x.shape[-3] != layout.heads or x.shape[-1] != view.dim:
        raise UsageError(
            f"rows of shape {tuple(x.shape)} do not fit {layout.heads} heads of {view.dim}", "pass (..., H, T, D)"
        )
    if view.granularity == "channel" and view.group and x.shape[-2] % view.group:
        raise UsageError(
            f"{x.shape[-2]} rows are no multiple of the {view.group}-token group", "pack whole groups of tokens only"
        )


def _checked(layout: Layout, role: str, x: Tensor, encoded: Encoded) -> Encoded:
    """Assert each field against the declaration: the codec writes exactly what the layout counts."""
    declared = [(p, f) for p in layout.planes for f in p.fields if f.tensor == role and p.scope in ("page", "layer")]
    assert {f.name for _, f in declared} == set(encoded), (declared, encoded.keys())
    for plane, field in declared:
        items, dtype = field_shape(field)
        want = _shape(plane, layout.heads, x, items, field.tokens)
        got = encoded[field.name]
        if tuple(got.shape) != want or got.dtype != dtype:
            raise UsageError(
                f"{role} {field.name}: layout declares {want} {field.storage}, got {tuple(got.shape)} {got.dtype}",
                "use the static scales of this layout",
            )
    return encoded


def _shape(plane: Plane, heads: int, x: Tensor, items: int, tokens: int) -> tuple[int, ...]:
    if plane.scope == "layer":
        return (plane.heads(heads), items)
    return (*x.shape[:-3], plane.heads(heads), x.shape[-2] // tokens, items)
