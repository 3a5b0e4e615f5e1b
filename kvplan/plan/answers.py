"""The parts of a plan that answer: what fits, whether the request does, what a format gains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import PlainSerializer, PlainValidator

from kvplan import breakdown
from kvplan.engines.shared.memory import MemoryNeed


def _read_node(value: Any) -> breakdown.Node:
    return value if isinstance(value, breakdown.Product | breakdown.Sum) else breakdown.from_dict(value)


Tree = Annotated[breakdown.Node, PlainValidator(_read_node), PlainSerializer(breakdown.to_dict)]
"""A breakdown tree; reading recomputes every number."""

STRICT: Any = {"extra": "forbid"}
"""How pydantic reads a part of a stored plan."""


@dataclass(frozen=True, kw_only=True)
class Fit:
    """How much fits at one context length: requests, and tokens with the last request cut to what is left."""

    context: int
    requests: int
    tokens: int

    __pydantic_config__: ClassVar[Any] = STRICT


@dataclass(frozen=True, kw_only=True)
class Budget:
    """How an engine comes to its pool on one GPU: what else is there, as ranges, and the engine's rule.

    Attributes:
        share: the engine's setting that --util gives; `share_name` is its own name for it.
        needs: weights, activations, CUDA graphs, framework: low and high, basis, source.
        pool_low_bytes, pool_high_bytes: by the rule, with every need at its high and at its low end.
    """

    share: float
    share_name: str
    vocab_size: int
    needs: tuple[MemoryNeed, ...]
    pool_low_bytes: int
    pool_high_bytes: int
    rule: str
    source: str

    __pydantic_config__: ClassVar[Any] = STRICT


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Requests of several lengths at once, at the low end of the pool and, as *_high, at its high end.

    Attributes:
        mean_tokens: of a request.
        mean_request_bytes: beside the shared prefix, on the rank that holds most.
        shared_bytes: of the prefix that all requests share.
        requests: that fit on average; every request counts with its whole length.
        requests_p95: that fit with 95% probability, whichever lengths come together (normal approximation).
        limited_by: `kv cache`, or `slots of one size` where the longest request decides.
    """

    lengths: str
    mean_tokens: float
    mean_request_bytes: float
    shared_bytes: int
    samples: int
    requests: int
    requests_p95: int
    requests_high: int
    requests_p95_high: int
    limited_by: str

    __pydantic_config__: ClassVar[Any] = STRICT


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A draft model on the same GPU: weights and cache of one rank for the request's batch and context."""

    model: str
    weights: Tree
    held_bytes: int

    __pydantic_config__: ClassVar[Any] = STRICT


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """What fits. pool = util x memory - weights per rank, of one GPU; with an engine the low end of its budget.

    Attributes:
        requests, tokens: of all replicas, at the request's context; None without one, then `by_context` has all.
        longest_request: tokens of the longest single request, at most the model's maximum.
        longest_limited_by: what ends it, `gpu memory` or `model maximum`.
        budget: with an engine, how it comes to its pool; `requests_high`, `tokens_high` at the high end.
        workload: requests of several lengths, with a shared prefix or several samples.
    """

    memory_bytes: int
    util: float
    usable_bytes: int
    weights: Tree
    pool_bytes: int
    requests: int | None
    tokens: int | None
    longest_request: int
    longest_limited_by: Literal["gpu memory", "model maximum"]
    by_context: tuple[Fit, ...]
    budget: Budget | None = None
    requests_high: int | None = None
    tokens_high: int | None = None
    workload: Workload | None = None
    draft: Draft | None = None

    __pydantic_config__: ClassVar[Any] = STRICT


@dataclass(frozen=True, kw_only=True)
class GainRatio:
    """An exact ratio in lowest terms, with its value as a float for readers."""

    numerator: int
    denominator: int
    value: float

    __pydantic_config__: ClassVar[Any] = STRICT


@dataclass(frozen=True, kw_only=True)
class FixedRequests:
    """The same requests in fewer bytes: allocated bytes in the native dtype and in the chosen formats."""

    before_bytes: int
    after_bytes: int
    ratio: GainRatio

    __pydantic_config__: ClassVar[Any] = STRICT


@dataclass(frozen=True, kw_only=True)
class PreallocatedPool:
    """The same device memory holding more: an engine that reserves its pool shows no fall in memory."""

    pool_bytes: int
    requests_before: int
    requests_after: int
    tokens_before: int
    tokens_after: int

    __pydantic_config__: ClassVar[Any] = STRICT


@dataclass(frozen=True, kw_only=True)
class Gain:
    """Both gains over the native dtype, kept apart."""

    before_formats: dict[str, str]
    fixed_requests: FixedRequests
    preallocated_pool: PreallocatedPool | None

    __pydantic_config__: ClassVar[Any] = STRICT


@dataclass(frozen=True, kw_only=True)
class Limit:
    """One thing that must fit: bytes needed and bytes available on one GPU."""

    name: str
    needed_bytes: int
    available_bytes: int

    __pydantic_config__: ClassVar[Any] = STRICT


@dataclass(frozen=True, kw_only=True)
class Change:
    """A change of one option with which the request fits."""

    option: str
    value: int

    __pydantic_config__: ClassVar[Any] = STRICT


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Whether the request fits; not fitting is an answer, with reasons and the nearest changes that fit."""

    fits: bool
    limits: tuple[Limit, ...]
    reasons: tuple[str, ...]
    nearest_change: tuple[Change, ...]

    __pydantic_config__: ClassVar[Any] = STRICT
