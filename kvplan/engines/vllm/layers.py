"""From a case to the layers as vLLM declares them: backend, block size, and the spec of every cache group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvplan.engines.vllm.backends import (
    BACKENDS,
    check_block,
    choose_backend,
    default_block,
    kernel_blocks,
    resolved_dtype,
)
from kvplan.engines.vllm.blocks import (
    CHUNKED,
    CROSS,
    FULL,
    MLA,
    SLIDING,
    SLIDING_MLA,
    LayerSpec,
    layer_spec,
    state_spec,
)
from kvplan.engines.vllm.buckets import Layers
from kvplan.engines.vllm.deepseek_v4 import check_version, v4_spec
from kvplan.engines.vllm.options import Settings
from kvplan.engines.vllm.states import (
    aligned_block,
    check_state,
    normal,
    state_blocks,
    state_layout,
    state_storages,
)
from kvplan.errors import UnsupportedError
from kvplan.formats.layout import Layout
from kvplan.memory.groups import DTYPES, CacheGroup
from kvplan.specs.groups import LatentGroup, StateGroup

if TYPE_CHECKING:
    from kvplan.engines.shared.types import Case
    from kvplan.specs.groups import LayerGroup
    from kvplan.specs.model import ModelSpec

MLA_LEAST_BLOCK = 128
"""Of a hybrid with MLA (platforms/interface.py:940-1137)."""


@dataclass(frozen=True, slots=True)
class Declared:
    """A model as vLLM lays it out before grouping.

    Attributes:
        layers: of every cache group, in the order of their first layers.
        backends: kind of layer to backend.
        block_size: tokens of a block of growing caches.
        notes: what was assumed.
    """

    layers: tuple[Layers, ...]
    backends: Mapping[str, str]
    block_size: int
    notes: tuple[str, ...]


def model_kind(spec: ModelSpec) -> str:
    """Which backends a model needs: attention, mla, sparse (MLA with an index) or v4; empty without attention."""
    if normal(spec.model_type) == "deepseekv4":
        return "v4"
    latents = [g for g in spec.layer_groups if isinstance(g, LatentGroup)]
    rows = [g for g in latents if g.role == "kv"]
    if any(g.retain.law != "all" or g.stride != 1 for g in rows):
        raise UnsupportedError(
            f"kvplan has no rule for the compressed rows of {spec.id} in vLLM", "plan without --engine"
        )
    if rows:
        indexed = [g for g in latents if g.role == "index"]
        if indexed and (any(g.retain.law != "all" or g.stride != 1 for g in indexed) or _has_states(spec)):
            raise UnsupportedError(
                f"kvplan has no rule for the index keys of {spec.id} in vLLM", "plan without --engine"
            )
        return "sparse" if indexed else "mla"
    if latents:
        raise UnsupportedError(
            f"kvplan has no rule for index keys beside K and V ({spec.id}) in vLLM", "plan without --engine"
        )
    return "attention" if any(g.kind in ("attention", "cross") for g in spec.layer_groups) else ""


def _has_states(spec: ModelSpec) -> bool:
    return any(isinstance(g, StateGroup) for g in spec.layer_groups)


def spec_group(spec: ModelSpec, name: str) -> LayerGroup:
    """The layer group of a cache group: parts of one and prediction layers carry its name with more around it."""
    return spec.group(name.removeprefix("mtp-").partition("[")[0])


def declare(case: Case, settings: Settings) -> Declared:
    """Every layer's cache as vLLM declares it.

    Raises:
        UsageError: what vLLM refuses; UnsupportedError: what kvplan has no rule for.
    """
    kind = model_kind(case.spec)
    if kind == "v4":
        check_version(case.version)
    backends = _backends(case, kind)
    notes = list(settings.notes)
    if case.capability is None and backends:
        where = "ROCm" if any(BACKENDS[b].platform for b in backends.values()) else "Hopper"
        notes.append(
            f"The compute capability of the GPU is not known: {', '.join(backends.values())}, as on {where}, is "
            "assumed."
        )
    block = _block_size(case, backends, kind)
    states = _states(case, settings)
    if states and backends:
        block = _hybrid_block(case, settings, backends, block, max(s.fixed_bytes("state") for s in states.values()))
    made = []
    for index, group in enumerate(case.groups):
        spec = _layer_spec(case, settings, group, states.get(group.name), block, kind, backends)
        made.append(Layers(index, spec, tuple(stage[index].layers for stage in case.stages)))
    made.sort(key=lambda m: _first_layer(case, case.groups[m.index].name))
    return Declared(tuple(made), backends, block, tuple(notes))


def _first_layer(case: Case, name: str) -> int:
    return case.spec.layers if name.startswith("mtp-") else case.spec.positions(spec_group(case.spec, name))[0]


def _backends(case: Case, kind: str) -> dict[str, str]:
    asked = case.options["attention_backend"]
    found = {}
    if kind in ("mla", "sparse", "v4"):
        dtype = resolved_dtype(case.spec.model_type, case.chosen["latent"], case.capability)
        found[kind] = choose_backend(kind, dtype, case.capability, asked)
        asked = None
    if kind and "k" in case.chosen:
        found["attention"] = choose_backend("attention", case.chosen["k"], case.capability, asked)
    if case.formats.rules:
        # Layers that stay in the model's dtype run on that dtype's backend.
        found["unquantised"] = choose_backend("attention", "auto", case.capability, None)
    return found


def _kernels(case: Case, kind: str, name: str) -> tuple[int, ...]:
    dims = [g.k_dim for g in case.spec.layer_groups if g.kind in ("attention", "cross")]
    dtype = "auto" if kind == "unquantised" else case.chosen["k" if kind == "attention" else "latent"]
    return kernel_blocks(name, max(dims, default=0), dtype, case.capability)


def _block_size(case: Case, backends: Mapping[str, str], kind: str) -> int:
    """As asked, else the least that every backend takes."""
    asked: int | None = case.options["block_size"]
    sizes = [16]
    for layer_kind, name in backends.items():
        blocks = _kernels(case, layer_kind, name)
        if asked:
            check_block(name, asked, blocks)
        sizes.append(default_block(name, blocks, indexed=kind == "sparse"))
    return asked or max(sizes)


def _states(case: Case, settings: Settings) -> dict[str, Layout]:
    """What vLLM stores of every state, by the name of the cache group."""
    made = {}
    for group in case.groups:
        declared = spec_group(case.spec, group.name)
        if isinstance(declared, StateGroup):
            check_state(declared.state)
            recurrent, conv = state_storages(
                declared.state, declared.dtype.recurrent, DTYPES[case.spec.native_dtype], case.spec.model_type,
                case.options["mamba_cache_dtype"], case.options["mamba_ssm_cache_dtype"],
            )  # fmt: skip
            tp = case.sharding.attention_tp
            made[group.name] = state_layout(declared.state, tp, recurrent, conv, settings.mode.speculative)
    return made


def _hybrid_block(case: Case, settings: Settings, backends: Mapping[str, str], block: int, state_bytes: int) -> int:
    """The block whose attention page holds a state; a larger one that is asked for stays."""
    attention = [g for g in case.groups if g.role in ("kv", "latent")]
    token = max(g.layout.page_bytes(1) for g in attention)
    kernels = [_kernels(case, kind, name)[0] for kind, name in backends.items()]
    unit = max(block, *kernels, MLA_LEAST_BLOCK if "attention" not in backends else 0)
    chunk = case.options["mamba_block_size"] or 0
    return max(block, aligned_block(state_bytes, token, unit, settings.mode, kernel_blocks=kernels, chunk=chunk))


def _layer_spec(
    case: Case, settings: Settings, group: CacheGroup, state: Layout | None, block: int, kind: str,
    backends: Mapping[str, str],
) -> LayerSpec:  # fmt: skip
    if state is not None:
        return _state_spec(case, settings, state, block, bool(backends))
    declared = spec_group(case.spec, group.name)
    if kind == "v4":
        return v4_spec(group, declared, block, case)
    latent = group.role in ("latent", "index")
    full, window = (MLA, SLIDING_MLA) if latent else (FULL, SLIDING)
    name = {"all": full, "window": window, "chunk": CHUNKED, "encoder": CROSS}.get(group.law.law)
    if name is None:
        raise UnsupportedError(f"kvplan has no rule for group {group.name} in vLLM", "plan without --engine")
    limit = max(group.law.limit, settings.encoder_tokens) if name == CROSS else group.law.limit
    alignment = 1
    if group.role != "index":
        of = kind if latent else "attention"
        alignment = stride_alignment(group.layout, backends[of], block, _kernels(case, of, backends[of]))
    return layer_spec(
        name, group.layout, group.law, block, limit=limit, ranks=case.sharding.dcp if name in (FULL, MLA) else 1,
        stride_alignment=alignment,
    )  # fmt: skip


def stride_alignment(layout: Layout, backend: str, block: int, kernels: tuple[int, ...]) -> int:
    """Bytes that the stride between a layer's blocks must be a multiple of.

    Blocks that no kernel takes whole are cut into the largest that does; bf16 sparse attention addresses whole rows.
    """
    row = layout.page_bytes(1)
    if not BACKENDS[backend].multiples and block not in kernels:
        return max(k for k in kernels if block % k == 0) * row
    plain = all(t.number in ("bf16", "fp16") for t in layout.tensors)
    return row if BACKENDS[backend].kind == "sparse" and plain else 1


def _state_spec(case: Case, settings: Settings, layout: Layout, block: int, attention: bool) -> LayerSpec:
    """A state, its page as large as the block of attention beside it."""
    token = max((g.layout.page_bytes(1) for g in case.groups if g.role in ("kv", "latent")), default=0)
    tokens = case.context if settings.mode.mode == "none" else block
    return state_spec(layout, tokens, state_blocks(settings.mode), block * token if attention else 0)
