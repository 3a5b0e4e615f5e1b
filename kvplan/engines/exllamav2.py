"""ExLlamaV2: one cache of so many tokens in pages of 256, and an fp16 copy of one layer beside a quantised one.

Source: the exllamav2 0.3.2 wheel, read (it needs CUDA to run); its dynamic generator, which pages the cache.
"""

from __future__ import annotations

from kvplan.breakdown import Factor, Product
from kvplan.engines.shared.paged import PagedCache, some
from kvplan.engines.shared.scope import check_scope
from kvplan.engines.shared.types import (
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
from kvplan.formats.grammar import Format
from kvplan.formats.grid import Tensor, bind
from kvplan.memory.groups import CacheGroup
from kvplan.memory.parts import Part
from kvplan.units import align_up, cdiv

_TITLE = "ExLlamaV2"
_CACHE = "ExLlamaV2 0.3.2, exllamav2/cache.py"
_GENERATOR = "ExLlamaV2 0.3.2, exllamav2/generator/dynamic.py:33, PAGED_PAGE_SIZE"
PAGE_SIZE = 256
"""Tokens per page of the dynamic generator."""


class ExLlamaV2Cache(PagedCache):
    """Whole pages of every row for each sequence, out of one cache; quantised caches have one layer in fp16 too."""

    def __init__(self, case: Case) -> None:
        super().__init__(case, PAGE_SIZE, _CACHE)
        if any(g.law.law != "all" for g in case.groups):
            self.notes = ("ExLlamaV2 keeps every row of windowed layers.",)

    def rows(self, group: CacheGroup, context: int) -> int:
        """All rows, also of windows and chunks."""
        return context

    def _pages(self, context: int, sequences: int) -> int:
        """Pages of the whole cache: those of the request, or of a stated max_seq_len."""
        return max(cdiv(context, PAGE_SIZE) * sequences, (self.case.options["max_seq_len"] or 0) // PAGE_SIZE)

    def extra_parts(self, context: int, sequences: int) -> tuple[Part, ...]:
        """The fp16 K and V of one layer, as long as the cache, and pages that the request leaves free."""
        pages = self._pages(context, sequences)
        count = Factor(f"pages of {PAGE_SIZE} tokens", pages, "of the whole cache")
        copy = Factor("bytes", self._copy_bytes(PAGE_SIZE), "K and V of one layer in fp16")
        temp = some(Product("fp16 copy of a layer", (count, copy), "engine rule", _CACHE + ", touch_device"))
        free = Factor("pages", pages - cdiv(context, PAGE_SIZE) * sequences, "of max_seq_len")
        page = Factor("bytes", self._page_bytes(), "a page of all layers")
        left = some(Product("free pages", (free, page), "engine rule", _CACHE))
        return (Part("fp16 copy of a layer", temp, temp), Part("free pages", left, left))

    def _page_bytes(self) -> int:
        return sum(g.layers * g.layout.page_bytes(PAGE_SIZE) for g in self.case.groups)

    def _copy_bytes(self, tokens: int) -> int:
        """Bytes of `tokens` tokens of one layer in fp16; none beside an fp16 cache."""
        if set(self.case.chosen.values()) <= {"FP16"} or not self.case.groups:
            return 0
        layout = self.case.groups[0].layout
        half = tuple(Tensor(t.role, Format("fp16"), t.dim) for t in layout.tensors)
        return bind(half, layout.heads, "fp16").page_bytes(tokens)

    def figures(self, context: int, pool_bytes: int | None = None) -> tuple[EngineFigure, ...]:
        """The least max_seq_len, a page of all layers with its share of the copy, and what fits."""
        page = self._page_bytes() + self._copy_bytes(PAGE_SIZE)
        made = [
            EngineFigure("least max_seq_len", align_up(context, PAGE_SIZE) * self.case.sequences, _GENERATOR),
            EngineFigure("bytes per page", page, _CACHE),
        ]
        if pool_bytes is not None and page:
            made.append(EngineFigure("largest max_seq_len", pool_bytes // page * PAGE_SIZE, _CACHE))
        return tuple(made)


def cache(case: Case) -> EngineCache:
    """Lay out a case.

    Raises:
        UsageError: a max_seq_len that is no multiple of 256 or too small for the request.
        UnsupportedError: caches other than K and V rows, layers of several shapes, several ranks.
    """
    check_scope(case, _TITLE, ("kv",), pp=False, mtp=False, fp32=True)
    if case.sharding.tp > 1:
        raise UnsupportedError(f"kvplan has no rule for tensor parallelism of {_TITLE}", "plan one GPU")
    if len({g.layout.tensors for g in case.groups}) > 1 or len({g.layout.heads for g in case.groups}) > 1:
        raise UnsupportedError(f"kvplan has no rule for layers of several shapes in {_TITLE}", "plan without --engine")
    size, needed = case.options["max_seq_len"], align_up(case.context, PAGE_SIZE) * case.sequences
    if size is not None and size % PAGE_SIZE:
        raise UsageError(f"max_seq_len {size:,} is no multiple of {PAGE_SIZE}", f"use {align_up(size, PAGE_SIZE)}")
    if size is not None and size < needed:
        raise UsageError(f"a cache of {size:,} tokens does not hold the request", f"use max_seq_len={needed}")
    return ExLlamaV2Cache(case)


ENGINE = Engine(
    name="exllamav2",
    title=_TITLE,
    flag=("cache_mode",),
    versions=(EngineVersion(name="0.3.2", note="the wheel, read"),),
    formats=(
        EngineFormat(option="FP16", k="fp16", v="fp16", nbytes=512, source=_CACHE),
        EngineFormat(option="8bit", k="fp8_e5m2", v="fp8_e5m2", nbytes=256, aliases=("FP8",), source=_CACHE),
        EngineFormat(option="Q4", k="int4:group/32", v="int4:group/32", nbytes=144, source=_CACHE),
        EngineFormat(option="Q6", k="int8:group/32", v="int4:group/32", nbytes=208, source=_CACHE),
        EngineFormat(option="Q8", k="int8:group/32", v="int8:group/32", nbytes=272, source=_CACHE),
    ),
    options=(
        EngineOption(name="max_seq_len", text="Tokens of the cache, a multiple of 256, for all sequences together; "
                     "default the request's (the engine's is the model's longest).", source=_CACHE),
    ),
    rules=(
        EngineRule(name="pages", text="Whole pages of 256 tokens for each sequence, every row of every layer.",
                   source=_GENERATOR),
        EngineRule(name="rows", text="An fp16 scale for 32 channels of a head. Q6 is K in 8 bits and V in 4.",
                   source=_CACHE),
        EngineRule(name="copy", text="Beside a quantised cache lie K and V of one layer in fp16, as long as the cache.",
                   source=_CACHE + ", touch_device"),
    ),
    cache=cache,
)  # fmt: skip
