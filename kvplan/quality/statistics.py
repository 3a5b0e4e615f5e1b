"""Errors from statistics of captured tensors alone: no codec runs.

Of K and V per channel: energy, and mean squared range or maximum of what shares a scale (crest factors). Of queries:
energy per channel, since an error in K counts by what multiplies it, and the attention mass on rows that are old enough
to be stored. A step is range / (2^bits - 1), its mean squared error step^2 / 12; a float's error is a share of its
value. The error of the logits, and V's relative error, then stand for the errors of the attention output.
"""

from __future__ import annotations

import torch
from kvplan_kernels.codecs.rotation import rotate_reference
from torch import Tensor

from kvplan.captured import CapturedRows, CaptureFile
from kvplan.errors import UnsupportedError
from kvplan.formats.grammar import PLAIN, Format, Named, parse_any
from kvplan.formats.layout import Layout, number_bits
from kvplan.formats.named import recipe_of
from kvplan.quality.stored import Rows, any_layout, untouched
from kvplan.quality.tensors import probabilities, seen_decoded

GAUSSIAN_ERRORS = {
    "fp8_e4m3": 0.0265, "fp8_e5m2": 0.053, "fp4_e2m1": 0.095, "lm4": 0.0975, "lm3": 0.1858, "lm2": 0.3428
}  # fmt: skip
"""Relative error of a float, or of a Lloyd-Max codebook (Max, 1960), on Gaussian data."""
POWERS_OF_TWO = 1.2
"""How much larger it is when a scale is a power of two, below 8 bits."""


class StatisticErrors:
    """Like `tensors.TensorErrors`, from statistics."""

    def __init__(self, file: CaptureFile, dtype: str = "bf16") -> None:
        self.file, self._dtype = file, dtype
        self._p = [probabilities(x, untouched("k", x.k)) for x in file.layers]

    def error(self, role: str, spelling: str) -> float:
        """Of K the error of the logits, of V its own relative error: mean over layers and heads."""
        if spelling in PLAIN:
            return 0.0
        found = [self._layer(i, role, spelling) for i in range(len(self.file.layers))]
        return float(torch.stack(found).mean())

    def _layer(self, i: int, role: str, spelling: str) -> Tensor:
        x = self.file.layers[i]
        rows: Tensor = getattr(x, role)
        layout = any_layout(role, spelling, rows.shape[0], rows.shape[-1], self._dtype)
        grid = format_of(spelling)
        q = x.q.unflatten(0, (x.k.shape[0], -1))
        if grid.rot:
            rows, q = rotate_reference(rows), rotate_reference(q) if role == "k" else q
        errors = torch.minimum(channel_errors(grid, rows), rows.square().mean(1))
        if role == "k":
            weighed = (q.square().mean((1, 2)) * errors).sum(-1) * x.scale**2
        else:
            weighed = errors.sum(-1) / rows.square().mean(1).sum(-1)
        return (weighed * self._stored_mass(i, x, rows, layout, role)).sqrt()

    def _stored_mass(self, i: int, x: CapturedRows, rows: Tensor, layout: Layout, role: str) -> Tensor:
        """Share of the attention mass on decoded rows, by head."""
        if not layout.tensor(role).recent:
            return torch.ones(rows.shape[0])
        return (self._p[i] * seen_decoded(x, Rows(role, rows, rows, layout))).sum(-1).mean((1, 2))


def format_of(spelling: str) -> Format:
    """Number and granularity; of a name, those that it stands for."""
    parsed = parse_any(spelling)
    return recipe_of(parsed.name).format if isinstance(parsed, Named) else parsed


def channel_errors(grid: Format, x: Tensor) -> Tensor:
    """Mean squared error of every channel `(H, D)` of rows `(H, T, D)`.

    Raises:
        UnsupportedError: a number whose error is not known.
    """
    if grid.number in GAUSSIAN_ERRORS:
        share = GAUSSIAN_ERRORS[grid.number]
        if grid.scale == "e8m0" and number_bits(grid.number) < 8:
            share *= POWERS_OF_TWO
        return share**2 * x.square().mean(1)
    if not grid.number.startswith("int"):
        raise UnsupportedError(f"nothing is known of the error of {grid.number}", "use int, fp8, fp4 or lm numbers")
    low, high = _extent(grid, x)
    levels = 2 ** number_bits(grid.number)
    step = (high - low) / (levels - 1) if grid.asym else 2 * torch.maximum(high, -low) / max(levels - 2, 1)
    squares = step.square().mean(1) / 12
    width = x.shape[-1] // squares.shape[-1]
    return squares.repeat_interleave(width, -1)


def _extent(grid: Format, x: Tensor) -> tuple[Tensor, Tensor]:
    """(min, max) of what shares a scale: `(H, groups of tokens, groups of channels)`."""
    heads, tokens, dim = x.shape
    if grid.granularity == "group" or grid.granularity == "token":
        parts = x.unflatten(-1, (dim // (grid.group or dim), -1))
        return parts.amin(-1), parts.amax(-1)
    if grid.group:
        parts = x[:, : tokens // grid.group * grid.group].unflatten(1, (-1, grid.group))
        return parts.amin(2), parts.amax(2)
    over = {"channel": (1,), "head": (1, 2), "tensor": (0, 1, 2)}[grid.granularity]
    low, high = x.amin(over, keepdim=True), x.amax(over, keepdim=True)
    shape = (heads, 1, low.shape[-1])
    return low.expand(shape), high.expand(shape)
