"""What llama.cpp says about its cache: context sizes, and the `size =` lines of every cache in their order.

The lines are of the whole context, so layers of all pipeline stages are counted together.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

from kvplan.engines.llamacpp.families import POOLED_INDEX, family
from kvplan.engines.llamacpp.server import Server
from kvplan.engines.llamacpp.stores import (
    ATTENTION,
    CSA,
    CSA_INDEX,
    HCA,
    INDEXER,
    NOWHERE,
    RECURRENT,
    STATE,
    SWA,
    Store,
    stores,
)
from kvplan.engines.shared.types import Case, EngineFigure

_LINES = "llama.cpp b11434, src/llama-kv-cache.cpp and src/llama-memory-recurrent.cpp"
_OPEN = {CSA: "csa", HCA: "hca", CSA_INDEX: "lid"}


@dataclass
class Memory:
    """One cache of a context: its layers, and bytes by kind of tensor (K, V; R, S of states)."""

    streams: int
    cells: int
    layers: int = 0
    nbytes: dict[str, int] = field(default_factory=dict)

    def add(self, layers: int, tensors: dict[str, int]) -> None:
        """Layers more, each with these bytes."""
        self.layers += layers
        for name, nbytes in tensors.items():
            self.nbytes[name] = self.nbytes.get(name, 0) + layers * nbytes


def report(case: Case, server: Server, snapshots: int) -> tuple[EngineFigure, ...]:
    """The figures of one context.

    Args:
        snapshots: n_rs_seq as far as the architecture has it.
    """
    found = memories(case, server, snapshots)
    made = [EngineFigure("n_ctx", server.n_ctx), EngineFigure("n_ctx_seq", server.n_ctx_seq)]
    for name, memory in found.items():
        if memory.cells and memory.layers:
            made.append(EngineFigure(f"{name} cells", memory.cells))
        made += [EngineFigure(f"{name} {tensor} bytes", nbytes) for tensor, nbytes in memory.nbytes.items()]
    lines = list(_lines(case, server, found, snapshots))
    return (*made, *(EngineFigure(f"log line {i}", line, _LINES) for i, line in enumerate(lines, 1)))


def memories(case: Case, server: Server, snapshots: int) -> dict[str, Memory]:
    """Every cache of the context by name."""
    found: dict[str, Memory] = {}
    for at, store in enumerate(stores(case)):
        if store.cells == NOWHERE:
            continue
        layers = sum(stage[at].layers for stage in case.stages)
        streams, cells = (0, 0) if store.cells == STATE else store.shape(server)
        memory = found.setdefault(store.memory, Memory(streams, cells))
        memory.add(layers, _layer_bytes(store, streams * cells, server.slots * (1 + snapshots)))
    return found


def _layer_bytes(store: Store, cells: int, copies: int) -> dict[str, int]:
    if store.states is None:
        return {t.name: cells * t.taken for t in store.tensors}
    planes = {p.name: copies * p.fixed_bytes(1) for p in store.states.scoped("state")}
    if "ring" in planes:
        # Values and their scores, side by side.
        return dict.fromkeys(("kv", "score"), planes["ring"] // 2)
    return {"R": planes.get("conv", 0), "S": planes.get("recurrent", 0)}


def _lines(case: Case, server: Server, found: dict[str, Memory], snapshots: int) -> Iterator[str]:
    compressed = CSA in found or HCA in found
    if compressed or (SWA in found and ATTENTION not in found):
        # The cache for layers without a window exists even where the model has none.
        streams = server.slots if compressed else server.streams
        yield _kv_line(case, server, found.get(ATTENTION) or Memory(streams, server.n_ctx_seq))
    elif ATTENTION in found:
        yield _kv_line(case, server, found[ATTENTION])
    late = family(case.spec) in POOLED_INDEX
    for name in (SWA, CSA, HCA, CSA_INDEX, *([] if late else [INDEXER])):
        if name in found:
            yield _kv_line(case, server, found[name])
    if RECURRENT in found:
        yield _state_line(case, server, found[RECURRENT], snapshots)
    if late and INDEXER in found:
        yield _kv_line(case, server, found[INDEXER])
    for name, short in _OPEN.items():
        if f"{name} state" in found:
            yield _open_line(case, server, f"{name} state", short, found[f"{name} state"], snapshots)


def _kv_line(case: Case, server: Server, memory: Memory) -> str:
    k, v = memory.nbytes.get("K", 0), memory.nbytes.get("V", 0)
    type_k = case.chosen.get("latent", case.chosen["k"])
    type_v = type_k if "latent" in case.chosen else case.chosen["v"]
    return (
        f"llama_kv_cache: size = {_mib(k + v)} MiB ({memory.cells:6d} cells, {memory.layers:3d} layers, "
        f"{server.slots:2d}/{memory.streams} seqs), K ({type_k}): {_mib(k)} MiB, V ({type_v}): {_mib(v)} MiB"
    )


def _state_line(case: Case, server: Server, memory: Memory, snapshots: int) -> str:
    r, s = memory.nbytes["R"], memory.nbytes["S"]
    return (
        f"llama_memory_recurrent: size = {_mib(r + s)} MiB ({server.slots:6d} cells, {case.spec.layers:3d} layers, "
        f"{server.slots:2d} seqs {snapshots:2d} rs_seq), R (f32): {_mib(r)} MiB, S (f32): {_mib(s)} MiB, "
        f"P (f32): {_mib(0)} MiB"
    )


def _open_line(case: Case, server: Server, name: str, short: str, memory: Memory, snapshots: int) -> str:
    group = next(s.group for s in stores(case) if s.memory == name)
    rows = group.law.limit
    width = group.layout.planes[0].items // rows // 2
    ratio = next(
        s.group.law.stride for s in stores(case) if s.memory == name.removesuffix(" state") and s.group.law.stride > 1
    )
    return (
        f"llama_dsv4_comp_state: {short} ratio = {ratio}, state = {rows} x {width}, streams = {server.slots}, "
        f"rs_seq = {snapshots}, layers = {memory.layers}, size = {_mib(sum(memory.nbytes.values()))} MiB"
    )


def _mib(nbytes: int) -> str:
    """Mebibytes as printed: through a 32-bit float."""
    (single,) = struct.unpack("f", struct.pack("f", nbytes))
    return f"{single / 2**20:7.2f}"
