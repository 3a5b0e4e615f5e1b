"""Blocks and state slots as LMDeploy's PyTorch engine lays them out."""

from __future__ import annotations

from kvplan.breakdown import Factor, Product
from kvplan.engines.lmdeploy_pytorch.rules import (
    ALIGNMENT,
    BLOCK_TOKENS,
    EXECUTOR,
    LAYOUT,
    RESERVED,
    STATE_SLOTS_BESIDE,
    STATES,
    TITLE,
    WIDE_HEAD,
)
from kvplan.engines.shared.paged import PagedCache, engine_product, some
from kvplan.engines.shared.slots import slots_part, stored_states
from kvplan.engines.shared.types import Case, EngineFigure
from kvplan.errors import UnsupportedError, UsageError
from kvplan.formats.grammar import parse_any
from kvplan.formats.grid import Tensor, bind
from kvplan.memory.groups import DTYPES, CacheGroup
from kvplan.memory.parts import Part
from kvplan.memory.terms import packed_rows
from kvplan.units import align_up, cdiv


class PyTorchCache(PagedCache):
    """Blocks of every layer; a window of the whole model drops blocks behind it."""

    def __init__(self, case: Case) -> None:
        block, self._kernel = _block_sizes(case)
        super().__init__(case, block, LAYOUT)
        paged = [g for g in case.groups if g.role != "state"]
        windows = {g.law.limit if g.law.law == "window" else 0 for g in paged}
        self._window = windows.pop() if len(windows) == 1 else 0
        if windows:
            self.notes += (_several_windows(case),)
        self._states = {
            g.name: stored_states(case, g, more_conv_rows=1, storages=_storages(case))
            for g in case.groups
            if g.role == "state"
        }
        if self._states:
            self.notes += (
                "LMDeploy lays out state slots for max_batch_size; kvplan takes the request's unless given.",
            )

    def rows(self, group: CacheGroup, context: int) -> int:
        """All rows; of a window that every layer has, the window and the tokens of one prefill."""
        if not self._window:
            return context if group.law.law in ("window", "chunk") else packed_rows(group, context)
        assert self.page_size is not None
        behind = self._window + self.case.options["max_prefill_token_num"]
        return min(context, align_up(behind, self.page_size) + self.page_size)

    def paged_part(self, group: CacheGroup, context: int, sequences: int) -> Part:
        """Blocks with their alignment; those in flight beyond a window are kept for a prefill."""
        assert self.page_size is not None
        block, rows, needed = self.page_size, self.rows(group, context), packed_rows(group, context)
        pages, least = cdiv(rows, block), cdiv(needed, block)
        ends = Factor("bytes", self._block_bytes(group), f"each tensor rounded up to {ALIGNMENT}; {group.origin.width}")
        unaligned = group.layout.page_bytes(block)
        alignment = Factor("bytes", self._block_bytes(group) - unaligned, f"up to {ALIGNMENT} bytes for each tensor")

        def product(label: str, count: int, width: Factor) -> Product:
            many = Factor(f"blocks of {block:,} tokens", count, f"ceil({rows:,} rows / {block:,})")
            return engine_product(label, group, sequences, many, width, source=self.source)

        in_flight = product("blocks in flight", pages - least, ends) if self._window else None
        padding = product("alignment", least if self._window else pages, alignment)
        beyond = Factor("rows", 0 if self._window else rows - needed)
        unread = engine_product(
            "rows that attention no longer reads", group, sequences, beyond,
            Factor("bytes", group.layout.page_bytes(1), group.origin.width), source=self.source,
        )  # fmt: skip
        reserved = some(in_flight) if in_flight else ()
        return Part(group.name, some(product("blocks", pages, ends)), reserved, padding=some(padding, unread))

    def state_part(self, group: CacheGroup, sequences: int) -> Part:
        """Slots of the batch and two more; each tensor of a slot, all layers together, rounded up."""
        layout, batch = self._states[group.name], self.case.options["max_batch_size"] or sequences
        spare = max(batch, sequences) - sequences + STATE_SLOTS_BESIDE + self.case.options["prefix_cache_state_budget"]
        part = slots_part(group, layout, sequences, spare, STATES)
        rounding = sum(
            align_up(group.layers * p.fixed_bytes(1), ALIGNMENT) - group.layers * p.fixed_bytes(1)
            for p in layout.planes
        )  # fmt: skip
        ends = Factor("bytes", rounding, f"up to {ALIGNMENT} bytes for each state tensor of all layers")

        def product(slots: int) -> Product:
            return Product("alignment", (Factor("sequences", slots), ends), "engine rule", LAYOUT)

        return Part(
            part.name,
            some(*part.allocated, product(sequences + spare)),
            some(*part.reserved, product(spare)),
            part.saves,
            some(*part.padding, product(sequences)),
        )

    def extra_parts(self, context: int, sequences: int) -> tuple[Part, ...]:
        """The block that the scheduler never hands out."""
        block = Factor("bytes", self._all_layers(), "a block of all layers")
        held = some(Product("reserved block", (Factor("blocks", 1), block), "engine rule", RESERVED))
        return (Part("reserved block", held, held),)

    def figures(self, context: int, pool_bytes: int | None = None) -> tuple[EngineFigure, ...]:
        """Bytes of a block of all layers and of a state slot, and the blocks of a pool."""
        made = [EngineFigure("bytes per block", self._all_layers(), LAYOUT)]
        if self._states:
            slot = sum(
                align_up(g.layers * p.fixed_bytes(1), ALIGNMENT)
                for g in self.case.groups
                if g.role == "state"
                for p in self._states[g.name].planes
            )
            made.append(EngineFigure("bytes per state slot", slot, LAYOUT))
        if pool_bytes is not None and self._all_layers():
            made.append(EngineFigure("num_gpu_blocks", pool_bytes // self._all_layers(), EXECUTOR))
        return tuple(made)

    def _all_layers(self) -> int:
        return sum(g.layers * self._block_bytes(g) for g in self.case.groups if g.role != "state")

    def _block_bytes(self, group: CacheGroup) -> int:
        """Bytes of a block of one layer: payload and scales of K and of V are four tensors."""
        assert self.page_size is not None
        if group.role == "index":
            return group.layout.page_bytes(self.page_size)
        native = DTYPES[self.case.spec.native_dtype]
        kernel_block = 0
        for t in group.layout.tensors:
            rope = _rope_dim(self.case, group) if t.role == "latent" else 0
            alone = bind((Tensor(t.role, parse_any(t.spelling), t.dim, rope),), group.layout.heads, native)
            kernel_block += sum(
                align_up(p.page_bytes(self._kernel, alone.heads), ALIGNMENT) for p in alone.scoped("page")
            )
        return kernel_block * (self.page_size // self._kernel)


def _rope_dim(case: Case, group: CacheGroup) -> int:
    spec = case.spec.group(group.name.split("[")[0].removeprefix("mtp-"))
    return spec.rope_dim if spec.kind == "latent" else 0


def _storages(case: Case) -> dict[str, str]:
    """States are bf16 on a GPU that has it, else fp16; the width is the same."""
    half = "fp16" if case.capability and case.capability < (8, 0) else "bf16"
    return {"recurrent": "fp32" if case.options["LMDEPLOY_FP32_MAMBA_SSM_DTYPE"] else half, "conv": half}


def _several_windows(case: Case) -> str:
    """Note on a model whose layers have several windows.

    Raises:
        UnsupportedError: an architecture whose configuration kvplan has not read.
    """
    kind = (case.spec.model_type or "").lower().translate({ord(c): None for c in "_-."})
    if kind and not kind.startswith(("gemma", "gptoss")):
        raise UnsupportedError(
            f"kvplan has not read which rows {TITLE} keeps where layers of {case.spec.model_type} have several windows",
            "plan without --engine",
        )
    return "LMDeploy keeps every row of gemma and gpt-oss, whose layers have several windows."


def _block_sizes(case: Case) -> tuple[int, int]:
    """(tokens per block, tokens per kernel block) after the engine's own corrections."""
    options, device = case.options, case.options["device_type"]
    block: int = options["block_size"]
    kernel: int = options["kernel_block_size"] or block
    if device == "camb":
        return 16, 16
    if kernel < 16 or kernel & (kernel - 1):
        raise UsageError(f"kernel_block_size {kernel} is no power of two from 16", "for example 64")
    if block % kernel:
        raise UsageError(
            f"block_size {block} is no multiple of kernel_block_size {kernel}", f"use {align_up(block, kernel)}"
        )
    if any(g.role == "latent" for g in case.groups):
        if block != BLOCK_TOKENS:
            raise UsageError("FlashMLA needs blocks of 64 tokens", "give --engine-option block_size=64")
        return block, kernel
    widest = max((g.layout.tensor("k").dim for g in case.groups if g.role == "kv"), default=0)
    if device == "ascend" and widest == 256:
        return 128, 128
    return (32, 32) if widest >= WIDE_HEAD and block > 32 else (block, kernel)
