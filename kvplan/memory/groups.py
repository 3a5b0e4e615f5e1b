"""From a model spec, a cache configuration and a tensor-parallel size to cache groups: layers x layout x row law."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvplan.errors import UsageError
from kvplan.formats.grammar import Format, Named
from kvplan.formats.grid import Tensor, bind
from kvplan.formats.layout import Layout
from kvplan.formats.states import bind_state
from kvplan.memory.rows import RowLaw
from kvplan.memory.states import split_obstacle, state_elements

if TYPE_CHECKING:
    from kvplan.specs.groups import AttentionGroup, LatentGroup, LayerGroup, StateGroup
    from kvplan.specs.model import ModelSpec

DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
"""Names of spec files to the storages of formats."""


@dataclass(frozen=True, slots=True)
class CacheFormats:
    """The cache configuration: one format per tensor role, and storages of states (None: the model's own)."""

    k: Format | Named
    v: Format | Named
    latent: Format | Named
    index: Format | Named
    recurrent: str | None = None
    conv: str | None = None

    @classmethod
    def native(cls, spec: ModelSpec) -> CacheFormats:
        """Everything in the model's own dtype: the unquantised cache."""
        plain = Format(DTYPES[spec.native_dtype])
        return cls(plain, plain, plain, plain)


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """Layers with the same cache, on one rank.

    Attributes:
        role: kv, latent, index, cross or state.
        layers: how many layers of the model have this cache.
        layout: the planes of one layer, after sharding.
        law: rows kept for n tokens.
        source: where its numbers come from, for the breakdown.
    """

    name: str
    role: str
    layers: int
    layout: Layout
    law: RowLaw
    source: str

    @property
    def formats(self) -> dict[str, str]:
        """Tensor role to canonical spelling; for states, the name of the state to its storage."""
        if self.role == "state":
            return {plane.name: plane.storage for plane in self.layout.planes}
        return {tensor.role: tensor.spelling for tensor in self.layout.tensors}


def cache_groups(spec: ModelSpec, formats: CacheFormats, tp: int = 1) -> tuple[CacheGroup, ...]:
    """The cache of one of `tp` ranks. Layers without a cache of their own appear in no group.

    Raises:
        UsageError: `tp` does not fit a group, or a format does not fit its head dimension or tensor.
    """
    made = []
    for group in spec.layer_groups:
        obstacle = tp_obstacle(group, tp)
        if obstacle:
            raise UsageError(f"tp {tp} does not fit {spec.id}: {obstacle}", "use a tp that divides the KV heads")
        if group.kind != "none":
            made.append(_bound(spec, group, formats, tp))
    return tuple(made)


def tp_obstacle(group: LayerGroup, tp: int) -> str | None:
    """Why `tp` ranks cannot share this group's cache, or None."""
    if group.kind in ("attention", "cross"):
        if group.kv_heads % tp and tp % group.kv_heads:
            return f"group {group.name} has {group.kv_heads} KV heads, which {tp} ranks neither split nor copy evenly"
        return None
    obstacle = split_obstacle(group.state, tp) if group.kind == "state" else None
    return f"group {group.name}: {obstacle}" if obstacle else None


def _bound(spec: ModelSpec, group: LayerGroup, formats: CacheFormats, tp: int) -> CacheGroup:
    """One group with its layout. Latents are copied to every rank; KV heads are split, then copied."""
    native = DTYPES[spec.native_dtype]
    if group.kind == "state":
        role, layout, law = "state", _state_layout(group, formats, native, tp), RowLaw("ring", 1)
    elif group.kind == "latent":
        role, layout, law = _latent(group, formats, native)
    else:
        assert group.kind != "none"
        role = "cross" if group.kind == "cross" else "kv"
        tensors = (Tensor("k", formats.k, group.k_dim), Tensor("v", formats.v, group.v_dim))
        layout = bind(tensors, max(1, group.kv_heads // tp), native)
        law = RowLaw("encoder", group.encoder_tokens.count) if group.kind == "cross" else _law(group)
    layers = len(spec.positions(group))
    return CacheGroup(group.name, role, layers, layout, law, f"spec {spec.id}, layer group {group.name}")


def _law(group: AttentionGroup | LatentGroup) -> RowLaw:
    return RowLaw(group.retain.law, group.retain.rows or 0, group.stride)


def _latent(group: LatentGroup, formats: CacheFormats, native: str) -> tuple[str, Layout, RowLaw]:
    fixed = DTYPES[group.dtype] if group.dtype else None
    width = group.nope_dim + group.rope_dim
    law = _law(group)
    if law.law == "ring":
        # A constant number of rows is one copy per sequence: a state, whatever the cache format.
        return "state", bind_state({"ring": (law.limit * width, fixed or native)}), law
    role = "index" if group.role == "index" else "latent"
    chosen = formats.index if role == "index" else formats.latent
    tensor = Tensor(role, Format(fixed) if fixed else chosen, width, group.rope_dim)
    return role, bind((tensor,), 1, native), law


def _state_layout(group: StateGroup, formats: CacheFormats, native: str, tp: int) -> Layout:
    recurrent, conv = state_elements(group.state, tp)
    return bind_state(
        {
            "recurrent": (recurrent, formats.recurrent or DTYPES.get(group.dtype.recurrent, native)),
            "conv": (conv, formats.conv or DTYPES.get(group.dtype.conv, native)),
        }
    )


def roles(spec: ModelSpec) -> frozenset[str]:
    """The tensor roles that a cache format can apply to: k, v, latent, index."""
    found: set[str] = set()
    for group in spec.layer_groups:
        if group.kind in ("attention", "cross"):
            found |= {"k", "v"}
        elif group.kind == "latent" and group.retain.law != "ring" and group.dtype is None:
            found.add("index" if group.role == "index" else "latent")
    return frozenset(found)
