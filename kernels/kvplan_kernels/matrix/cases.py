"""A case of the trap matrix: one frozen record of axes, and what follows from them without running anything."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache, cached_property
from math import lcm
from typing import Any

from kvplan.errors import KvplanError, UnsupportedError
from kvplan.formats.layout import BoundTensor, Layout, TensorView
from kvplan.units import cdiv
from kvplan_kernels.attention.config import DecodeConfig, default_config
from kvplan_kernels.attention.door import check_fp8_domain
from kvplan_kernels.attention.mode import block_columns
from kvplan_kernels.attention.prefill import LARGEST_DIM
from kvplan_kernels.codecs.limits import check_kernel
from kvplan_kernels.testing import layout_of

# K and V apart, so that every spelling of `testing.WITH_KERNEL` and the KIVI pairs occur in few pairs.
FORMATS = (
    "fp16 int8:head,asym", "bf16 int4:group/16,scale=bf16", "fp32 int4:group/32,asym", "int8 int8,asym",
    "int8,scale=bf16 int8,asym,scale=fp32", "int8:group/32 int8:group/16,asym", "int8:tensor,asym int8:tensor",
    "int8:head fp8_e4m3:head", "int8:channel,asym fp8_e4m3", "fp8_e4m3:token fp8_e5m2:token,scale=bf16",
    "fp8_e4m3:head fp8_e4m3", "fp8_e5m2 int8:channel", "fp8_e5m2:head int4:channel,asym", "int4 int4:token,asym",
    "int4:group/32,asym int2:group/32", "int2:token,asym int2:head", "nvfp4 mxfp4", "mxfp8 nvfp4",
    "int4:token,asym,rot int3,rot",
    "int2:channel/32,asym,recent=32 int2:group/32,asym,recent=32",
    "int4:channel/16,asym,recent=16 int4:group/16,asym,recent=16",
    "int8:channel/16 int8:token,recent=8,flush=whole", "fp8_e5m2:channel/16,scale=fp32 fp8_e4m3:token,recent=3",
    "int4:token,recent=21 int8:group/32,asym,recent=5", "int8:token,recent=8 int2:group/32,asym,recent=5",
    "int8:channel/8,asym,recent=24 int2:channel/24,scale=bf16,recent=24",
)  # fmt: skip

AXES: dict[str, tuple] = {
    "formats": FORMATS,
    "lengths": ("zero and one", "page edge", "tile edge", "flush edge", "tail", "one request", "mixed"),
    "page_size": (16, 32, 48, 64, 128),
    "dims": ((64, 64), (80, 80), (96, 96), (112, 112), (128, 128), (192, 128), (192, 192), (256, 256), (576, 512)),
    "group": (1, 2, 3, 4, 5, 6, 7, 8, 12, 16),
    "heads": (1, 2),
    "rows": (1, 2, 4),
    "variant": ("plain", "window of 1", "window", "window beyond", "softcap", "sinks", "all three"),
    "data": ("normal", "equal", "zeros", "outlier", "overflow", "denormal", "negative", "offset", "ties"),
    "dirt": ("nan", "inf", "stale"),
    "dtype": ("fp16", "bf16"),
    "write": ("bulk", "pieces", "tokens", "fused"),
    "calibration": ("fit", "clip"),
    "queries": ("unit", "tiny", "large", "sharp"),
    "again": (
        "programs",
        "page size",
        "order",
        "scales",
        "code",
        "fp8 domain",
        "prefix fused",
        "prefix dense",
    ),
}
"""Every value of every axis that the interpreter can run."""

# Tokens of a single append at the end of the write pattern `tokens`: they cross every edge that `lengths` sits on.
SINGLES = 6
# Elements of one plane from which 32-bit offsets overflow.
HUGE_ELEMENTS = 2**31


@dataclass(frozen=True)
class Case:
    """One case.

    Attributes:
        formats: spelling of K, a blank, spelling of V.
        lengths: name of a pattern, see `counts`.
        group: query heads per KV head.
        rows: query rows of a request, the newest ones.
        variant: of attention; a `window` leaves whole tiles out, one `beyond` every length changes nothing.
        data: kind of rows, see data.py.
        dirt: what unused bytes hold when the cache is read: NaN, infinities, or rows of an earlier sequence.
        write: in one call, in pieces at odd offsets, token by token at the end, or from a fused (strided) projection.
        calibration: static scales fit the rows or clip them.
        queries: magnitude of the queries; `sharp` has logits whose exponentials leave fp32.
        again: what is changed for the second read, or what reads: see again.py.
        pool: `huge` has more than 2^31 elements and the sequences' pages at its end.
    """

    formats: str = "int8 int8"
    lengths: str = "tail"
    page_size: int = 32
    dims: tuple[int, int] = (64, 64)
    group: int = 4
    heads: int = 1
    rows: int = 1
    variant: str = "plain"
    data: str = "normal"
    dirt: str = "nan"
    dtype: str = "fp16"
    write: str = "bulk"
    calibration: str = "fit"
    queries: str = "unit"
    again: str = "programs"
    pool: str = "small"

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> Case:
        return cls(**{**stored, "dims": tuple(stored["dims"])})

    @cached_property
    def layout(self) -> Layout:
        """Raises what the grammar and the layout refuse."""
        return _layout(self.formats, self.dims, self.heads, self.dtype)

    def view(self, role: str) -> TensorView:
        """The layout's view of `k` or `v`."""
        return _view(self.formats, self.dims, self.heads, self.dtype, role)

    @cached_property
    def tensors(self) -> tuple[BoundTensor, BoundTensor]:
        return self.layout.tensor("k"), self.layout.tensor("v")

    @cached_property
    def config(self) -> DecodeConfig:
        return _config(self.formats, self.dims, self.heads, self.dtype, self.page_size, self.columns)

    @property
    def columns(self) -> int:
        """Query columns of a block, as the decode launcher cuts them."""
        return block_columns(self.rows, self.group, max(self.dims))

    @property
    def window(self) -> int | None:
        return {"window of 1": 1, "window": 5, "window beyond": 100_000, "all three": 5}.get(self.variant)

    @property
    def recent(self) -> int:
        """Capacity of the larger residual, 0 without one."""
        return max(t.recent for t in self.tensors)

    @property
    def has_static(self) -> bool:
        return any(v.has_static_scale or v.has_global for v in map(self.view, "kv"))

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """Tokens of each request."""
        return self._counts(self.config.block_tokens)

    def _counts(self, tile: int) -> tuple[int, ...]:
        page = self.page_size
        return {
            "tile edge": _around(tile),
            "zero and one": (0, 1),
            "page edge": _around(page),
            "flush edge": _around(self.recent),
            "tail": (page + 5,),
            "one request": (3,),
            "mixed": (0, page + 3, 1, 0, 17),
            "many pages": (5 * page + 7, 0, 3 * page, 1, 2 * page - 1),
            "long": (70_001,),
        }[self.lengths]

    def num_pages(self, page_size: int) -> int:
        """Pages of the pool; two or more belong to nobody."""
        need = len(self.counts) * cdiv(max(1, *self.counts), page_size) + 2
        if self.pool == "small":
            return need
        return need + cdiv(HUGE_ELEMENTS, self.heads * page_size * min(v.words for v in map(self.view, "kv")))

    @property
    def effort(self) -> float:
        """Seconds in the interpreter, roughly: it pays for each tile, plane of channels and query head.

        Not from the launch configuration: the committed list would change with every tuned tile.
        """
        views = [self.view(role) for role in "kv"]
        planes = sum(v.stripes * v.fields_per_word for v in views)
        tiles = sum(cdiv(count, 32) for count in self._counts(32))
        rows = len(self._counts(32)) * cdiv(max(self._counts(32)), 16 if any(v.planar for v in views) else 32)
        calls = {"tokens": 3, "pieces": 2}.get(self.write, 1)
        return self.heads * (
            0.012 * tiles * planes
            + 0.012 * rows * calls * planes
            + 0.024 * len(self._counts(32)) * self.group * self.rows
        )

    def shape_refusal(self) -> str | None:
        """Why the library has no kernels of this shape for these formats, in its own words."""
        return _refusal(self.formats, self.dims, self.heads, self.dtype, self.page_size, self.columns)

    def refusal(self) -> str | None:
        """Why there is no such case: the library's own words, or an axis that says nothing for these formats."""
        return self.shape_refusal() or next(iter(self.silent.values()), None)

    @property
    def silent(self) -> dict[str, str]:
        """Axes whose value says nothing beside the others, and why."""
        found = {}
        if self.lengths == "flush edge" and not self.recent:
            found["lengths"] = "a flush edge needs a residual"
        if self.calibration == "clip" and not self.has_static:
            found["calibration"] = "only static scales can be calibrated too narrowly"
        if self.again == "scales" and (not self.view("k").quantised or self.data == "overflow"):
            found["again"] = "there are no scales to double, or they are as large as can be"
        if self.again == "fp8 domain" and not _has_fp8_domain(self.layout):
            found["again"] = "only fp8_e4m3 with static scales has an FP8 domain"
        if self.again.startswith("prefix") and max(self.dims) > LARGEST_DIM:
            found["again"] = f"chunks have at most {LARGEST_DIM} channels"
        k = self.view("k")
        if self.queries == "sharp" and (k.rot or k.by_channel or k.nested or k.static_items > 1):
            found["queries"] = "queries that are scaled by channel, turned or combined are rounded once more"
        if self.data == "offset" and self.variant in ("softcap", "sinks", "all three"):
            found["data"] = "beside a softcap or a sink the rounding of what all logits have in common counts"
        if self.dtype == "fp16" and self.view("k").number == "bf16":
            found["dtype"] = "bf16 keys round fp16 queries"
        v, in_bf16 = self.view("v"), self.dtype == "bf16"
        if self.data == "outlier" and (
            v.number == "bf16" or (in_bf16 and (v.recent or self.again.startswith("prefix")))
        ):
            found["data"] = "one outlier among bf16 values shows the rounding of one probability to 8 bits"
        if self.data == "denormal" and self.queries == "sharp":
            found["data"] = "codes of 0 and 1 are small beside their excess, whose rounding decides sharp logits"
        if self.data == "denormal" and self.dtype == "fp16" and self.again == "prefix dense":
            found["data"] = "a scratch of fp16 has no digits for these rows"
        if self.data == "overflow" and self.dtype == "fp16":
            found["data"] = "fp16 rows cannot overflow a scale"
        return found

    @property
    def digest(self) -> str:
        """Names the case in reports."""
        return hashlib.sha256(repr(self).encode()).hexdigest()[:10]

    @property
    def other_page(self) -> int:
        """A page size other than the case's that the layout and the kernels take."""
        step = lcm(16, self.layout.page_multiple)
        return self.page_size + (step if self.page_size < 96 else -step)


# Cached: a cover asks for the same few shapes hundreds of thousands of times.
@cache
def _layout(formats: str, dims: tuple[int, int], heads: int, dtype: str) -> Layout:
    k, v = formats.split()
    return layout_of(k, v, dims, heads, dtype)


@cache
def _view(formats: str, dims: tuple[int, int], heads: int, dtype: str, role: str) -> TensorView:
    return _layout(formats, dims, heads, dtype).view(role)


@cache
def _config(formats: str, dims: tuple[int, int], heads: int, dtype: str, page_size: int, columns: int) -> DecodeConfig:
    return default_config(_layout(formats, dims, heads, dtype), page_size, columns)


@cache
def _refusal(formats: str, dims: tuple[int, int], heads: int, dtype: str, page_size: int, columns: int) -> str | None:
    try:
        layout = _layout(formats, dims, heads, dtype)
        check_kernel(layout)
        layout.check_page_size(page_size)
        _config(formats, dims, heads, dtype, page_size, columns)
    except KvplanError as error:
        return error.message
    return None


def _has_fp8_domain(layout: Layout) -> bool:
    try:
        check_fp8_domain(layout)
    except UnsupportedError:
        return False
    return True


def _around(edge: int) -> tuple[int, ...]:
    return (edge - 1, edge, edge + 1)
