"""The MLA latent: one row per token that is key and, in its first channels, value; all query heads read it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from kvplan_kernels.attention.config import DecodeConfig
from kvplan_kernels.attention.latent import latent_decode, make_latent_workspace
from kvplan_kernels.attention.latent_config import LatentConfig, latent_config
from kvplan_kernels.attention.latent_unfused import latent_unfused_decode
from kvplan_kernels.attention.unfused import dense_decode
from kvplan_kernels.attention.variant import PLAIN, Variant
from kvplan_kernels.attention.workspace import Workspace
from kvplan_kernels.cache import Cache
from kvplan_kernels.dialect import capability_of
from kvplan_kernels.store.latent import append_latent
from kvplan_kernels.store.latent_reference import read_latent_reference, write_latent_reference
from kvplan_kernels.tuning.launch import Launch, table_launch
from torch import Tensor

from kvplan.errors import UsageError
from kvplan.formats.ds_mla import latent_view
from kvplan.formats.grammar import parse_kv
from kvplan.formats.layout import Layout
from kvplan.memory.groups import roles
from kvplan.plan.choose import for_latent
from kvplan.specs.groups import LatentGroup
from kvplan.specs.model import ModelSpec
from kvplan.validate.candidates import latent_formats
from kvplan.validate.kinds.base import Attend, Group, Kind, flip_sign
from kvplan.validate.latents import make_latents
from kvplan.validate.tensors import Geometry, Tensors

LEAST_PAGE = 16
FLASH_WIDTH = 256
"""Channels of the widest rows that torch has flash attention for."""


class Latent(Kind):
    """One tensor; the up-projections are absorbed into the queries and the output."""

    def usual(self, group: Group) -> tuple[str, ...]:
        return self.every(group)

    def every(self, group: Group) -> tuple[str, ...]:
        assert isinstance(group, LatentGroup)
        return latent_formats(group.nope_dim, group.rope_dim)

    def carried(self, text: str, spec: ModelSpec) -> str:
        try:
            return for_latent(parse_kv(text), spec, roles(spec)).spelling
        except UsageError as error:
            if error.message.startswith("format "):
                hint = "kernels read --latent fp8_ds_mla and 16 bit"
                raise UsageError(error.message, hint) from None
            raise

    def check(self, layout: Layout, page_size: int) -> None:
        latent_config(latent_view(layout), page_size, 1, 0)

    def geometry(self, group: Group, context: int, batch: int) -> Geometry:
        assert isinstance(group, LatentGroup) and group.q_heads is not None
        nope, width = group.nope_dim, group.nope_dim + group.rope_dim
        head_dim = group.expanded.k if group.expanded else 0
        return Geometry(batch, context, group.q_heads, 1, width, nope, head_dim=head_dim, shared=True)

    def notes(self, group: Group, geometry: Geometry) -> Iterator[str]:
        g = geometry
        known = "the channels of its heads before absorption; scaled positions (YaRN) may add a factor"
        unknown = "the channels of the row: the spec does not say how wide the heads are"
        yield f"softmax scale {g.head_dim or g.k_dim} ** -0.5, {known if g.head_dim else unknown}"
        if g.k_dim > FLASH_WIDTH:
            yield (
                f"torch has no flash attention for rows of {g.k_dim} channels: its time, and that of the unfused path, "
                "are those of a slower one; kvplan's kernel on 16-bit rows is the other baseline"
            )

    def make_tensors(self, geometry: Geometry, *, seed: int, dtype: torch.dtype, device: str) -> Tensors:
        return make_latents(geometry, seed=seed, dtype=dtype, device=device)

    def calibrate(self, cache: Cache, k: Tensor, v: Tensor) -> None:
        """No scale of a latent is static."""

    def append(
        self, cache: Cache, k: Tensor, v: Tensor, *, max_length: int | None = None, saturated: Tensor | None = None
    ) -> None:
        append_latent(cache, k[:, :, 0], max_length=max_length)

    def write_reference(self, cache: Cache, k: Tensor, v: Tensor) -> None:
        write_latent_reference(cache, k[:, :, 0])

    def read(self, cache: Cache, role: str, request: int, length: int | None = None, *, turned: bool = False) -> Tensor:
        rows = read_latent_reference(cache, request, length)[None]
        return rows if role == "k" else rows[..., : self.value_dim(cache.layout)]

    def value_dim(self, layout: Layout) -> int:
        return latent_view(layout).nope

    def quantised(self, layout: Layout) -> bool:
        return latent_view(layout).quantised

    def double_scales(self, cache: Cache) -> None:
        cache.field("latent", "scale").view(torch.float32).mul_(2)

    def flip(self, cache: Cache, token: int, channel: int) -> None:
        page = int(cache.page_table[0, token // cache.page_size])
        row = cache.codes("latent")[page, 0, token % cache.page_size]
        flip_sign(row, channel)

    def decode(
        self,
        q: Tensor,
        cache: Cache,
        *,
        sm_scale: float,
        variant: Variant = PLAIN,
        fp8_domain: bool = False,
        out: Tensor | None = None,
        workspace: Workspace | None = None,
        config: DecodeConfig | None = None,
        work: Tensor | None = None,
    ) -> Tensor:
        assert not fp8_domain and (config is None or isinstance(config, LatentConfig))
        how: dict[str, Any] = {"out": out, "work": work, "workspace": workspace, "config": config}
        return latent_decode(q, cache, sm_scale=sm_scale, variant=variant, **how)

    def workspace(self, q: Tensor, cache: Cache, config: DecodeConfig | None = None) -> Workspace:
        assert config is None or isinstance(config, LatentConfig)
        return make_latent_workspace(q, cache, config)

    def launch(self, q: Tensor, cache: Cache) -> Launch:
        config = latent_config(latent_view(cache.layout), cache.page_size, q.shape[1], capability_of(q.device))
        return table_launch(config, q.device)

    def unfused(self, q: Tensor, cache: Cache, sm_scale: float, **how: Any) -> Tensor:
        return latent_unfused_decode(q, cache, sm_scale, **how)

    def scratch(self, q: Tensor, cache: Cache, tokens: int) -> Tensor:
        return q.new_empty((q.shape[0], tokens, latent_view(cache.layout).dim))

    def dense(self, tensors: Tensors) -> tuple[Tensor, Tensor]:
        k = tensors.k.transpose(1, 2).clone(memory_format=torch.contiguous_format)
        return k, k[..., : tensors.v.shape[-1]]

    def torch_ways(self, q: Tensor, sm_scale: float) -> tuple[Attend, ...]:
        """Heads folded into query rows only: given as they are, torch would copy the row once per head."""
        return (lambda k, v: dense_decode(q, k, v, None, sm_scale),)


LATENT = Latent("the latent", "latent", "latent", "latent", ("decode", "append"), fixed_scratch_bytes=32 << 20)
