"""The plan object and its parts: what `kvplan estimate --json` prints and `Plan.load` reads back.

`PlanRequest` and `Plan` are pydantic; their parts are plain dataclasses, which start faster and which pydantic checks
all the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer, PlainValidator

from kvplan import breakdown
from kvplan.memory.figures import KvFigures


def _read_node(value: Any) -> breakdown.Node:
    return value if isinstance(value, breakdown.Product | breakdown.Sum) else breakdown.from_dict(value)


Tree = Annotated[breakdown.Node, PlainValidator(_read_node), PlainSerializer(breakdown.to_dict)]
"""A breakdown tree; reading recomputes every number."""

_STRICT: Any = {"extra": "forbid"}


class PlanRequest(BaseModel):
    """What is asked; the field texts are also the help of the command line.

    In a plan's echo every default is filled in, every format has its canonical spelling, and the format of a tensor
    that the model does not have is None.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    model: str
    """Id of a shipped spec, Hugging Face id, or path of a spec file, a config.json, a model folder or a .gguf file."""
    context: int | None = None
    """Tokens of every sequence; without it, a ladder of lengths."""
    batch: int = 1
    """Sequences held at once."""
    kv: str | None = None
    """Format of K and V together."""
    k: str | None = None
    """Format of K."""
    v: str | None = None
    """Format of V."""
    latent: str | None = None
    """Format of an MLA latent; 16-bit and fp8 formats of K and V carry over."""
    index: str | None = None
    """Format of the index keys of sparse attention."""
    state_dtype: str | None = None
    """Number type of recurrent states: fp32 bf16 fp16; default the model's own."""
    conv_dtype: str | None = None
    """Number type of convolution states: fp32 bf16 fp16; default the model's own."""
    page_size: int | None = None
    """Tokens per page; default the least multiple of 128 that the layouts allow."""
    tp: int = 1
    """Tensor-parallel ranks; every figure is of one of them."""
    gpu: str | None = None
    """Id of a shipped device or path of a device file."""
    gpu_memory: int | None = None
    """Memory of a GPU without a name, such as 24GiB."""
    bandwidth: int | None = None
    """Memory bandwidth of a GPU without a name, such as 936GB/s."""
    util: float = 0.9
    """Share of the GPU's memory that weights and cache may fill."""
    weights_dtype: str | None = None
    """Number type of the weights: fp32 bf16 fp16 fp8 int8 int4, or `published` for the spec's own byte count."""
    beyond_max: bool = False
    """Allow a context above the model's maximum."""


@dataclass(frozen=True, kw_only=True)
class ModelSummary:
    """The model, in a few words."""

    id: str
    hf_ids: tuple[str, ...]
    layers: int
    max_context: int
    native_dtype: str
    params_total: int | None
    params_active: int | None
    confidence: str | None

    __pydantic_config__: ClassVar[Any] = _STRICT


@dataclass(frozen=True, kw_only=True)
class DeviceSummary:
    """The GPU: bytes as the driver reports them and as the vendor states them, bytes per second."""

    id: str
    name: str
    memory_bytes: int
    memory_nominal: int
    bandwidth_bytes_per_second: int

    __pydantic_config__: ClassVar[Any] = _STRICT


@dataclass(frozen=True, kw_only=True)
class Breakdown:
    """Where the bytes come from. `logical` and `allocated` are None without a context.

    `growth` is what every `growth_tokens` further tokens of one sequence add beyond all windows.
    """

    logical: Tree | None
    allocated: Tree | None
    constant: Tree
    growth: Tree
    growth_tokens: int

    __pydantic_config__: ClassVar[Any] = _STRICT


@dataclass(frozen=True, kw_only=True)
class Fit:
    """How much fits at one context length: requests, and tokens with the last request cut to what is left."""

    context: int
    requests: int
    tokens: int

    __pydantic_config__: ClassVar[Any] = _STRICT


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """What fits on one GPU (one rank). pool = util x memory - weights per rank; may be negative.

    Attributes:
        requests, tokens: at the request's context; None without one, then `by_context` has every length.
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

    __pydantic_config__: ClassVar[Any] = _STRICT


@dataclass(frozen=True, kw_only=True)
class GainRatio:
    """An exact ratio in lowest terms, with its value as a float for readers."""

    numerator: int
    denominator: int
    value: float

    __pydantic_config__: ClassVar[Any] = _STRICT


@dataclass(frozen=True, kw_only=True)
class FixedRequests:
    """The same requests in fewer bytes: allocated bytes in the native dtype and in the chosen formats."""

    before_bytes: int
    after_bytes: int
    ratio: GainRatio

    __pydantic_config__: ClassVar[Any] = _STRICT


@dataclass(frozen=True, kw_only=True)
class PreallocatedPool:
    """The same device memory holding more: an engine that reserves its pool shows no fall in memory."""

    pool_bytes: int
    requests_before: int
    requests_after: int
    tokens_before: int
    tokens_after: int

    __pydantic_config__: ClassVar[Any] = _STRICT


@dataclass(frozen=True, kw_only=True)
class Gain:
    """Both gains over the native dtype, kept apart."""

    before_formats: dict[str, str]
    fixed_requests: FixedRequests
    preallocated_pool: PreallocatedPool | None

    __pydantic_config__: ClassVar[Any] = _STRICT


@dataclass(frozen=True, kw_only=True)
class Limit:
    """One thing that must fit: bytes needed and bytes available on one GPU."""

    name: str
    needed_bytes: int
    available_bytes: int

    __pydantic_config__: ClassVar[Any] = _STRICT


@dataclass(frozen=True, kw_only=True)
class Change:
    """A change of one option with which the request fits."""

    option: str
    value: int

    __pydantic_config__: ClassVar[Any] = _STRICT


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Whether the request fits; not fitting is an answer, with reasons and the nearest changes that fit."""

    fits: bool
    limits: tuple[Limit, ...]
    reasons: tuple[str, ...]
    nearest_change: tuple[Change, ...]

    __pydantic_config__: ClassVar[Any] = _STRICT


class PlanFields(BaseModel):
    """The fields of a plan; `kvplan.plan.Plan` adds loading and its checks."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, defer_build=True)

    # `schema` alone would hide a method of pydantic's base class.
    schema_: Literal["kvplan.plan/1"] = Field(default="kvplan.plan/1", alias="schema")
    request: PlanRequest
    model: ModelSummary
    device: DeviceSummary | None
    kv: KvFigures | None
    ladder: tuple[KvFigures, ...]
    breakdown: Breakdown
    capacity: Capacity | None
    verdict: Verdict | None
    gain: Gain | None
    notes: tuple[str, ...]
    versions: dict[str, str]
