"""Reference codec of MLA latents, one row per token: the nope part quantised by groups, the rope part in 16 bit.

Rows are `(..., T, nope + rope)`. An encoded latent is a dict from field name to a tensor in the field's storage:
`codes` `(..., T, nope)` in fp8, `scale` fp32 `(..., T, groups)`, `rope` `(..., T, rope)`; a 16-bit latent has `codes`
`(..., T, nope + rope)` alone. Offsets in the slot come from the layout.

A scale is absmax / 448, at least the smallest normal fp32, kept in fp32; a code is value / scale, to nearest even.
Source: DeepSeek's FlashMLA and vLLM's `concat_and_cache_ds_mla`. Not-a-number policy of the codes as in grid.py: NaN is
stored as 0, infinities saturate. 16-bit values keep what they are given.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kvplan.formats.ds_mla import LatentView, latent_view
from kvplan.formats.layout import Layout
from kvplan_kernels.cache import DTYPES, Cache
from kvplan_kernels.codecs.limits import Grid, float_grid

Encoded = dict[str, Tensor]


def latent_grid(view: LatentView) -> Grid:
    """Code and scale range of the nope part."""
    return float_grid(view.number, "fp32")


def encode_latent(layout: Layout, x: Tensor) -> Encoded:
    """Quantise rows `x` `(..., T, nope + rope)`.

    Raises:
        UnsupportedError: a format without a codec.
        ValueError: rows of another width.
    """
    view = latent_view(layout)
    if x.shape[-1] != view.dim:
        raise ValueError(f"rows of {x.shape[-1]} channels, the latent has {view.dim}")
    if not view.quantised:
        return {"codes": x.to(DTYPES[view.number])}
    grid = latent_grid(view)
    values = x[..., : view.nope].float().nan_to_num(nan=0.0, posinf=torch.inf, neginf=-torch.inf)
    groups = values.unflatten(-1, (view.parts, view.part))
    # A divisor that is a tensor on the device: CUDA turns division by a Python number into a multiplication.
    scale = groups.abs().amax(-1) / values.new_tensor(grid.high)
    scale = scale.clamp(grid.scale_min, grid.scale_max)
    codes = (groups / scale[..., None]).clamp(grid.low, grid.high).flatten(-2).to(DTYPES[view.number])
    return {"codes": codes, "scale": scale, "rope": x[..., view.nope :].to(DTYPES[view.rope_storage])}


def decode_latent(layout: Layout, encoded: Encoded) -> Tensor:
    """Rows `(..., T, nope + rope)` in fp32: scale * code, and the rope part as stored."""
    view = latent_view(layout)
    codes = encoded["codes"].float()
    if not view.quantised:
        return codes
    values = codes.unflatten(-1, (view.parts, view.part)) * encoded["scale"][..., None]
    return torch.cat([values.flatten(-2), encoded["rope"].float()], -1)


def slot_views(cache: Cache) -> tuple[Tensor, Tensor, Tensor]:
    """The plane of slots as kernels address it: (codes as int16 words or 16-bit values, rope values, fp32 scales).

    All three begin at the first slot; a 16-bit latent has no scales and repeats its values.
    """
    view = latent_view(cache.layout)
    plane = cache.planes[cache.layout.plane("latent", "codes").name]
    if not view.quantised:
        return plane, plane, plane
    return plane.view(torch.int16), plane.view(DTYPES[view.rope_storage]), plane.view(torch.float32)
