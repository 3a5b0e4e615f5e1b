"""LMDeploy TurboMind: blocks that hold 64 tokens of every layer, scales at the end of each head's rows.

Sources: InternLM/lmdeploy git 1263d5c (0.16.0, 2026-08-21), read; older versions through their printed logs.
"""

from __future__ import annotations

from kvplan.engines.shared.lmdeploy import TURBOMIND_POOL, launch
from kvplan.engines.shared.paged import PagedCache
from kvplan.engines.shared.scope import check_scope
from kvplan.engines.shared.select import number_of
from kvplan.engines.shared.slots import slots_part, stored_states
from kvplan.engines.shared.types import (
    NATIVE,
    Case,
    Engine,
    EngineCache,
    EngineFigure,
    EngineFormat,
    EngineOption,
    EngineRule,
    EngineVersion,
)
from kvplan.errors import UnsupportedError, UsageError
from kvplan.memory.groups import CacheGroup
from kvplan.memory.parts import Part
from kvplan.memory.terms import packed_rows
from kvplan.units import MIB, cdiv

_TITLE = "LMDeploy TurboMind"
_PROJECT = "LMDeploy TurboMind 0.16.0 (git 1263d5c), "
_BLOCK = _PROJECT + "src/turbomind/kernels/attention/block.h"
_LAYERS = _PROJECT + "src/turbomind/models/llama/unified_attention_layer.cc:160-171"
_BUDGET = _PROJECT + "src/turbomind/turbomind.cc:293-306"
_OPTIONS = "LMDeploy, lmdeploy/messages.py, TurbomindEngineConfig"
_STATES = "LMDeploy TurboMind, src/turbomind/models/llama/GatedDeltaNetLayer.cc and object_cache_plan.cc"
_OLD_LOG = "block size in MB as printed in InternLM/lmdeploy#720 and logs of 0.0.14"

_SMALL_BLOCKS = "0.7.0"
"""The oldest version seen with blocks of 64 tokens; older logs have 128, and print a block's size in whole MB."""


SHARED_WIDTH = 576
"""Channels of the one kind of head whose plane serves K and V."""
_HINT = "plan without --engine"


class TurboMindCache(PagedCache):
    """One block of all layers for every 64 tokens, windowed layers included; one state of each linear layer."""

    def __init__(self, case: Case) -> None:
        super().__init__(case, _block_tokens(case), _BLOCK)
        self._old = number_of(case.version) < number_of(_SMALL_BLOCKS)
        if any(g.law.law in ("window", "chunk") for g in case.groups):
            self.notes = ("TurboMind keeps every row of windowed layers: a block holds all layers.",)
        self._states = {g.name: stored_states(case, g, more_conv_rows=1) for g in case.groups if g.role == "state"}

    def rows(self, group: CacheGroup, context: int) -> int:
        """All rows, also of windows and chunks."""
        return context if group.law.law in ("window", "chunk") else packed_rows(group, context)

    def state_part(self, group: CacheGroup, sequences: int) -> Part:
        """One state per sequence; its convolution keeps as many rows as the kernel is wide."""
        return slots_part(group, self._states[group.name], sequences, 0, _STATES)

    def figures(self, context: int, pool_bytes: int | None = None) -> tuple[EngineFigure, ...]:
        """A block as the engine prints it, the blocks of a sequence, and what a pool holds."""
        assert self.page_size is not None
        paged = [g for g in self.case.groups if g.role != "state"]
        block = sum(g.layers * g.layout.page_bytes(self.page_size) for g in paged)
        shown = block // MIB if self._old else round(block / MIB, 3)
        made = [
            EngineFigure("bytes per block", block, _BLOCK),
            EngineFigure("block size (MB)", shown, _OLD_LOG if self._old else _BLOCK),
            EngineFigure("blocks per sequence", cdiv(context, self.page_size), _BLOCK),
        ]
        if pool_bytes is not None and block:
            made += [
                EngineFigure("blocks", pool_bytes // block, _BUDGET),
                EngineFigure("tokens", pool_bytes // block * self.page_size, "longest session: a longer one is cut"),
            ]
        return tuple(made)


def _block_tokens(case: Case) -> int:
    asked: int | None = case.options["cache_block_seq_len"]
    if asked is not None:
        if asked < 1:
            raise UsageError(f"cache_block_seq_len {asked} is no number of tokens", "the default is 64")
        return asked
    return 128 if number_of(case.version) < number_of(_SMALL_BLOCKS) else 64


def cache(case: Case) -> EngineCache:
    """Lay out a case.

    Raises:
        UsageError: a block of no tokens.
        UnsupportedError: index keys, encoder and strided rows, latents of another width, other states than a gated
            DeltaNet's.
    """
    check_scope(case, _TITLE, ("kv", "latent", "state"), pp=False, mtp=False)
    for group in case.groups:
        if group.role == "state":
            spec = case.spec.group(group.name)
            if spec.kind != "state" or spec.state.type != "gated_deltanet":
                raise UnsupportedError(f"kvplan has no rule for the states of {group.name} in {_TITLE}", _HINT)
        if group.role == "latent" and group.layout.tensor("latent").dim != SHARED_WIDTH:
            raise UnsupportedError(
                f"TurboMind shares one plane for latents of {SHARED_WIDTH} channels; kvplan has no rule for others",
                _HINT,
            )
    return TurboMindCache(case)


ENGINE = Engine(
    name="lmdeploy-turbomind",
    title=_TITLE,
    flag=("--quant-policy",),
    versions=(
        EngineVersion(name="0.16.0", note="git 1263d5c of 2026-08-21, read", source=_BLOCK),
        EngineVersion(name="0.10.0", note="block sizes as printed by 0.9 and 0.10", source="InternLM/lmdeploy#3949"),
        EngineVersion(name="0.7.0", note="block sizes as printed by 0.7", source="InternLM/lmdeploy#3411"),
        EngineVersion(name="0.0.14", note="blocks of 128 tokens, sizes printed in whole MB", source=_OLD_LOG),
    ),
    formats=(
        EngineFormat(option="0", k=NATIVE, v=NATIVE, latent=NATIVE, nbytes=512, source=_BLOCK),
        EngineFormat(option="8", k="int8,asym,scale=model", v="int8,asym,scale=model", nbytes=264, since=_SMALL_BLOCKS,
                     source=_BLOCK),
        EngineFormat(option="4", k="int4,asym,scale=model", v="int4,asym,scale=model", nbytes=136, since=_SMALL_BLOCKS,
                     source=_BLOCK),
    ),
    options=(
        EngineOption(name="cache_block_seq_len", text="Tokens per block; default 64 (128 in 0.0.14).", source=_OPTIONS),
    ),
    rules=(
        EngineRule(name="block", text="A block holds 64 tokens of every layer, one after another without alignment; "
                   "windowed layers keep every row.", source=_LAYERS),
        EngineRule(name="scales", text="Scale and zero in the model's 16-bit type for each token of a head, K and V "
                   "apart: 8 bytes for both.", source=_BLOCK),
        EngineRule(name="latent", text="A latent is one plane for K and V, whole on every rank.", source=_BLOCK),
        EngineRule(name="states", text="A linear layer has one state per sequence in the same region; its convolution "
                   "keeps kernel rows, one more than the mathematics needs.", source=_STATES),
        EngineRule(name="budget", text="cache_max_entry_count (0.8) is a share of the memory that is free after the "
                   "weights, the least of all ranks.", source=_BUDGET),
    ),
    cache=cache,
    pool=TURBOMIND_POOL,
    launch=launch("turbomind", "cache_block_seq_len"),
    page_option="cache_block_seq_len",
)  # fmt: skip
