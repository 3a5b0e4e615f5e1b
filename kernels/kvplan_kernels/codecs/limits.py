"""The numbers of a stored format that its reference codec and its kernels share: code range, scale range, tile width.

No torch here: a `Grid` is passed to kernels as a `tl.constexpr` and is part of their compile key.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvplan.errors import UnsupportedError
from kvplan.formats.layout import Layout, TensorView

# Largest finite magnitude of a code, and the magnitude from which a value is more than half a step beyond it.
_FLOATS = {"fp8_e4m3": (448.0, 464.0), "fp8_e5m2": (57344.0, 61440.0)}

# Values of a group of tokens that a program of the write kernel holds.
GROUP_VALUES = 4096

_INTEGERS = ("int8", "int4", "int2")

# Range into which a scale is clamped, per storage. The low end keeps a range of 0 from dividing by 0; in fp16 it is the
# smallest subnormal, because even there half a step (3e-8) is finer than with the smallest normal (3e-5). The high end
# keeps code * scale finite.
_SCALES = {"fp16": (2.0**-24, 65504.0), "bf16": (2.0**-126, 2.0**111), "fp32": (2.0**-126, 2.0**111)}
_ZEROS = {"fp16": 65504.0, "bf16": 3.3895313892515355e38, "fp32": 3.3895313892515355e38}


@dataclass(frozen=True)
class Grid:
    """How values become codes: `code = round((x - zero) / scale)` clipped to [low, high].

    Attributes:
        kind: `plain` (a 16- or 32-bit copy), `int` or `fp8`.
        excess: what is added to a code before it is stored. Signed codes below 8 bits are stored in excess notation, so
            that one mask unpacks them; signed int8 in two's complement, as other engines have it.
        divisor: scale = range / divisor, range being absmax, or max - min with a zero.
        clip_low, clip_high: (x - zero) / scale beyond these counts as saturated (half a step past the last code).
        width: channels of one head that share a scale along the row (dim unless group/N).
        tile: `width` rounded up to a power of two.
        chunk: with channel/N, channels (below 8 bits: words) of a group of tokens that a program encodes at once.
    """

    kind: str
    low: float = 0.0
    high: float = 0.0
    divisor: float = 1.0
    clip_low: float = 0.0
    clip_high: float = 0.0
    scale_min: float = 0.0
    scale_max: float = 0.0
    zero_max: float = 0.0
    width: int = 0
    groups: int = 1
    tile: int = 0
    chunk: int = 0
    excess: int = 0


def grid_of(view: TensorView) -> Grid:
    """The numbers of one tensor.

    Raises:
        UnsupportedError: a number that has a layout but no codec yet ("formula only").
    """
    width = view.group if view.granularity == "group" else view.dim
    tile = 1 << (width - 1).bit_length()
    shared = {"width": width, "groups": view.dim // width, "tile": tile, "chunk": _chunk(view)}
    if not view.quantised:
        return Grid("plain", **shared)
    scale_min, scale_max = _SCALES[view.meta_storage]
    bounds = {"scale_min": scale_min, "scale_max": scale_max, "zero_max": _ZEROS[view.meta_storage]}
    if view.planar and view.number in _INTEGERS and not view.whole_words:
        raise UnsupportedError(
            f"{view.number} rows of {view.dim} channels have no codec: they end inside a 16-bit word",
            f"it needs a head_dim that is a multiple of {view.fields_per_word}",
        )
    if view.number in _INTEGERS and view.asym:
        top = 2.0**view.bits - 1
        return Grid("int", 0.0, top, top, -0.5, top + 0.5, **bounds, **shared)
    if view.number in _INTEGERS:
        top = 2.0 ** (view.bits - 1) - 1
        excess = 1 << (view.bits - 1) if view.planar else 0
        return Grid("int", -top, top, top, -top - 0.5, top + 0.5, excess=excess, **bounds, **shared)
    if view.number in _FLOATS:
        top, clip = _FLOATS[view.number]
        return Grid("fp8", -top, top, top, -clip, clip, **bounds, **shared)
    raise UnsupportedError(f"{view.number} has a layout but no codec yet", "use 16 bit, int8, int4, int2 or fp8")


def _chunk(view: TensorView) -> int:
    """Columns of a group's tile, a power of two: more values than GROUP_VALUES at once would spill."""
    if not view.by_channel:
        return 0
    columns = view.words if view.planar else view.dim
    tokens = 1 << (view.group - 1).bit_length()
    return max(1, min(1 << (columns - 1).bit_length(), GROUP_VALUES // tokens))


def check_kernel(layout: Layout) -> None:
    """Refuse a layout whose K or V has no write kernel.

    Raises:
        UnsupportedError: naming the format.
    """
    for role in ("k", "v"):
        grid_of(layout.view(role))
