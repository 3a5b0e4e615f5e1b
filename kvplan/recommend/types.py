"""The recommendation: what `kvplan recommend --json` prints."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from kvplan.plan.types import DeviceSummary, ModelSummary
from kvplan.recommend.evidence import Kind

Level = Literal["strict", "balanced", "capacity"]


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, populate_by_name=True)


class RecommendRequest(_Data):
    """What is asked; every default is filled in."""

    model: str
    """Id of a shipped spec, Hugging Face id, or path of a spec file."""
    gpu: str
    """Id of a shipped device or path of a device file."""
    gpus: int = 1
    """GPUs of the whole deployment: every layout of them that the model allows is compared."""
    context: int | None = None
    """Tokens of every request; without it the model's maximum, which a note says."""
    concurrency: int = 1
    """Requests held at once."""
    tp: int | None = None
    """Tensor-parallel ranks; None: every legal number."""
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
    quality: Level | None = None
    """strict: at most twice what computing in bf16 changes; balanced: what fp8 costs; capacity: most requests within
    what 4 bits cost. Without a bound of your own: balanced."""
    max_kl: float | None = None
    """Largest mean KL in nats per token, instead of a level."""
    min_top1: float | None = None
    """Least share of equal top tokens, 0 to 1, instead of a level."""
    slo_itl_ms: float | None = None
    """Longest time between two tokens of a request, in milliseconds."""


class Layout(_Data):
    """A layout of GPUs."""

    tp: int
    dp: int
    dcp: int = 1
    dp_attention: bool = False


class QualityResult(_Data):
    """Evidence of quality."""

    kl: float
    """Mean KL in nats per token."""
    low: float
    high: float
    """Where KL may lie, by the kind of evidence."""
    top1: float
    """Share of equal top tokens."""
    evidence: Kind
    source: str
    """What it was measured or predicted on."""


class CapacityResult(_Data):
    """The first result: what fits. Nothing here is a speed."""

    allocated_bytes: int
    """Cache of the wanted requests on the fullest rank, constant scales included."""
    requests: int
    """Requests of this context that fit, of all replicas."""
    tokens: int
    """Tokens that fit, of all replicas."""
    gain: float
    """Bytes of the model's own dtype in the same layout divided by these."""


class LatencyResult(_Data):
    """The second result: decode attention of one step, all layers of a rank. Not a whole step."""

    seconds: float | None
    """None: not predicted, see `basis`."""
    basis: str
    """`measured`, `predicted` by kvplan's own kernels' time model, or why it is not predicted."""
    gain: float | None
    """Time of the model's own dtype in the same layout divided by this."""


class StepResult(_Data):
    """The third result: a whole decode step and throughput, only where the rest of the step has a model."""

    floor_seconds: float
    """No step is shorter: weights and cache read once at the GPU's read roof."""
    seconds: tuple[float, float] | None
    """A range; None: not estimated."""
    tokens_per_second: tuple[float, float] | None
    """Of all requests together."""
    basis: str
    """How the range comes about, or why there is none."""


class Candidate(_Data):
    """One choice; byte figures are of the fullest rank."""

    k: str | None
    v: str | None
    latent: str | None
    layers: tuple[str, ...]
    """Layers in another format, as --layers takes them."""
    page_size: int | None
    layout: Layout
    engine_formats: dict[str, str]
    """The engine's own option by tensor role; empty without an engine."""
    support: str
    """Where it runs: a ready flag of an engine, another tool, or kvplan's research kernels only."""
    fits: bool
    """Whether the wanted concurrency fits."""
    capacity: CapacityResult
    attention: LatencyResult
    step: StepResult
    quality: QualityResult | None
    """None: nothing is known."""
    obstacles: tuple[str, ...]
    """Bounds of the request that it breaks; empty: it may be recommended."""
    pareto: bool
    """No other choice holds as many tokens, reads as fast and is as good, and is better in one of them."""

    @property
    def k_v(self) -> tuple[object, ...]:
        return self.k, self.v, self.latent, self.layers


class Choice(_Data):
    """A candidate that is put forward, with the reason and the way to use it."""

    candidate: Candidate
    reason: str
    launch: str | None
    """The command that starts the engine with it; None without an engine, or where it has no option for it."""
    config: str
    """YAML of the configuration: `kvplan estimate`, `validate` and `check` take it as a file."""


class Relaxation(_Data):
    """One bound that, changed so far, makes the request possible."""

    option: str
    asked: str
    needed: str
    text: str


class Recommendation(_Data):
    """The answer: one choice or what to relax, the runner-up, and what was considered."""

    schema_: Literal["kvplan.recommendation/1"] = Field(default="kvplan.recommendation/1", alias="schema")
    request: RecommendRequest
    model: ModelSummary
    device: DeviceSummary
    bounds: str
    """The bounds in words."""
    recommended: Choice | None
    """None: nothing meets every bound; see `relax`."""
    runner_up: Choice | None
    """The next best, with why it lost; where nothing is recommended, the nearest."""
    relax: tuple[Relaxation, ...]
    """Where nothing meets every bound: which one to relax, and by how much."""
    changes: tuple[str, ...]
    """What would change the answer."""
    warnings: tuple[str, ...]
    """Effects that a single number hides."""
    candidates: tuple[Candidate, ...]
    """The Pareto set and every choice with one format."""
    refused: dict[str, str]
    """Formats of the engine that this model, version or GPU cannot use, with the reason."""
    searched: int
    """Choices that were computed."""
    notes: tuple[str, ...]
    versions: dict[str, str]

    def to_json(self) -> str:
        return self.model_dump_json(by_alias=True)


class FleetRow(_Data):
    """One GPU type of a fleet."""

    gpu: str
    requests: int
    """Requests that the recommended (or nearest) choice holds on `gpus` of them."""
    requests_per_gpu: float
    price_per_hour: float | None
    """As the user gave it, per GPU."""
    requests_per_price: float | None
    recommendation: Recommendation


class Fleet(_Data):
    """The same question for several GPU types, most requests per GPU first (per price where every price is given)."""

    schema_: Literal["kvplan.fleet/1"] = Field(default="kvplan.fleet/1", alias="schema")
    rows: tuple[FleetRow, ...]
    ranked_by: str
    notes: tuple[str, ...]

    def to_json(self) -> str:
        return self.model_dump_json(by_alias=True)
