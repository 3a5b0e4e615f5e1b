"""Pages, rings and state slots as ExLlamaV3 lays them out."""

from __future__ import annotations

from kvplan.breakdown import Factor, Product
from kvplan.engines.shared.paged import PagedCache, engine_product, some
from kvplan.engines.shared.slots import slots_part, stored_states
from kvplan.engines.shared.types import Case, EngineFigure
from kvplan.formats.grammar import Format
from kvplan.formats.grid import Tensor, bind
from kvplan.formats.layout import Layout
from kvplan.formats.states import bind_state
from kvplan.memory.groups import CacheGroup
from kvplan.memory.parts import Part
from kvplan.memory.states import state_elements
from kvplan.units import align_up, cdiv

PROJECT = "ExLlamaV3 1.6.5, exllamav3/"
PAGE_SIZE = 256
"""Tokens per page (exllamav3/constants.py)."""
RING_SPARE = 2 * PAGE_SIZE
"""Tokens that the ring of a sliding layer keeps beyond its window (modules/sliding_attn.py)."""
RECURRENT_ROWS = 2
"""Recurrent states of each slot: the current one, and the one before a speculative pass."""
SLIDING = PROJECT + "modules/sliding_attn.py, SWALayerState"
STATES = PROJECT + "modules/gated_delta_net.py, GDNLayerState"
SHORT_CONV = PROJECT + "modules/short_conv.py, ShortConvLayerState"
PAGES = PROJECT + "cache/fp16.py, quant.py and mla.py"
RINGS = ("gemma4", "gptoss", "laguna", "mimov2", "step3p5", "step3p7", "afmoe", "museglimmer", "spark25")
"""Beginnings of the architectures whose sliding layers have a ring (exllamav3/architecture, SlidingAttention)."""


class ExLlamaCache(PagedCache):
    """One cache of so many tokens for all sequences, in pages of 256; sliding layers and states in slots."""

    def __init__(self, case: Case) -> None:
        super().__init__(case, PAGE_SIZE, PAGES)
        self._rings = {g.name for g in case.groups if g.role == "kv" and g.law.law == "window" and _has_rings(case)}
        self._states = {g.name: _core(case, g) for g in case.groups if g.role == "state"}
        if self._rings and case.chosen.keys() & {"k", "v"} and {case.chosen["k"], case.chosen["v"]} != {"16"}:
            self.notes += ("The rings of sliding layers stay fp16 whatever -cq says.",)
        if not self._rings and any(g.law.law == "window" for g in case.groups):
            self.notes += ("ExLlamaV3 pages every row of this model's windowed layers.",)
        if self._states or self._rings:
            self.notes += ("Checkpoints of states and rings lie in host memory (-rcs, 4 GB), not on the GPU.",)

    def rows(self, group: CacheGroup, context: int) -> int:
        """All rows; rings are laid out elsewhere."""
        return context

    def paged_part(self, group: CacheGroup, context: int, sequences: int) -> Part:
        """Pages of each sequence, or the rings of all slots."""
        return (
            self._ring(group, context, sequences)
            if group.name in self._rings
            else super().paged_part(group, context, sequences)
        )

    def _slots(self, sequences: int) -> int:
        slots: int = self.case.options["autosplit_max_batch_size"] or sequences
        return max(slots, sequences)

    def _ring(self, group: CacheGroup, context: int, sequences: int) -> Part:
        """fp16 rows of the window and two pages, rounded up to pages, for every slot."""
        ring = align_up(group.law.limit + RING_SPARE, PAGE_SIZE)
        row = _halves(group).page_bytes(1)
        rows = group.law.rows(context)
        width = Factor("bytes", row, "K and V of a row in fp16")

        def product(label: str, slots: int, count: int) -> Product:
            many = Factor("rows", count, f"window {group.law.limit:,} + {RING_SPARE}, up to a multiple of {PAGE_SIZE}")
            return engine_product(label, group, slots, many, width, source=SLIDING)

        more = Factor("bytes", row - group.layout.page_bytes(1), "fp16 beyond the format asked for")
        wider = engine_product("rows kept in fp16", group, sequences, Factor("rows", rows), more, source=SLIDING)
        slots = self._slots(sequences)
        spare = some(
            product("rings of spare slots", slots - sequences, ring),
            product("ring rows beyond the window", sequences, ring - rows),
        )
        return Part(group.name, some(product("rings", slots, ring)), spare, padding=some(wider))

    def state_part(self, group: CacheGroup, sequences: int) -> Part:
        """The current state of every slot, the one before a speculative pass, and what a pass stages."""
        slots = self._slots(sequences)
        spec = self.case.spec.group(group.name)
        source = SHORT_CONV if spec.kind == "state" and spec.state.type == "short_conv" else STATES
        core = slots_part(group, self._states[group.name], sequences, slots - sequences, source)
        rollback = Factor("bytes", _rollback(self.case, group).fixed_bytes("state"), group.origin.width)
        kept = engine_product("rollback of a speculative pass", group, slots, rollback, source=source)
        return Part(core.name, (*core.allocated, *some(kept)), (*core.reserved, *some(kept)), core.saves, core.padding)

    def extra_parts(self, context: int, sequences: int) -> tuple[Part, ...]:
        """Pages of a stated cache size that the request leaves free."""
        asked: int | None = self.case.options["cache_size"]
        if asked is None:
            return ()
        free = max(asked // PAGE_SIZE - cdiv(context, PAGE_SIZE) * sequences, 0)
        page = Factor("bytes", self._page_bytes(), "a page of all layers")
        held = some(Product("free pages", (Factor("pages", free, f"-cs {asked:,}"), page), "engine rule", PAGES))
        return (Part("free pages", held, held),)

    def _page_bytes(self) -> int:
        return sum(g.layers * g.layout.page_bytes(PAGE_SIZE) for g in self._paged())

    def _paged(self) -> list[CacheGroup]:
        return [g for g in self.case.groups if g.role != "state" and g.name not in self._rings]

    def figures(self, context: int, pool_bytes: int | None = None) -> tuple[EngineFigure, ...]:
        """The least cache size, a page of all layers, the copy that dequantising a layer makes, and what fits."""
        tokens = align_up(context, PAGE_SIZE) * self.case.sequences
        size: int = self.case.options["cache_size"] or tokens
        made = [
            EngineFigure("least -cs", tokens, PROJECT + "cache/cache.py"),
            EngineFigure("bytes per page", self._page_bytes(), PAGES),
        ]
        quantised = [g for g in self._paged() if g.role == "kv" and g.layout.tensor("k").number != "fp16"]
        if quantised:
            copy = max(_halves(g).page_bytes(size) for g in quantised)
            made.append(EngineFigure("fp16 copy of a layer", copy, PROJECT + "cache/quant.py, get_kv; freed at once"))
        if pool_bytes is not None and self._page_bytes():
            made.append(EngineFigure("largest -cs", pool_bytes // self._page_bytes() * PAGE_SIZE, PAGES))
        return tuple(made)


def _has_rings(case: Case) -> bool:
    kind = (case.spec.model_type or "").lower().translate({ord(c): None for c in "_-."})
    return kind.startswith(RINGS) and not case.options["swa_full"]


def _halves(group: CacheGroup) -> Layout:
    """The same K and V in fp16."""
    return bind(
        tuple(Tensor(t.role, Format("fp16"), t.dim) for t in group.layout.tensors), group.layout.heads, "fp16"
    )  # fmt: skip


def _core(case: Case, group: CacheGroup) -> Layout:
    """One copy of the states: a convolution of kernel + max_history columns, and the recurrent state.

    Mamba 2 keeps fp32; other recurrent states are fp16 unless asked for otherwise.
    """
    spec = case.spec.group(group.name)
    kind = spec.state.type if spec.kind == "state" else ""
    exact = kind == "mamba2" or case.options["recurrent_state_fp32"]
    storages = {"recurrent": "fp32" if exact else "fp16", "conv": "fp16" if kind == "short_conv" else "bf16"}
    return stored_states(case, group, more_conv_rows=1 + case.options["max_history"], storages=storages)


def _rollback(case: Case, group: CacheGroup) -> Layout:
    """A second recurrent state, and the staged inputs of a pass of max_history + 1 tokens; none for a convolution."""
    spec = case.spec.group(group.name)
    assert spec.kind == "state"
    state, rows = spec.state, case.options["max_history"] + 1
    if state.type == "short_conv":
        return bind_state({})
    recurrent, conv = state_elements(state, 1)
    assert state.type in ("gated_deltanet", "kda", "mamba2")
    heads = state.v_heads if state.type == "gated_deltanet" else state.heads
    gates = heads * (state.head_dim if state.type == "kda" else 1)
    channels = conv // (state.conv_kernel - 1)
    storage = next(p.storage for p in _core(case, group).planes if p.name == "recurrent")
    return bind_state(
        {
            "second": ((RECURRENT_ROWS - 1) * recurrent, storage),
            "staged conv": (rows * channels, "bf16"),
            "staged beta": (rows * heads, "bf16"),
            "staged gate": (rows * gates, "fp32"),
        }
    )
