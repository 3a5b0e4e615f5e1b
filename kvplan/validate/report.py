"""The result of a validation: what ran, every check, errors, times, verdicts. Data only; no torch."""

from __future__ import annotations

from typing import Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

from kvplan.stored import StoredReport

NOT_MEASURED = "end-to-end throughput: not measured here"
CLIPPED_FLAG = 0.001
"""Share of clipped values from which a static format is flagged: its calibration no longer fits what it stores."""

PhaseName = Literal["decode", "prefill", "prefix", "append"]
PHASES: tuple[PhaseName, ...] = get_args(PhaseName)


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class ValidationRequest(_Data):
    """What was asked, every default filled in."""

    model: str
    """Spec id."""
    context: int
    """Tokens stored per request."""
    batch: int
    """Requests."""
    formats: tuple[str, ...]
    """Candidates, canonical spellings; each is used for K and V, or for the latent."""
    device: Literal["cuda", "cpu"]
    page_size: int
    seed: int
    dtype: str
    """Dtype of the original tensors and of the 16-bit baselines."""
    tensors_file: str | None = None
    """Capture file that format errors are measured on; null for the synthetic tensors."""
    phases: tuple[PhaseName, ...] = ("decode",)
    """What is run on each format's cache, in this order."""
    not_for_model: dict[str, str] = {}
    """Formats of `--kv all` that this model's geometry has no kernel for, with the reason."""
    tune: bool = True
    """Whether launch shapes may be searched on a GPU that the table of them was not measured on."""
    notes: tuple[str, ...] = ()
    """What was made smaller than usual, and why."""
    layer_group: str | None = None
    """The layer group that was asked for; null: the first that kernels read and that keeps all tokens."""


class DeviceInfo(_Data):
    """The machine the figures belong to."""

    name: str
    compute_capability: str | None = None
    memory_bytes: int | None = None
    """Total memory as the driver reports it."""
    num_sms: int | None = None
    versions: dict[str, str]
    """kvplan, python, torch, triton, cuda."""


class Spread(_Data):
    """One error over all rows (request, query head)."""

    mean: float
    p99: float
    worst_head: float
    """Largest mean over requests of any query head."""


class FormatError(_Data):
    """Error of the format against fp64 attention on the original tensors; nothing of it is the kernel's."""

    logit: Spread
    """Standard deviation over keys of the centred logit error."""
    softmax_tv: Spread
    """Total variation between the two softmax rows, 0 to 1."""
    output: Spread
    """Relative L2 error of the attention output."""
    output_all_rows: float
    """||o - ref|| / ||ref|| over all rows at once."""


class Check(_Data):
    """One yes-or-no proof, with the figures that decided it."""

    name: str
    passed: bool
    detail: str


class Roof(_Data):
    """The measured read roof of the device."""

    bytes_per_second: float
    method: str


class Times(_Data):
    """Seconds per decode step of one layer; all timed the same way in the same run."""

    fused_seconds: float
    unfused_seconds: float | None
    """Dequantise to HBM, then 16-bit attention; null for 16-bit formats."""
    bytes_read: int
    """The format's own bytes: codes and scales of the tokens in use."""
    bytes_per_second: float
    roof_share: float
    speedup: float
    """Best 16-bit path of this run divided by this format's fused time."""
    fusion_gain: float | None
    """Unfused time divided by fused time."""
    spread: float
    """(max - min) / median of the samples."""
    config: str


Status = Literal["ok", "failed", "error", "not run"]


LaunchSource = Literal["table", "generic", "searched", "kept"]


class LaunchShape(_Data):
    """Shape of a kernel's launch, and where it comes from."""

    shape: str
    """Tile, warps, stages and programs, in words."""
    source: LaunchSource
    """table: kvplan's own, measured on such a GPU; generic: the same, which was not measured on this one; searched: by
    this run; kept: by an earlier search, from the user's cache folder."""


class PathTime(_Data):
    """One way of doing the same work, timed."""

    name: str
    """fused, unfused, ...: the verdict of the phase puts them side by side."""
    seconds: float
    spread: float
    """(max - min) / median of the samples."""


class PathError(_Data):
    """Error of one way of computing the same attention."""

    name: str
    kernel: float
    """||o - ref|| / ||ref|| against fp64 that rounds where this path rounds."""
    output: float
    """||o - ref|| / ||ref|| against fp64 on the original tensors: format and arithmetic together."""


class PhaseResult(_Data):
    """One phase of one format: what ran, whether it was right, what it cost. Every phase has this shape."""

    name: PhaseName
    """Which phase."""
    status: Status
    """ok: all checks green; failed: a check is red (then there are no times); error: it could not run; not run: the
    device was lost before."""
    error: str | None = None
    """Why it could not run, one line."""
    checks: tuple[Check, ...] = ()
    """Of this phase's kernel at the validated shape."""
    kernel_error: float | None = None
    """||o - ref|| / ||ref|| of the kernel against fp64 on what the cache holds; null where a phase computes no
    attention."""
    kernel_max_ratio: float | None = None
    """max |o - ref| / max |ref| of the same."""
    paths: tuple[PathTime, ...] = ()
    """Seconds for one layer, the phase's own path first."""
    launch: LaunchShape | None = None
    """Of the decode kernel that was checked and timed; null in other phases, and in reports of before."""
    path_errors: tuple[PathError, ...] = ()
    """Where a format may be computed in more than one number type."""
    verdict: str = ""
    """One sentence about this phase only."""

    def seconds(self, path: str) -> float | None:
        """Time of one of the paths."""
        return next((p.seconds for p in self.paths if p.name == path), None)


class Clipping(_Data):
    """Values of K or V outside the calibrated range, per KV head of the layer that runs."""

    per_head: tuple[float, ...]
    """Share of each KV head's values."""
    mean: float
    """Share of all values."""
    max: float
    """The worst head's share."""


class Drift(_Data):
    """A static format fed with rows whose amplitude doubles after the calibrated half."""

    clipped: dict[str, Clipping]
    """k, v: of the rows after the calibrated half."""
    output_error: float
    """||o - ref|| / ||ref|| against fp64 on the originals, with the drift."""
    output_error_without: float
    """The same rows and scales, amplitude unchanged."""
    flagged: bool
    """A head clips more than 0.1% of its values."""


class FormatResult(_Data):
    """One format: its cache proved, its phases run."""

    format: str
    status: Status
    """ok: all checks green; failed: a check is red; error: the cache or a phase could not run; not run: the device was
    lost before."""
    error: str | None = None
    checks: tuple[Check, ...] = ()
    """Of the cache: codes, bytes, scales and codes obeyed."""
    phases: tuple[PhaseResult, ...] = ()
    cache_bytes: int | None = None
    """layers x bytes of the tensors' storages."""
    planned_bytes: int | None = None
    """The plan's allocated + constant bytes."""
    kernel_error: float | None = None
    """||o - ref|| / ||ref|| of decode attention against fp64 on the dequantised codes."""
    kernel_max_ratio: float | None = None
    """max |o - ref| / max |ref| of the same."""
    format_error: dict[str, FormatError] = {}
    """k_only, v_only, both."""
    clipped_fraction: dict[str, float] = {}
    """Share of K and V values outside the static scales' range; calibrated on the first request."""
    clipping: dict[str, Clipping] = {}
    """The same per KV head."""
    drift: Drift | None = None
    """Static formats only."""
    times: Times | None = None
    """Decode in terms of the read roof."""
    capacity_gain: float | None = None
    """16-bit allocated bytes divided by this format's."""
    verdicts: tuple[str, ...] = ()
    """Capacity, one sentence per phase, end-to-end throughput: never mixed."""


class Baselines(_Data):
    """The 16-bit paths of this run, seconds per decode step of one layer."""

    kernel_seconds: float | None = None
    torch_sdpa_seconds: float | None = None
    best_seconds: float | None = None
    best: str | None = None


class ValidationReport(StoredReport):
    """Everything one `kvplan validate` found; written after every finished format."""

    schema_: Literal["kvplan.validation/1"] = Field(default="kvplan.validation/1", alias="schema")
    command: str
    created: str
    request: ValidationRequest
    device: DeviceInfo
    tensors: str
    """What the tensors are and what may be concluded from them."""
    layer_group: str
    layers: int
    roof: Roof | None = None
    baselines: Baselines = Baselines()
    results: tuple[FormatResult, ...] = ()
    complete: bool = False
    """False while formats are still to come, or the run was interrupted, or the device was lost."""
    notes: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return self.complete and all(r.status == "ok" for r in self.results)
