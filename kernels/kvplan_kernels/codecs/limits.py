"""The numbers of a stored format that its reference codec and its kernels share: code range, scale range, tile width.

No torch here: a `Grid` is passed to kernels as a `tl.constexpr` and is part of their compile key.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log2

from kvplan.errors import UnsupportedError
from kvplan.formats.layout import Layout, TensorView

# Largest finite magnitude of a code, and the magnitude from which a value is more than half a step beyond it.
_FLOATS = {"fp8_e4m3": (448.0, 464.0), "fp8_e5m2": (57344.0, 61440.0), "fp4_e2m1": (6.0, 7.0)}

# Exponent of the largest finite magnitude, for scales that are powers of two.
_EMAX = {"fp8_e4m3": 8, "fp8_e5m2": 15, "fp4_e2m1": 2}

# Values of a group of tokens that a program of the write kernel holds.
GROUP_VALUES = 4096

_INTEGERS = ("int8", "int4", "int3", "int2")

# Range into which a scale is clamped, per storage. The low end keeps a range of 0 from dividing by 0; in fp16 it is the
# smallest subnormal, because even there half a step (3e-8) is finer than with the smallest normal (3e-5); in wider
# types what kernels can still bring into fp16's range. The high end keeps code * scale finite.
_SCALES = {
    "fp16": (2.0**-24, 65504.0), "bf16": (2.0**-60, 2.0**111), "fp32": (2.0**-60, 2.0**111),
    "fp8_e4m3": (2.0**-9, 448.0), "e8m0": (2.0**-60, 2.0**111),
}  # fmt: skip
# Scales by channel over N tokens are multiplied into a query below 2**(1 + middle_field), in fp16: beyond one end the
# product is infinite, beyond the other it loses its bits. A step of 2^-14 moves no logit that matters.
_CHANNEL_SCALE_LOG2 = 14
_ZEROS = {"fp16": 65504.0, "bf16": 3.3895313892515355e38, "fp32": 3.3895313892515355e38}


@dataclass(frozen=True)
class Grid:
    """How values become codes: `code = round((x - zero) / scale)` clipped to [low, high].

    Attributes:
        kind: `plain` (a 16- or 32-bit copy), `int`, `fp8` or `fp4`.
        excess: what is added to a code before it is stored. Signed codes below 8 bits are stored in excess notation, so
            that one mask unpacks them; signed int8 in two's complement, as other engines have it.
        divisor: scale = range / divisor, range being absmax, or max - min with a zero.
        clip_low, clip_high: (x - zero) / scale beyond these counts as saturated (half a step past the last code).
        width: channels of one head that share a scale along the row (dim unless group/N).
        tile: `width` rounded up to a power of two.
        emax: exponent of `high`, for scales that are powers of two.
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
    emax: int = 0

    @property
    def scale_min_code(self) -> int:
        """`scale_min` as an e8m0 byte."""
        return 127 + int(log2(self.scale_min))

    @property
    def scale_max_code(self) -> int:
        return 127 + int(log2(self.scale_max))


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
    if view.rot and view.dim & (view.dim - 1):
        raise UnsupportedError(
            f"{view.number},rot of {view.dim} channels has no codec: the rotation is a Hadamard matrix",
            "it needs a head_dim that is a power of two, such as 64, 128 or 256",
        )
    scale_min, scale_max = _SCALES[view.meta_storage]
    if view.by_channel:
        scale_min = max(scale_min, 2.0**-_CHANNEL_SCALE_LOG2)
        scale_max = min(scale_max, 2.0 ** (_CHANNEL_SCALE_LOG2 - view.middle_field))
    bounds = {"scale_min": scale_min, "scale_max": scale_max, "zero_max": _ZEROS.get(view.meta_storage, 0.0)}
    if view.planar and not view.whole_words:
        raise UnsupportedError(
            f"{view.number} rows of {view.dim} channels have no codec: they end inside a 16-bit word",
            f"it needs a head_dim that is a multiple of {view.channel_multiple}",
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
        kind = view.number[:3]
        return Grid(kind, -top, top, top, -clip, clip, emax=_EMAX[view.number], **bounds, **shared)
    raise UnsupportedError(
        f"{view.number} has a layout but no codec yet", "use 16 bit, int8, int4, int3, int2, fp8 or fp4"
    )


def float_grid(number: str, scale: str) -> Grid:
    """An fp8 or fp4 number whose scales are stored as `scale`, without a shape."""
    top, clip = _FLOATS[number]
    low, high = _SCALES[scale]
    return Grid(number[:3], -top, top, top, -clip, clip, emax=_EMAX[number], scale_min=low, scale_max=high)


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
        view = layout.view(role)
        grid_of(view)
        if view.formula_only:
            raise UnsupportedError(
                f"format {layout.tensor(role).spelling} has no write kernel yet",
                "rot, int3, fp4, global and pack=page have none beside channel/N or recent=",
            )
