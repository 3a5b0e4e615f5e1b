"""The result of `kvplan quality`: request, figures per format, what they may be used for. Data only; no torch."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from kvplan.stored import StoredReport

SCOPE = "this model on this text: sizes of KL do not carry over to other models, the order of formats mostly does"


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class TextInfo(_Data):
    """Which tokens were read. The text itself is not kept."""

    name: str
    """What the text is: a module that ships with Python, or the file's name."""
    sha256: str
    """Hash of the text as UTF-8."""
    first_token: int
    """Tokens of the text left out at its start."""
    tokens: int
    """Positions that were run."""


class Candidate(_Data):
    """One format of K and V, canonical spellings."""

    format: str
    """The spelling for both, or `K / V` where they differ."""
    k: str
    v: str


class QualityRequest(_Data):
    """What was asked, every default filled in."""

    model: str
    candidates: tuple[Candidate, ...]
    text: TextInfo
    calibration: TextInfo | None
    """Text that static scales are calibrated on; null when no candidate has any."""
    compute: Literal["fp32", "bf16"]
    """Dtype of the forward pass. In bf16 its own error exceeds that of 8-bit formats."""
    device: Literal["cpu", "cuda"]
    parts: bool
    """Whether K only and V only are run as well."""
    probes: int = 0
    """Longest needle of the built-in tasks; 0 without them."""
    tasks_sha256: str | None = None
    """Hash of the user's file of tasks."""


class Figures(_Data):
    """One run against the run with the untouched cache, over all positions."""

    kl_mean: float
    """Mean over positions of KL(untouched || this), nats.

    Two codecs of the same format, or two machines, agree within some 10%: a code that rounds the other way in one layer
    changes which codes do in the next.
    """
    kl_p99: float
    top1: float
    """Share of positions with the same most likely token, 0 to 1."""
    ppl: float
    """exp(mean negative log likelihood of the next token)."""
    ppl_error: float
    """One standard error of ppl minus the untouched ppl, positions paired: a smaller difference is noise."""


class Bucket(_Data):
    """The same figures for the positions start <= t < stop."""

    start: int
    stop: int
    kl_mean: float
    kl_p99: float
    top1: float


class TaskScore(_Data):
    """Tasks of one kind."""

    kind: str
    """`needle N` (a number in N tokens of text), `addition` (a chain of sums), `greedy` (the untouched model's own
    greedy text), or a kind of the user's file."""
    tasks: int
    """Tasks run: of a format, those that the untouched model gets right."""
    right: int
    """Tasks whose whole answer greedy decoding would give."""
    tokens_mean: float
    """Mean number of answer tokens before the first wrong one: with `greedy`, steps until the texts part."""


class FormatQuality(Figures):
    """One format: K and V together, each alone, and by position."""

    format: str
    k: str
    v: str
    exact_share: float
    """Mean share of the rows (K and V) that a query still sees unquantised: a window flatters short contexts."""
    clipped_fraction: dict[str, float] = {}
    """Share of K and V values outside the static scales' range."""
    k_only: Figures | None = None
    v_only: Figures | None = None
    buckets: tuple[Bucket, ...] = ()
    tasks: tuple[TaskScore, ...] = ()
    seconds: float
    """Wall time of the runs of this format."""


class Baseline(_Data):
    """The run with the untouched cache."""

    ppl: float
    noise: Figures
    """The same run through the model's usual attention: what the arithmetic alone changes."""
    tasks: tuple[TaskScore, ...] = ()


class QualityReport(StoredReport):
    """Everything one `kvplan quality` found; written after every finished format."""

    schema_: Literal["kvplan.quality/1"] = Field(default="kvplan.quality/1", alias="schema")
    command: str
    created: str
    request: QualityRequest
    weights_sha256: str | None
    """Hash of the weights file where it is one file."""
    layers: int
    """Layers whose attention saw the quantised cache."""
    versions: dict[str, str]
    scope: str = SCOPE
    baseline: Baseline
    formats: tuple[FormatQuality, ...] = ()
    complete: bool = False
    notes: tuple[str, ...] = ()
