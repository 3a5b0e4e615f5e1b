"""From a model spec, a cache configuration and a sharding to cache groups: layers x layout x row law."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kvplan.errors import UsageError
from kvplan.formats.grammar import Format, Named
from kvplan.formats.grid import Tensor, bind
from kvplan.formats.layout import Layout
from kvplan.formats.states import bind_state
from kvplan.memory.rows import RowLaw
from kvplan.memory.sharding import Sharding, spell_layers
from kvplan.memory.states import split_obstacle, state_elements

if TYPE_CHECKING:
    from kvplan.specs.groups import AttentionGroup, LatentGroup, LayerGroup, StateGroup
    from kvplan.specs.model import ModelSpec

DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
"""Names of spec files to the storages of formats."""
TENSORS = {"attention": ("k", "v"), "cross": ("k", "v"), "kv": ("latent",), "index": ("index",)}
"""Kind of a layer group, or role of a latent one, to the tensors that a cache format applies to."""


@dataclass(frozen=True, slots=True)
class LayerRule:
    """Formats of some layers: a spelling for the echo, the layers' indices, and (role, format) pairs."""

    spelling: str
    layers: frozenset[int]
    formats: tuple[tuple[str, Format | Named], ...]


@dataclass(frozen=True, slots=True)
class CacheFormats:
    """The cache configuration: one format per tensor role, storages of states (None: the model's own), and rules for
    single layers, of which the last wins."""

    k: Format | Named
    v: Format | Named
    latent: Format | Named
    index: Format | Named
    recurrent: str | None = None
    conv: str | None = None
    rules: tuple[LayerRule, ...] = ()

    @classmethod
    def native(cls, spec: ModelSpec) -> CacheFormats:
        """Everything in the model's own dtype: the unquantised cache."""
        plain = Format(DTYPES[spec.native_dtype])
        return cls(plain, plain, plain, plain)

    def of_layer(self, layer: int) -> CacheFormats:
        """The formats of one layer."""
        changed: dict[str, Any] = {role: f for rule in self.rules if layer in rule.layers for role, f in rule.formats}
        return replace(self, rules=(), **changed)

    def parts(self, group: LayerGroup, layers: tuple[int, ...]) -> list[tuple[str, tuple[int, ...], CacheFormats]]:
        """(name, layers, formats) of the parts into which the rules cut a group, in the order of their first layers."""
        together: dict[tuple[Format | Named, ...], list[int]] = {}
        used = TENSORS.get(getattr(group, "role", group.kind), ())
        known: dict[tuple[bool, ...], CacheFormats] = {}
        for layer in layers if self.rules else ():
            # Layers that the same rules name have the same formats.
            named = tuple(layer in rule.layers for rule in self.rules)
            formats = known.get(named) or known.setdefault(named, self.of_layer(layer))
            together.setdefault(tuple(getattr(formats, role) for role in used), []).append(layer)
        if len(together) < 2:
            return [(group.name, layers, self.of_layer(layers[0]))]
        cut = [tuple(part) for part in together.values()]
        return [(f"{group.name}[{spell_layers(part)}]", part, self.of_layer(part[0])) for part in cut]


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the factors of a group come from, for the explanation: one text each."""

    layers: str
    heads: str
    width: str
    sequences: str


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """Layers with the same cache, on one rank.

    Attributes:
        role: kv, latent, index, cross or state.
        layers: how many layers have this cache, on this rank's pipeline stage; may be 0.
        layout: the planes of one layer, after sharding.
        law: rows kept for n tokens.
        source: where its numbers come from, for the breakdown.
        origin: the same for each factor.
    """

    name: str
    role: str
    layers: int
    layout: Layout
    law: RowLaw
    source: str
    origin: Origin

    @property
    def formats(self) -> dict[str, str]:
        """Tensor role to canonical spelling; for states, the name of the state to its storage."""
        if self.role == "state":
            return {plane.name: plane.storage for plane in self.layout.planes}
        return {tensor.role: tensor.spelling for tensor in self.layout.tensors}


def cache_groups(
    spec: ModelSpec, formats: CacheFormats, sharding: Sharding | int = 1, *, stage: int = 0, mtp: bool = False
) -> tuple[CacheGroup, ...]:
    """The cache of one rank. Layers without a cache of their own appear in no group.

    Args:
        sharding: the layout of GPUs, or just a number of tensor-parallel ranks.
        stage: which pipeline stage. Every stage has the same groups; of some it may hold 0 layers.
        mtp: also the multi-token prediction layers; they lie on the last stage.

    Raises:
        UsageError: the sharding does not fit a group, or a format does not fit its head dimension or tensor.
    """
    sharding = Sharding.of(sharding)
    span = sharding.stage_layers(spec.layers, stage)
    where = f", stage {stage + 1} of {sharding.pp} (layers {span[0]}-{span[-1]})" if sharding.pp > 1 else ""
    made = []
    for group in spec.layer_groups:
        obstacle = tp_obstacle(group, sharding.attention_tp) or dcp_obstacle(group, sharding)
        if obstacle:
            raise UsageError(
                f"tp {sharding.tp} does not fit {spec.id}: {obstacle}", "use a tp that divides the KV heads"
            )
        if group.kind == "none":
            continue
        for name, layers, chosen in formats.parts(group, spec.positions(group)):
            here = tuple(i for i in layers if i in span)
            origin = f"layers {spell_layers(here)} of layer group {group.name}{where}"
            made.append(_bound(spec, group, chosen, sharding, name, len(here), origin))
    for name in spec.mtp.cache_like if mtp and spec.mtp else ():
        assert spec.mtp is not None
        count = spec.mtp.layers if stage == sharding.pp - 1 else 0
        origin = f"mtp.layers, each like layer group {name}"
        made.append(_bound(spec, spec.group(name), formats, sharding, f"mtp-{name}", count, origin))
    return tuple(made)


def tp_obstacle(group: LayerGroup, tp: int) -> str | None:
    """Why `tp` ranks cannot share this group's cache, or None."""
    if group.kind in ("attention", "cross"):
        if group.kv_heads % tp and tp % group.kv_heads:
            return f"group {group.name} has {group.kv_heads} KV heads, which {tp} ranks neither split nor copy evenly"
        return None
    obstacle = split_obstacle(group.state, tp) if group.kind == "state" else None
    return f"group {group.name}: {obstacle}" if obstacle else None


def shares_rows(group: LayerGroup) -> bool:
    """Whether decode context parallel splits a group's rows: those of every token, whose attention can be merged.

    Windows, states and encoder rows stay whole (vLLM), and so do index keys: choosing the top k needs all (SGLang).
    """
    if group.kind == "attention":
        return group.retain.law == "all"
    return group.kind == "latent" and group.role == "kv" and group.retain.law == "all"


def dcp_obstacle(group: LayerGroup, sharding: Sharding) -> str | None:
    """Why decode context parallel cannot split this group's rows, or None: only ranks with the same heads can."""
    if sharding.dcp == 1 or not shares_rows(group):
        return None
    copies = _copies(group, sharding)
    if copies % sharding.dcp == 0:
        return None
    return f"group {group.name} has {copies} copies of its rows, which dcp {sharding.dcp} does not divide"


def _copies(group: LayerGroup, sharding: Sharding) -> int:
    """Ranks of a stage that would hold the same rows without decode context parallel."""
    if group.kind in ("attention", "cross"):
        return sharding.holders // min(group.kv_heads, sharding.attention_tp)
    # States are split by their own heads; what is left over between prefill ranks are copies.
    return sharding.pcp if group.kind == "state" else sharding.holders


def _bound(
    spec: ModelSpec, group: LayerGroup, formats: CacheFormats, sharding: Sharding, name: str, layers: int, origin: str
) -> CacheGroup:
    """One group with its layout. Latents are copied to every rank; KV heads are split, then copied."""
    native, tp = DTYPES[spec.native_dtype], sharding.attention_tp
    heads = "not split over ranks"
    if group.kind == "state":
        role, layout, law = "state", _state_layout(group, formats, native, tp), RowLaw("ring", 1)
        width = f"state {group.state.type}" + (f", split over tp {tp}" if tp > 1 else "")
    elif group.kind == "latent":
        role, layout, law = _latent(group, formats, native)
        width = f"width {group.nope_dim + group.rope_dim}"
    else:
        assert group.kind != "none"
        role = "cross" if group.kind == "cross" else "kv"
        tensors = (Tensor("k", formats.k, group.k_dim), Tensor("v", formats.v, group.v_dim))
        layout = bind(tensors, max(1, group.kv_heads // tp), native)
        law = RowLaw("encoder", group.encoder_tokens.count) if group.kind == "cross" else _law(group)
        heads = f"kv_heads {group.kv_heads} / tp {tp}" + (", at least 1" if tp > group.kv_heads else "")
        width = (
            f"head_dim {group.k_dim}" if group.k_dim == group.v_dim else f"head_dim k {group.k_dim}, v {group.v_dim}"
        )
    if sharding.dcp > 1 and shares_rows(group):
        law = replace(law, ranks=sharding.dcp)
    batch = "batch" if sharding.dp == 1 else f"ceil(batch / dp {sharding.dp})"
    source = f"spec {spec.id}, layer group {group.name}"
    return CacheGroup(name, role, layers, layout, law, source, Origin(origin, heads, width, batch))


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
