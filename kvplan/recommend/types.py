"""The recommendation object: what `kvplan recommend --json` prints."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from kvplan.plan.types import DeviceSummary, ModelSummary


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, populate_by_name=True)


class RecommendRequest(_Data):
    """What is asked; every default is filled in."""

    model: str
    """Id of a shipped spec, Hugging Face id, or path of a spec file."""
    gpu: str
    """Id of a shipped device or path of a device file."""
    context: int | None = None
    """Tokens of every request; without it the model's maximum, which a note says."""
    concurrency: int = 1
    """Requests held at once."""
    tp: int = 1
    """Tensor-parallel ranks."""
    util: float | None = None
    """Share of the GPU's memory that weights and cache may fill; default 0.9, or what the engine takes."""
    weights_dtype: str | None = None
    """Number type of the weights: fp32 bf16 fp16 fp8 int8 int4, or `published` for the spec's own byte count."""
    engine: str | None = None
    """Inference engine; only its own formats are considered, sized by its rules."""
    engine_version: str | None = None
    """Version of the engine; default the newest that kvplan has rules for."""
    engine_options: tuple[str, ...] = ()
    """Settings of the engine that change cache bytes, as NAME=VALUE."""


class Candidate(_Data):
    """One choice of formats; every figure is of one rank."""

    k: str | None
    v: str | None
    latent: str | None
    engine_formats: dict[str, str]
    """The engine's own option by tensor role; empty without an engine."""
    launch: str | None
    """The command that starts the engine with it; None without an engine."""
    allocated_bytes: int
    """Cache of all requests, constant scales included."""
    requests: int
    """Requests of this context that fit."""
    fits: bool
    """Whether the wanted concurrency fits."""
    capacity_gain: float
    """Native allocated bytes divided by this candidate's."""
    predicted_attention_seconds: float | None
    """Predicted, not measured: decode attention of one step, all layers; None where no kernel was timed."""
    kl: float | None
    """Evidence of quality, see quality_basis; None: not established."""
    ranked: bool
    """Whether it may be recommended: 16 or 8 bit, with evidence of its quality and a kernel that has been timed."""
    pareto: bool
    """Ranked, and no other ranked candidate is as good in bytes, predicted time and quality and better in one."""
    reason: str


class Choice(_Data):
    """The recommended formats, or None for a tensor that the model does not have."""

    k: str | None
    v: str | None
    latent: str | None
    engine_formats: dict[str, str]
    """The engine's own option by tensor role; empty without an engine."""
    launch: str | None
    """The command that starts the engine with it; None without an engine."""
    reason: str


class Recommendation(_Data):
    """The answer: one choice, the runner-up, and everything that was considered."""

    schema_: Literal["kvplan.recommendation/1"] = Field(default="kvplan.recommendation/1", alias="schema")
    request: RecommendRequest
    model: ModelSummary
    device: DeviceSummary
    recommended: Choice
    runner_up: Choice | None
    candidates: tuple[Candidate, ...]
    quality_basis: str
    notes: tuple[str, ...]
    versions: dict[str, str]

    def to_json(self) -> str:
        return self.model_dump_json(by_alias=True)
