"""Tensors of a layer as the model makes them, in its own dtype."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvplan.engines.shared.select import number_of
from kvplan.engines.shared.types import Case
from kvplan.errors import UnsupportedError
from kvplan.formats.grammar import Format
from kvplan.formats.grid import Tensor, bind
from kvplan.formats.layout import Layout
from kvplan.memory.groups import DTYPES, CacheGroup

if TYPE_CHECKING:
    from kvplan.specs.groups import LatentGroup

COMPRESSED_SINCE = (5, 15)
"""Since this version a latent is cached as such; before, as keys and values of every head.

Source: transformers 5.14.0 and 5.15.0, models/deepseek_v3/modeling_deepseek_v3.py."""


def expands(case: Case) -> bool:
    """Whether this version caches keys and values of every head instead of latents."""
    return number_of(case.version)[:2] < COMPRESSED_SINCE


def native_layout(case: Case, group: CacheGroup) -> Layout:
    """K and V (or index keys) of a layer: a latent is two tensors, its rotary part stands for values.

    Raises:
        UnsupportedError: a version that expands latents, and a spec that does not say how wide they become.
    """
    native = DTYPES[case.spec.native_dtype]
    if group.role != "latent":
        plain = [Tensor(t.role, Format(native), t.dim) for t in group.layout.tensors]
        return bind(plain, group.layout.heads, native)
    part = latent_part(case, group)
    if group.law.law == "window":
        return bind([Tensor("k", Format(native), part.nope_dim + part.rope_dim)], 1, native)
    widths, heads = (("k", part.nope_dim), ("v", part.rope_dim)), 1
    if expands(case):
        if part.expanded is None or part.q_heads is None:
            raise UnsupportedError(
                f"transformers {case.version} caches the keys and values of every head instead of the latent "
                f"{group.name}, and spec {case.spec.id} does not have their widths",
                "add expanded: {k: N, v: N} to the spec, or use --engine-version 5.15.0 or newer",
            )
        widths = (("k", part.expanded.k), ("v", part.expanded.v))
        heads = max(1, part.q_heads // case.sharding.attention_tp)
    return bind([Tensor(role, Format(native), dim) for role, dim in widths if dim], heads, native)


def latent_part(case: Case, group: CacheGroup) -> LatentGroup:
    """The spec's layer group behind a cache group, which a rule for single layers may have split."""
    name = group.name.removeprefix("mtp-").split("[")[0]
    part = case.spec.group(name)
    assert part.kind == "latent", part
    return part
