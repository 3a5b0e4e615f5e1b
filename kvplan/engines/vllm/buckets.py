"""Layers that share block tables: how they are dealt to page groups, over all pipeline stages.

Source: vLLM 0.33.0, v1/core/kv_cache_planning.py and kv_cache_interface.py (UniformTypeKVCacheSpecs).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvplan.engines.vllm.blocks import CHUNKED, EVERY_TOKEN, SLIDING, SLIDING_MLA, LayerSpec


@dataclass(frozen=True, slots=True)
class Layers:
    """The layers of one cache group.

    Attributes:
        index: of the cache group in the case.
        spec: of each of its layers.
        counts: layers on each pipeline stage.
    """

    index: int
    spec: LayerSpec
    counts: tuple[int, ...]

    @property
    def total(self) -> int:
        """Layers of all stages."""
        return sum(self.counts)


@dataclass(frozen=True, slots=True)
class Bucket:
    """Page groups of one kind: `groups` of them share the layers of `members` in turn."""

    members: tuple[Layers, ...]
    groups: int = 1

    @property
    def lanes(self) -> tuple[tuple[Layers, ...], ...]:
        """Members whose pages have one size are dealt together, in the order of their layers."""
        sizes = dict.fromkeys(m.spec.page_bytes for m in self.members)
        return tuple(tuple(m for m in self.members if m.spec.page_bytes == size) for size in sizes)

    @property
    def kind(self) -> str:
        """vLLM's name of the first layer's spec."""
        return self.members[0].spec.kind

    @property
    def block_size(self) -> int:
        """Tokens of a block."""
        return self.members[0].spec.block_size

    @property
    def page_bytes(self) -> int:
        """Bytes of a group's page: of one layer where all are alike, else of all layers together."""
        alike = {(m.spec.kind, m.spec.layout, m.spec.page_bytes) for m in self.members}
        if len(alike) == 1:
            return self.members[0].spec.page_bytes
        return sum(m.total * m.spec.page_bytes for m in self.members)

    def layers_per_group(self, stage: int | None = None) -> tuple[int, ...]:
        """Layers of each page group, on one stage or on all."""
        dealt = [_dealt(lane, self.groups) for lane in self.lanes]
        stages = range(len(self.members[0].counts)) if stage is None else (stage,)
        return tuple(sum(lane[s][i] for lane in dealt for s in stages) for i in range(self.groups))

    def group_bytes(self, stage: int) -> tuple[int, ...]:
        """Bytes of a block's layers in each page group, on one stage."""
        dealt = [(lane[0].spec.page_bytes, _dealt(lane, self.groups)) for lane in self.lanes]
        return tuple(sum(page * counts[stage][i] for page, counts in dealt) for i in range(self.groups))


def _dealt(lane: tuple[Layers, ...], groups: int) -> list[list[int]]:
    """Layers by stage and page group: layer j of all stages goes to group j mod `groups`."""
    stages, start = [], 0
    for stage in range(len(lane[0].counts)):
        end = start + sum(m.counts[stage] for m in lane)
        stages.append([sum(1 for j in range(start, end) if j % groups == i) for i in range(groups)])
        start = end
    return stages


def uniform(specs: Sequence[LayerSpec]) -> bool:
    """Whether all layers need the same blocks at every length (UniformTypeKVCacheSpecs.is_uniform_type)."""
    first = specs[0]
    if len({s.block_size for s in specs}) > 1:
        return False
    if first.kind in EVERY_TOKEN:
        return all(s.kind in EVERY_TOKEN for s in specs)
    if first.kind in (SLIDING, SLIDING_MLA):
        return all(s.kind in (SLIDING, SLIDING_MLA) and s.limit == first.limit for s in specs)
    if first.kind == CHUNKED:
        return all(s.kind == CHUNKED and s.limit == first.limit for s in specs)
    return all(s.kind == first.kind for s in specs)
