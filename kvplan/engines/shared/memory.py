"""What a GPU holds beside the cache, as ranges, and how an engine turns the rest into its pool."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar


@dataclass(frozen=True, kw_only=True)
class MemoryNeed:
    """Something on the GPU that is no cache, in bytes of one rank.

    Attributes:
        name: weights, activations, cuda graphs or framework.
        low_bytes, high_bytes: the range; equal where the figure is exact.
        basis: exact | engine rule | estimate | measured.
        source: the arithmetic, or where it was measured.
    """

    name: str
    low_bytes: int
    high_bytes: int
    basis: str
    source: str

    # Read by pydantic where a plan is loaded.
    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}


@dataclass(frozen=True, kw_only=True)
class GpuMemory:
    """One end of the range: what an engine finds when it sizes its pool, in bytes of one rank.

    Attributes:
        total: as the driver reports it.
        share: the engine's own setting (gpu_memory_utilization, mem_fraction_static ...).
        framework: CUDA context, communication buffers, libraries.
        vocab_size: of the model; 0 where its spec states none.
        version, options: of the engine.
    """

    total: int
    share: Fraction
    weights: int
    activations: int
    graphs: int
    framework: int
    vocab_size: int
    version: str
    options: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Started:
    """An engine as it is started: what decides its largest step.

    Attributes:
        total: bytes of the GPU.
        capability: its CUDA compute capability; None: not known.
        context: tokens of a request that it is started for.
    """

    version: str
    options: Mapping[str, Any]
    total: int
    capability: tuple[int, int] | None
    context: int


@dataclass(frozen=True, kw_only=True)
class PoolRule:
    """How an engine sizes its pool.

    Attributes:
        share_name: the engine's own name of the share; empty where it has none.
        default_share: what the engine takes for a version, on a GPU of so many bytes with so many ranks.
        busiest: requests at once and prompt tokens of the step with the activation peak.
        pool: bytes of the pool; may be negative. Falls when a need grows.
        text: the rule in a sentence.
    """

    share_name: str
    default_share: Callable[[str, int, int], Fraction]
    busiest: Callable[[Started], tuple[int, int]]
    pool: Callable[[GpuMemory], int]
    text: str
    source: str


def rest_of_share(memory: GpuMemory) -> int:
    """The share of the total, less everything else: what an engine without a rule of its own can use."""
    return int(memory.share * memory.total) - memory.weights - memory.activations - memory.graphs - memory.framework


def rest_without_graphs(memory: GpuMemory) -> int:
    """`rest_of_share` for engines whose caches have the size asked for, and which capture no graphs ahead."""
    return int(memory.share * memory.total) - memory.weights - memory.activations - memory.framework


DEFAULT_POOL = PoolRule(
    share_name="",
    busiest=lambda _started: (256, 8192),
    default_share=lambda _version, _total, _ranks: Fraction(9, 10),
    pool=rest_of_share,
    text="kvplan's own: the share of the driver's total, less weights, activations, graphs and framework.",
    source="kvplan",
)
