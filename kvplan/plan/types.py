"""The plan object and its parts: what `kvplan estimate --json` prints and `Plan.load` reads back.

`PlanRequest` and `Plan` are pydantic; their parts are plain dataclasses, which start faster and which pydantic checks
all the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from kvplan.engines.shared.launch import Launch
from kvplan.memory.figures import KvFigures
from kvplan.memory.parts import EngineFigure
from kvplan.plan.answers import STRICT, Capacity, Gain, Tree, Verdict


class PlanRequest(BaseModel):
    """What is asked; the field texts are also the help of the command line (see `kvplan.texts`).

    In a plan's echo every default is filled in, every format has its canonical spelling, and the format of a tensor
    that the model does not have is None.
    """

    # Building the checks and reading the texts takes longer than a plan, so both wait until they are needed.
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

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
    layers: tuple[str, ...] = ()
    """Formats of single layers, such as first=2:bf16, last=2:bf16, 0-1,30-31:bf16 or k@5:bf16; of several that name a
    layer the last wins."""
    mtp: bool = False
    """Also charge the multi-token prediction layers, which hold a cache only with speculative decoding."""
    page_size: int | None = None
    """Tokens per page; default the least multiple of 128 that the layouts allow, or what the engine takes."""
    engine: str | None = None
    """Inference engine whose allocation to compute (see `kvplan engines`); without it, kvplan's own allocator."""
    engine_version: str | None = None
    """Version of the engine; default the newest that kvplan has rules for."""
    engine_options: tuple[str, ...] = ()
    """A setting of the engine that changes cache bytes, as NAME=VALUE; `kvplan engines NAME` lists them."""
    tp: int = 1
    """Tensor-parallel ranks; every figure is of one of them."""
    pp: int = 1
    """Pipeline stages; every figure is of the stage that holds most cache."""
    dp: int | None = None
    """Replicas, each with its share of the batch, rounded up; default 1, or tp with --dp-attention."""
    dcp: int = 1
    """Decode context parallel: ranks that share the rows of growing caches in turn instead of holding copies."""
    pcp: int = 1
    """Prefill context parallel: this many times the GPUs, each with a copy of the cache unless dcp spans them."""
    dp_attention: bool = False
    """Attention replicas inside the tensor-parallel group: requests are split over them, not heads or latents."""
    gpu: str | None = None
    """Id of a shipped device or path of a device file."""
    gpu_memory: int | None = None
    """Memory of a GPU without a name, such as 24GiB."""
    bandwidth: int | None = None
    """Memory bandwidth of a GPU without a name, such as 936GB/s."""
    util: float | None = None
    """Share of the GPU's memory that weights and cache may fill; default 0.9, or what the engine takes."""
    weights_dtype: str | None = None
    """Number type of the weights: fp32 bf16 fp16 fp8 int8 int4, or `published` for the spec's own byte count."""
    beyond_max: bool = False
    """Allow a context above the model's maximum."""
    lengths: str | None = None
    """Lengths of requests: quantiles such as p50=2k,p95=16k, or a CSV or JSONL trace."""
    shared_prefix: int | None = None
    """Tokens at the start that all requests have in common, held once where the engine shares them."""
    samples: int = 1
    """Sequences sampled for each request."""
    draft: str | None = None
    """Draft model for speculative decoding: its weights and cache are charged too."""
    calibration: str | None = None
    """File written by kvplan reconcile --save: measured memory beside weights and cache, instead of estimates."""


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

    __pydantic_config__: ClassVar[Any] = STRICT


@dataclass(frozen=True, kw_only=True)
class DeviceSummary:
    """The GPU: bytes as the driver reports them and as the vendor states them, bytes per second."""

    id: str
    name: str
    memory_bytes: int
    memory_nominal: int
    bandwidth_bytes_per_second: int

    __pydantic_config__: ClassVar[Any] = STRICT


@dataclass(frozen=True, kw_only=True)
class StageSummary:
    """One pipeline stage: its layers, and what a rank of it holds (allocated + constant bytes).

    Without a context the bytes are those at the model's maximum.
    """

    stage: int
    first_layer: int
    last_layer: int
    held_bytes: int

    __pydantic_config__: ClassVar[Any] = STRICT


@dataclass(frozen=True, kw_only=True)
class ShardingSummary:
    """The layout of GPUs: how many it takes, replicas, sequences of the fullest replica, and the stages.

    `stage` counts from 1 and is the one that all figures are of: it holds most, the first of several.
    """

    gpus: int
    replicas: int
    sequences: int
    stage: int
    stages: tuple[StageSummary, ...]

    __pydantic_config__: ClassVar[Any] = STRICT


@dataclass(frozen=True, kw_only=True)
class EngineSummary:
    """The engine whose allocation the figures are.

    Attributes:
        formats: the engine's own option by tensor role.
        options: every option of the engine that changes bytes; None: worked out from model and GPU.
        page_size: tokens per page of growing caches; None in an engine without pages.
        figures: what the engine itself would report, such as its number of blocks.
        launch: the command that starts it like this; None where kvplan writes none.
    """

    name: str
    title: str
    version: str
    formats: dict[str, str]
    options: dict[str, int | float | bool | str | None]
    page_size: int | None
    figures: tuple[EngineFigure, ...]
    launch: Launch | None = None

    __pydantic_config__: ClassVar[Any] = STRICT


@dataclass(frozen=True, kw_only=True)
class Breakdown:
    """Where the bytes come from. All trees but `constant` and `growth` are None without a context.

    `reserved`, `saves` and `padding` name the difference between logical and allocated bytes; the last holds only the
    pieces that have a name. `growth` is what every `growth_tokens` further tokens of a sequence add beyond windows.
    `prefix_scratch` is in no other figure: memory of one sequence's prefill behind a quantised prefix, by kvplan's own
    kernels; None with an engine or unquantised rows.
    """

    logical: Tree | None
    allocated: Tree | None
    constant: Tree
    growth: Tree
    growth_tokens: int
    reserved: Tree | None = None
    saves: Tree | None = None
    padding: Tree | None = None
    prefix_scratch: Tree | None = None

    __pydantic_config__: ClassVar[Any] = STRICT


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
    sharding: ShardingSummary | None = None
    engine: EngineSummary | None = None
