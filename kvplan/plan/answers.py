"""The parts of a plan that answer: what fits, whether the request does, what a format gains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import PlainSerializer, PlainValidator

from kvplan import breakdown


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
class Capacity:
    """What fits. pool = util x memory - weights per rank, of one GPU; may be negative.

    Attributes:
        requests, tokens: of all replicas, at the request's context; None without one, then `by_context` has all.
        longest_request: tokens of the longest single request, at most the model's maximum.
        longest_limited_by: what ends it, `gpu memory` or `model maximum`.
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
