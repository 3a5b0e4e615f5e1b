"""Rows as a cache gives them back: kvplan's reference codecs inside a model's forward pass.

`x` is `(B, H, T, D)`: all rows of one layer, post-RoPE K or V, KV heads not repeated.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache

from kvplan_kernels.codecs.grid import Encoded, calibrate, decode, encode, saturated
from kvplan_kernels.codecs.limits import grid_of
from torch import Tensor

from kvplan.formats.grammar import PLAIN, Format, Named, parse_any
from kvplan.formats.grid import Tensor as TensorSpec
from kvplan.formats.grid import bind
from kvplan.formats.layout import Layout
from kvplan.quality.request import is_calibrated


@dataclass(frozen=True)
class Rows:
    """One tensor as attention sees it.

    Attributes:
        exact: rows as computed, `(B, H, T, D)`.
        decoded: the same rows after encode and decode; `exact` itself for an untouched tensor.
        layout: whose split law says which of the two the query at position t sees; None without a residual.
    """

    role: str
    exact: Tensor
    decoded: Tensor
    layout: Layout | None = None

    def packed(self, position: int) -> int:
        """Rows that the query at `position` sees decoded: those packed before its own row was appended.

        Without a residual all are, its own row included.
        """
        return self.exact.shape[-2] if self.layout is None else self.layout.tensor(self.role).split(position)[0]


def untouched(role: str, x: Tensor) -> Rows:
    """Rows without any format."""
    return Rows(role, x, x)


@cache
def codec_layout(role: str, spelling: str, heads: int, dim: int, dtype: str) -> Layout:
    """The layout of one tensor of one layer, checked for a codec.

    Bytes that only lie elsewhere (`pack`) leave values as they are, so they are taken off for the codec.

    Args:
        dtype: fp16, bf16 or fp32: what `scale=model` means.

    Raises:
        UsageError: a format that does not fit the geometry.
        UnsupportedError: a format without a codec.
    """
    layout = any_layout(role, spelling, heads, dim, dtype)
    grid_of(layout.view(role))
    return layout


def any_layout(role: str, spelling: str, heads: int, dim: int, dtype: str) -> Layout:
    """The same for formats without a codec as well.

    Raises:
        UsageError: a format that does not fit the geometry.
    """
    parsed: Format | Named = parse_any(spelling)
    if isinstance(parsed, Format):
        parsed = replace(parsed, pack="")
    return bind([TensorSpec(role, parsed, dim)], heads, dtype)


@dataclass
class Codec:
    """Encode and decode for one tensor (`k` or `v`) of all layers.

    Attributes:
        static: layer to the scales that were learnt before: static ones, and the global scale of nvfp4.
        margin: factor on the range that static scales cover.
        clipped, values: counted over all layers, for static formats.
    """

    role: str
    spelling: str
    dtype: str
    static: dict[int, Encoded] = field(default_factory=dict)
    margin: float = 1.0
    clipped: int = 0
    values: int = 0

    @property
    def is_calibrated(self) -> bool:
        return is_calibrated(self.spelling)

    @property
    def is_plain(self) -> bool:
        return self.spelling in PLAIN

    def calibrate(self, layer: int, x: Tensor) -> None:
        """Static scales of one layer from sample rows."""
        if self.is_calibrated:
            self.static[layer] = calibrate(self._layout(x), self.role, x[0], self.margin)

    def rows(self, layer: int, x: Tensor) -> Rows:
        """What a cache in this format gives back of `x`."""
        layout = self._layout(x)
        tensor, static = layout.tensor(self.role), self.static.get(layer)
        # Rows of an unfinished group of tokens are still in the residual for every query.
        whole = x.shape[-2] // layout.page_multiple * layout.page_multiple
        decoded = x.clone()
        rows = x[..., :whole, :]
        decoded[..., :whole, :] = decode(layout, self.role, encode(layout, self.role, rows, static))
        if static is not None:
            self.clipped += int(saturated(layout, self.role, x, static).sum())
            self.values += x.numel()
        return Rows(self.role, x, decoded, layout if tensor.recent else None)

    def _layout(self, x: Tensor) -> Layout:
        return codec_layout(self.role, self.spelling, x.shape[1], x.shape[-1], self.dtype)
