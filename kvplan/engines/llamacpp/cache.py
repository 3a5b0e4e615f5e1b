"""The cache of a llama.cpp context in parts: cells of every stream, f32 states of every slot."""

from __future__ import annotations

from kvplan.breakdown import Factor, Product
from kvplan.engines.llamacpp.check import check, notes
from kvplan.engines.llamacpp.families import ROLLBACK, family
from kvplan.engines.llamacpp.report import report
from kvplan.engines.llamacpp.server import Server, least, started
from kvplan.engines.llamacpp.stores import FULL, NOWHERE, STATE, WINDOW, Store, cells_unit, stores
from kvplan.engines.shared.paged import some
from kvplan.engines.shared.types import Case, EngineCache, EngineFigure
from kvplan.memory.groups import CacheGroup
from kvplan.memory.parts import Part, total
from kvplan.memory.terms import logical_terms

CELLS = "llama.cpp b11434, src/llama-context.cpp:290-308 and src/llama-kv-cache.cpp:148-240"
WINDOWS = "llama.cpp b11434, src/llama-kv-cache-iswa.cpp:60-72"
STATES = "llama.cpp b11434, src/llama-memory-recurrent.cpp:86-99 and src/llama-kv-cache-dsv4.cpp:967-969"
CUDA = "llama.cpp b11434, ggml/src/ggml-cuda/ggml-cuda.cu:903-919"
HOST = "llama.cpp b11434, src/llama-kv-cache.cpp:190-200 (offload_kqv)"
DRAFTED = 3
"""Tokens drafted at once, by default (--spec-draft-n-max)."""


class LlamaCache(EngineCache):
    """Slots of one size: each holds the context, alone in its stream or in a pool that all share."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.unit = cells_unit(case)
        self.stores = stores(case)
        check(case, self.server(case.context, max(case.sequences, 1)))
        self.notes = tuple(notes(case))
        if case.options["no_kv_offload"]:
            host = total([t for part in self._parts(case.context, case.sequences) for t in part.allocated])
            self.notes += (f"The cache lies in host memory: {host:,} bytes, none on the GPU.",)

    def server(self, context: int, sequences: int) -> Server:
        """The server that runs so many requests of that length."""
        return started(context, sequences, self.case.options, self.case.sequences, self.unit)

    def parts(self, context: int, sequences: int) -> tuple[Part, ...]:
        """One part per group; without sequences, or with the cache in host memory, nothing is taken."""
        made = self._parts(context, sequences)
        if not self.case.options["no_kv_offload"]:
            return made
        return tuple(Part(g.name, (), saves=_logical(g, context, sequences)) for g in self.case.groups)

    def beside(self, tokens: int) -> int | None:
        """All slots have one size."""
        return None

    def figures(self, context: int, pool_bytes: int | None = None) -> tuple[EngineFigure, ...]:
        """Context sizes, bytes of each kind of tensor over all stages, and the lines that llama.cpp prints."""
        server = self.server(context, max(self.case.sequences, 1))
        return report(self.case, server, snapshots(self.case))

    def _parts(self, context: int, sequences: int) -> tuple[Part, ...]:
        if not sequences:
            return tuple(Part(store.group.name, ()) for store in self.stores)
        server, needed = self.server(context, sequences), least(context, sequences, self.case.options, self.unit)
        made = []
        for store in self.stores:
            if store.cells == STATE:
                made.append(_state_part(store, server.slots * (1 + snapshots(self.case)), sequences))
            elif store.cells == NOWHERE:
                made.append(Part(store.group.name, (), saves=_logical(store.group, context, sequences)))
            else:
                made.append(_cells_part(store, server, needed, context))
        return tuple(made)


def snapshots(case: Case) -> int:
    """State snapshots beside the state itself: as asked, with prediction layers as many as tokens are drafted.

    Architectures that cannot roll back have none.
    """
    name, asked = family(case.spec), case.options["n_rs_seq"]
    if name and name not in ROLLBACK:
        return 0
    return (DRAFTED if case.mtp else 0) if asked is None else int(asked)


def _logical(group: CacheGroup, context: int, sequences: int) -> tuple[Product, ...]:
    return tuple(t for terms in logical_terms(group, context, sequences).values() for t in terms)


def _cells_part(store: Store, server: Server, needed: Server, context: int) -> Part:
    """Cells of a growing cache; `needed` is the least server for the request, so that the rest is reserved."""
    group, source = store.group, WINDOWS if store.cells == WINDOW else CELLS
    streams, cells = store.shape(server)
    least_cells = _all(store.shape(needed))
    flight = _in_flight(store, needed, context)
    own = least_cells - flight
    spare = streams * cells - least_cells
    kept = needed.slots * group.law.rows(context)
    whole = store.cells == FULL or (store.cells == WINDOW and needed.swa_full)
    held = needed.slots * context if whole else kept
    taken = [
        _product(f"{t.name} cells", group, source, Factor("streams", streams), Factor("cells", cells), _row(t.taken))
        for t in store.tensors
    ]
    cuda = [_product(f"{t.name} beyond its last row, for CUDA", group, CUDA, _row(t.cuda)) for t in store.tensors]
    reserved = (
        _product("cells beyond the request", group, source, Factor("cells", spare), _row(store.row_bytes)),
        _product("one batch beside the windows", group, source, Factor("cells", flight), _row(store.row_bytes)),
    )
    padding = [
        _product(t.beyond, group, source, Factor("cells", own), _row(t.taken - t.needed))
        for t in store.tensors
        if t.beyond
    ]
    beyond = Factor("rows", max(held - kept, 0), "every token is kept")
    padding.append(_product("rows that are no longer read", group, source, beyond, _row(store.needed_bytes)))
    return Part(group.name, some(*taken, *cuda), some(*reserved), padding=some(*padding, *cuda))


def _all(shape: tuple[int, int]) -> int:
    return shape[0] * shape[1]


def _in_flight(store: Store, needed: Server, context: int) -> int:
    """Cells of all streams for the tokens of one batch beside the windows."""
    if store.cells != WINDOW or needed.swa_full:
        return 0
    here = needed.split() if store.split else needed
    window, each = store.group.law.limit, here.slots if here.unified else 1
    filled = min(context * each, window * each + here.n_ubatch)
    return here.streams * (filled - each * min(context, window))


def _state_part(store: Store, copies: int, sequences: int) -> Part:
    """One copy of the states for each slot and snapshot."""
    group, stored = store.group, store.states
    assert stored is not None
    nbytes, needed = stored.fixed_bytes("state"), group.layout.fixed_bytes("state")
    each = Factor("bytes", nbytes, f"{group.origin.width}, in fp32")
    taken = _product("states", group, STATES, Factor("state copies", copies), each)
    spare = _product(
        "states of snapshots and free slots", group, STATES, Factor("state copies", copies - sequences), each
    )
    wider = Factor("bytes", max(nbytes - needed, 0), "fp32 instead of the model's type")
    padding = _product("states in fp32", group, STATES, Factor("state copies", sequences), wider)
    return Part(group.name, some(taken), some(spare), padding=some(padding))


def _row(nbytes: int) -> Factor:
    return Factor("bytes", nbytes, "from the layout of the row")


def _product(label: str, group: CacheGroup, source: str, *factors: Factor) -> Product:
    layers = Factor("layers", group.layers, group.origin.layers)
    return Product(label, (layers, *factors), "engine rule", source)
