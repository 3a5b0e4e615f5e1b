"""Pools of blocks as TensorRT-LLM lays them out: one for each window and head count, and slots of states."""

from __future__ import annotations

from kvplan.breakdown import Factor, Product
from kvplan.engines.shared.paged import PagedCache, bytes_factor, some
from kvplan.engines.shared.slots import slots_part, stored_states
from kvplan.engines.shared.types import Case, EngineFigure
from kvplan.engines.trtllm.windows import EVERY_ROW, layer_windows, read_shares
from kvplan.memory.groups import CacheGroup
from kvplan.memory.parts import Part
from kvplan.memory.terms import packed_rows
from kvplan.units import GIB, cdiv

PROJECT = "TensorRT-LLM 1.4.0rc4, "
MANAGER = PROJECT + "tensorrt_llm/_torch/pyexecutor/resource_manager.py, KVCacheManager"
BLOCKS = "TensorRT-LLM, cpp/tensorrt_llm/batch_manager/kvCacheManager.cpp, calculateMaxBlockRequirementsPerBeam"
EXTRA_BLOCK = "TensorRT-LLM, cpp/include/tensorrt_llm/batch_manager/kvCacheManager.h, kSWAExtraBlock"
LINEAR = MANAGER + "._calculate_max_num_blocks_for_linear_attention"

GROWING = ("kv", "latent", "index")
_STORAGE = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}


class TrtLlmCache(PagedCache):
    """Blocks of every layer up to its window, one block more beyond it; state slots for the batch and a dummy."""

    def __init__(self, case: Case) -> None:
        super().__init__(case, case.options["tokens_per_block"], MANAGER)
        self._windows = layer_windows(case)
        dtype = case.options["mamba_ssm_cache_dtype"]
        stored = {} if dtype == "auto" else {"recurrent": _STORAGE[dtype]}
        self._states = {g.name: stored_states(case, g, storages=stored) for g in case.groups if g.role == "state"}
        reuse = self._states and case.options["enable_block_reuse"]
        self._snapshots: int = case.options["mamba_state_cache_interval"] if reuse else 0
        self._note()

    def _note(self) -> None:
        options, notes = self.case.options, []
        if not options["max_attention_window"] and any(g.law.law == "window" for g in self.case.groups):
            notes.append("TensorRT-LLM keeps every row of windowed layers unless max_attention_window lists windows.")
        if options["max_tokens"] and len(self._distinct()) > 1:
            notes.append("TensorRT-LLM ignores max_tokens where layers have several windows.")
        elif options["max_tokens"] and options["max_tokens"] < self.case.context:
            notes.append(
                f"max_tokens {options['max_tokens']:,} holds no request of {self.case.context:,} tokens: TensorRT-LLM "
                "then shortens the longest sequence without an error."
            )
        if self._snapshots:
            notes.append(
                f"With block reuse TensorRT-LLM keeps a snapshot of all states for every {self._snapshots:,} tokens; "
                "enable_block_reuse=off spares them."
            )
        self.notes = tuple(notes)

    def _distinct(self) -> list[int]:
        """Windows of this rank, smallest first; none is longer than the longest sequence."""
        return sorted({self._clamped(window) for counts in self._windows.values() for window in counts})

    def _clamped(self, window: int) -> int:
        return self.case.context if window == EVERY_ROW else min(window, self.case.context)

    def paged_part(self, group: CacheGroup, context: int, sequences: int) -> Part:
        """Whole blocks of the rows within each window; beyond it one more, which is in flight."""
        if group.role == "cross":
            return super().paged_part(group, context, sequences)
        assert self.page_size is not None
        needed = packed_rows(group, context)
        parts: dict[str, list[Product]] = {"allocated": [], "reserved": [], "saves": [], "padding": []}
        for window, layers in self._windows[group.name].items():
            extra = int(window != EVERY_ROW and context > window)
            stored = window if extra else context

            def product(label: str, *factors: Factor, layers: int = layers) -> Product:
                named = (
                    Factor("layers", layers, group.origin.layers),
                    Factor("sequences", sequences, group.origin.sequences),
                )
                return Product(label, (*named, *factors), "engine rule", BLOCKS)

            page, row = bytes_factor(group, self.page_size), bytes_factor(group, 1)
            blocks = cdiv(stored, self.page_size) + extra
            why = f"ceil({stored:,} rows / {self.page_size})" + (" + 1 beyond the window" if extra else "")
            parts["allocated"].append(
                product("blocks", Factor(f"blocks of {self.page_size} tokens", blocks, why), page)
            )
            parts["reserved"].append(product("block beyond the window", Factor("blocks", extra, EXTRA_BLOCK), page))
            parts["saves"].append(product("rows beyond the window", Factor("rows", max(needed - stored, 0)), row))
            unread = Factor("rows", max(stored - needed, 0))
            parts["padding"].append(product("rows that attention no longer reads", unread, row))
        kept = {name: some(*terms) for name, terms in parts.items()}
        return Part(group.name, kept["allocated"], kept["reserved"], kept["saves"], kept["padding"])

    def state_part(self, group: CacheGroup, sequences: int) -> Part:
        """A slot for each request of the batch on every stage, and one more for padding CUDA graphs."""
        spare = self._slots(sequences) - sequences
        return slots_part(group, self._states[group.name], sequences, spare, LINEAR)

    def _slots(self, sequences: int) -> int:
        options = self.case.options
        batch: int = (options["max_batch_size"] or 0) * self.case.sharding.pp
        drafts: int = options["max_draft_len"]
        return max(batch, sequences) + 1 + drafts

    def extra_parts(self, context: int, sequences: int) -> tuple[Part, ...]:
        """Snapshots of all states that block reuse takes, one for every interval of all tokens."""
        interval = self._snapshots
        if not interval:
            return ()
        count = Factor(
            "snapshots", context * sequences // interval, f"{context:,} x {sequences:,} tokens / {interval:,}"
        )
        size = Factor("bytes", self._state_bytes(), "the states of all layers")
        held = some(Product("state snapshots", (count, size), "engine rule", LINEAR))
        return (Part("state snapshots", held, held),)

    def _state_bytes(self) -> int:
        groups = [g for g in self.case.groups if g.role == "state"]
        return sum(g.layers * self._states[g.name].fixed_bytes("state") for g in groups)

    def figures(self, context: int, pool_bytes: int | None = None) -> tuple[EngineFigure, ...]:
        """Bytes of a token, the pool that max_tokens asks for, and the blocks of each window in a given pool."""
        assert self.page_size is not None
        block = sum(g.layers * g.layout.page_bytes(self.page_size) for g in self._growing())
        made = [
            EngineFigure("bytes per token", self._token_bytes(), MANAGER + ".get_cache_bytes_per_token"),
            EngineFigure("bytes per block", block, MANAGER),
            EngineFigure("blocks per sequence", cdiv(context, self.page_size), BLOCKS),
            EngineFigure("pools", len(self._pools()),
                         "one pool for each window and number of heads; " + MANAGER),
        ]  # fmt: skip
        if self._states:
            made.append(EngineFigure("state slots", self._slots(self.case.sequences), LINEAR))
        tokens = self.case.options["max_tokens"]
        if tokens and len(self._distinct()) == 1:
            made += self._pool(cdiv(tokens, self.page_size), "")
        if pool_bytes is not None and block:
            made += self._fitting(pool_bytes)
        return tuple(made)

    def _pools(self) -> set[tuple[int, int]]:
        return {(self._clamped(w), g.layout.heads) for g in self._growing() for w in self._windows[g.name]}

    def _growing(self) -> list[CacheGroup]:
        return [g for g in self.case.groups if g.role in GROWING]

    def _token_bytes(self, window: int | None = None) -> int:
        """Bytes of a token in all layers of one window, or in all layers."""
        return sum(
            layers * g.layout.page_bytes(1)
            for g in self._growing()
            for w, layers in self._windows[g.name].items()
            if window is None or self._clamped(w) == window
        )

    def _pool(self, blocks: int, suffix: str) -> list[EngineFigure]:
        """Blocks, their tokens and bytes as TensorRT-LLM prints them."""
        assert self.page_size is not None
        nbytes = sum(g.layers * g.layout.page_bytes(self.page_size) for g in self._growing()) * blocks
        return [
            EngineFigure(f"blocks{suffix}", blocks, "max_tokens in whole blocks, rounded up"),
            EngineFigure(f"tokens{suffix}", blocks * self.page_size, MANAGER),
            EngineFigure(f"pool bytes{suffix}", nbytes, MANAGER),
            EngineFigure(f"pool GiB{suffix}", round(nbytes / GIB, 4), "printed to two decimals"),
        ]

    def _fitting(self, pool_bytes: int) -> list[EngineFigure]:
        """What a pool holds; several windows share it out, whatever max_tokens says."""
        assert self.page_size is not None
        cross = any(g.role == "cross" for g in self.case.groups)
        made, here = [], pool_bytes
        if cross:
            fraction = self.case.options["cross_kv_cache_fraction"]
            here = int(pool_bytes * (1 - fraction))
            made.append(EngineFigure("bytes of the cross pool", pool_bytes - here, PROJECT + "cross_kv_cache_fraction"))
        windows = self._distinct()
        shares = read_shares(self.case.options["TRTLLM_WINDOW_SIZE_SHARES"], len(windows))
        if self._states and len(windows) == 1:
            return [*made, self._beside_states(here, windows[0])]
        for window, share in zip(windows, shares, strict=True):
            blocks = int(share * here / self._token_bytes(window)) // self.page_size
            name = "num_blocks" if len(windows) == 1 else f"num_blocks of window {window}"
            made.append(EngineFigure(name, blocks, MANAGER + ".calculate_max_num_blocks_for_vswa"))
        return made

    def _beside_states(self, pool_bytes: int, window: int) -> EngineFigure:
        """Blocks of attention where states and their snapshots share the pool."""
        assert self.page_size is not None
        options, states = self.case.options, self._state_bytes()
        interval = options["mamba_state_cache_interval"]
        slope = self._token_bytes(window) + (states // interval if interval else 0)
        fixed = max((options["max_batch_size"] or 0) * self.case.sharding.pp, self.case.sequences) * states
        return EngineFigure("num_blocks", max(pool_bytes - fixed, 0) // slope // self.page_size, LINEAR)
