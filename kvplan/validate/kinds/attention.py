"""K and V of attention layers."""

from __future__ import annotations

from typing import Any

import torch
from kvplan_kernels.attention.config import DecodeConfig
from kvplan_kernels.attention.decode import decode, launch_config, make_workspace
from kvplan_kernels.attention.door import check_fp8_domain, check_supported
from kvplan_kernels.attention.unfused import unfused_decode
from kvplan_kernels.attention.variant import PLAIN, Variant
from kvplan_kernels.attention.workspace import Workspace
from kvplan_kernels.bench.baseline import torch_ways
from kvplan_kernels.cache import Cache
from kvplan_kernels.codecs.limits import check_kernel
from kvplan_kernels.codecs.planar import flip_top_bit
from kvplan_kernels.store.append import append
from kvplan_kernels.store.reference import read_reference, write_reference
from kvplan_kernels.store.static import calibrate_cache, double_scales
from kvplan_kernels.tuning.launch import Launch, table_launch, tuned_config
from kvplan_kernels.tuning.search import Say
from torch import Tensor

from kvplan.errors import UnsupportedError
from kvplan.formats.grammar import parse_any, parse_kv
from kvplan.formats.layout import Layout
from kvplan.specs.groups import AttentionGroup
from kvplan.specs.model import ModelSpec
from kvplan.validate.candidates import EVERY, USUAL
from kvplan.validate.kinds.base import Attend, Group, Kind, flip_sign
from kvplan.validate.tensors import Geometry, Tensors, make_tensors


class Attention(Kind):
    """Two tensors; K has the logits, V the outputs."""

    def usual(self, group: Group) -> tuple[str, ...]:
        return USUAL

    def every(self, group: Group) -> tuple[str, ...]:
        return EVERY

    def carried(self, text: str, spec: ModelSpec) -> str:
        k, apart, v = text.partition(" / ")
        return f"{parse_any(k).spelling} / {parse_any(v).spelling}" if apart else parse_kv(text).spelling

    def check(self, layout: Layout, page_size: int) -> None:
        check_kernel(layout)
        check_supported(layout)

    def geometry(self, group: Group, context: int, batch: int) -> Geometry:
        """A windowed group holds at most its window."""
        assert isinstance(group, AttentionGroup)
        tokens = min(context, group.retain.rows) if group.retain.rows else context
        return Geometry(batch, tokens, group.q_heads, group.kv_heads, group.k_dim, group.v_dim)

    def variant(self, group: Group, seed: int, device: str) -> Variant:
        """Window, softcap and sinks of a layer group, as kernels and references take them."""
        assert isinstance(group, AttentionGroup)
        sinks = None
        if group.sinks:
            generator = torch.Generator(device=device).manual_seed(seed)
            sinks = torch.randn(group.q_heads, generator=generator, device=device)
        window = group.retain.rows if group.retain.law == "window" else None
        return Variant(window=window, softcap=group.softcap, sinks=sinks)

    def make_tensors(self, geometry: Geometry, *, seed: int, dtype: torch.dtype, device: str) -> Tensors:
        return make_tensors(geometry, seed=seed, dtype=dtype, device=device)

    def static_roles(self, layout: Layout) -> tuple[str, ...]:
        return tuple(r for r in ("k", "v") if layout.view(r).has_static_scale or layout.view(r).has_global)

    def calibrate(self, cache: Cache, k: Tensor, v: Tensor) -> None:
        calibrate_cache(cache, k, v)

    def append(
        self, cache: Cache, k: Tensor, v: Tensor, *, max_length: int | None = None, saturated: Tensor | None = None
    ) -> None:
        append(cache, k, v, max_length=max_length, saturated=saturated)

    def write_reference(self, cache: Cache, k: Tensor, v: Tensor) -> None:
        write_reference(cache, k, v)

    def read(self, cache: Cache, role: str, request: int, length: int | None = None, *, turned: bool = False) -> Tensor:
        return read_reference(cache, role, request, length, turned=turned)

    def value_dim(self, layout: Layout) -> int:
        return layout.tensor("v").dim

    def quantised(self, layout: Layout) -> bool:
        return layout.view("k").quantised

    def double_scales(self, cache: Cache) -> None:
        double_scales(cache, "k")

    def flip(self, cache: Cache, token: int, channel: int) -> None:
        view = cache.layout.view("v")
        codes = cache.field("v", "high") if view.two_parts else cache.codes("v")
        row = codes[int(cache.page_table[0, token // cache.page_size]), 0, token % cache.page_size]
        if view.planar:
            flip_top_bit(row, channel, 1 if view.two_parts else view.bits)
        else:
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
        how: dict[str, Any] = {"out": out, "work": work, "workspace": workspace, "config": config}
        return decode(q, cache, sm_scale=sm_scale, variant=variant, fp8_domain=fp8_domain, **how)

    def workspace(self, q: Tensor, cache: Cache, config: DecodeConfig | None = None) -> Workspace:
        return make_workspace(q, cache, config)

    def launch(self, q: Tensor, cache: Cache) -> Launch:
        return table_launch(launch_config(q, cache), q.device)

    def tuned(self, q: Tensor, cache: Cache, *, sm_scale: float, variant: Variant, say: Say) -> Launch:
        return tuned_config(q, cache, sm_scale=sm_scale, variant=variant, say=say)

    def has_fp8_domain(self, layout: Layout) -> bool:
        try:
            check_fp8_domain(layout)
        except UnsupportedError:
            return False
        return True

    def unfused(self, q: Tensor, cache: Cache, sm_scale: float, **how: Any) -> Tensor:
        return unfused_decode(q, cache, sm_scale, **how)

    def scratch(self, q: Tensor, cache: Cache, tokens: int) -> tuple[Tensor, Tensor]:
        k, v = (cache.layout.tensor(role).dim for role in ("k", "v"))
        shape = (q.shape[0], cache.layout.heads, tokens)
        return q.new_empty((*shape, k)), q.new_empty((*shape, v))

    def dense(self, tensors: Tensors) -> tuple[Tensor, Tensor]:
        k, v = (x.transpose(1, 2).clone(memory_format=torch.contiguous_format) for x in (tensors.k, tensors.v))
        return k, v

    def torch_ways(self, q: Tensor, sm_scale: float) -> tuple[Attend, ...]:
        return torch_ways(q, sm_scale)


ATTENTION = Attention("K and V", "kv", "k", "v", ("decode", "prefill", "prefix", "append"))
