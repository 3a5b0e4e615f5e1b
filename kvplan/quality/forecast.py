"""`kvplan quality --predict`: KL of formats in seconds, from captured tensors; measured figures come first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from operator import add
from pathlib import Path

from kvplan.captured import SHIPPED, read_capture
from kvplan.errors import InputError, UsageError
from kvplan.formats.grammar import PLAIN
from kvplan.loss import PARTS_FACTOR, together
from kvplan.quality.calibrate import check_pair
from kvplan.quality.law import (
    OTHER_MODEL_FACTOR,
    STATISTICS_FACTOR,
    Prediction,
    PredictionReport,
    interval,
    kl_of_statistics,
)
from kvplan.quality.parts import Parts
from kvplan.quality.report import Candidate, QualityReport
from kvplan.quality.request import candidates, has_parts, unverified
from kvplan.quality.statistics import StatisticErrors
from kvplan.quality.tensors import TensorErrors

SAME_TEXT = "static scales come from the first half of the same tensors: another text clips more, by channel most"


@dataclass(frozen=True)
class Forecaster:
    """Predicts KL of K/V pairs for `model`; an error once computed is kept.

    Attributes:
        own: whether the tensors are those of `model`.
        report: measured figures of `model`, which come first.
    """

    model: str
    errors: TensorErrors
    statistics: StatisticErrors
    own: bool
    report: QualityReport | None

    @property
    def latent(self) -> bool:
        """Whether the tensors are MLA latents, which the law was not fitted on."""
        return self.errors.file.is_latent

    def predict(self, c: Candidate) -> Prediction:
        """Measured KL of the pair; else from K's and V's alone, each measured if it was, predicted from tensors if not.

        Raises:
            UsageError, UnsupportedError: a format that does not fit the tensors or has no codec.
        """
        import torch

        if self.latent and c.k != c.v:
            raise UsageError("K and V of a latent are one row, in one format", "give one format: --kv F")
        known = self.report.formats if self.report else ()
        whole = next((f.kl_mean for f in known if (f.k, f.v) == (c.k, c.v)), None)
        if whole is not None:
            return _as_measured(c, whole, 1.0)
        with torch.inference_mode():
            k, v = self.parts.of("k", c.k), self.parts.of("v", c.v)
            measured = [p.basis == "measured" for p in (k, v)]
            if all(measured):
                return _as_measured(c, together(k.kl, v.kl), PARTS_FACTOR if has_parts(c) else 1.0)
            statistics = kl_of_statistics(self.statistics.error("k", c.k), self.statistics.error("v", c.v))
            heads = _by_head(self.errors, c.k) if k.basis == "codec" else ()
        # The law from tensors was fitted as a sum.
        join = together if any(measured) else add
        least, most = interval(statistics, STATISTICS_FACTOR if self.parts.near else OTHER_MODEL_FACTOR)
        return Prediction(
            format=c.format,
            k=c.k,
            v=c.v,
            kl=join(k.kl, v.kl),
            low=join(k.kl / k.factor, v.kl / v.factor),
            high=join(k.kl * k.factor, v.kl * v.factor),
            error_k=k.error,
            error_v=v.error,
            kl_statistics=statistics,
            low_statistics=least,
            high_statistics=most,
            heads_k=heads,
            evidence="predicted from this model's tensors" if self.own else "from another model",
        )

    @cached_property
    def parts(self) -> Parts:
        """K and V alone."""
        return Parts(self.errors, self.statistics, self.own and not self.latent, self.report)


def _as_measured(c: Candidate, kl: float, factor: float) -> Prediction:
    low, high = interval(kl, factor)
    return Prediction(
        format=c.format,
        k=c.k,
        v=c.v,
        kl=kl,
        low=low,
        high=high,
        error_k=None,
        error_v=None,
        evidence="measured on this model",
    )


def forecaster(
    model: str, tensors: Path | None = None, measured: Path | None = None, calibration: Path | None = None
) -> Forecaster:
    """Reads the files: a capture (default: the one that ships), and a report of `kvplan quality` if there is one.

    Args:
        calibration: capture of the same layers on another text, for static scales.

    Raises:
        InputError: a file that is no capture or no report; a report of another model.
        NoDeviceError: safetensors is missing.
    """
    file = read_capture(tensors or SHIPPED)
    report = _report(measured, model)
    learn = read_capture(calibration) if calibration else None
    if learn is not None:
        check_pair(learn, file)
    own = file.model.lower() == _name(model)
    return Forecaster(model, TensorErrors(file, learn), StatisticErrors(file), own, report)


def expected(model: str, k: str, v: str, tensors: Path | None = None, measured: Path | None = None) -> Prediction:
    """KL of one K/V pair with its interval and kind of evidence; files are read once.

    Raises:
        what `forecaster` and `Forecaster.predict` raise.
    """
    return _kept(model, tensors, measured).predict(candidates((), k, v)[0])


_kept = lru_cache(maxsize=4)(forecaster)


def forecast(
    model: str,
    chosen: Sequence[Candidate],
    tensors: Path | None,
    measured: Path | None,
    command: str,
    calibration: Path | None = None,
) -> PredictionReport:
    """Predict every candidate for `model` from a capture file, the shipped one by default.

    Raises:
        what `forecaster` and `Forecaster.predict` raise.
    """
    made = forecaster(model, tensors, measured, calibration)
    file, report = made.errors.file, made.report
    rows = [made.predict(c) for c in chosen]
    notes = [SAME_TEXT] if calibration is None and any(r.error_k is not None for r in rows) else []
    predicted = [r for r in rows if r.kl_statistics is not None]
    bare = [
        r.format for r in predicted if "statistics" in (made.parts.of("k", r.k).basis, made.parts.of("v", r.v).basis)
    ]
    if bare:
        notes.append(f"{', '.join(bare)}: no codec, predicted from statistics of the tensors alone")
    if not made.own:
        notes.append(f"{file.model} is another model: the order of formats mostly carries over, the size does not")
    if made.latent:
        notes.append("latents: the law was fitted on K and V, so the order of formats is likely, the size is not")
    probed = {(f.k, f.v) for f in report.formats} if report and report.request.probes else ()
    notes += unverified(chosen, probed)
    return PredictionReport(
        command=command,
        model=model,
        tensors=file.source,
        layers=tuple(x.layer for x in file.layers),
        measured=report.weights_sha256 if report else None,
        formats=tuple(rows),
        notes=tuple(notes),
    )


def _by_head(errors: TensorErrors, spelling: str) -> tuple[tuple[float, ...], ...]:
    """Root mean square over queries; none for 16 and 32 bit."""
    if spelling in PLAIN:
        return ()
    rows = errors.by_layer("k", spelling).square().mean(-1).sqrt().tolist()
    return tuple(tuple(round(x, 6) for x in row) for row in rows)


def _report(path: Path | None, model: str) -> QualityReport | None:
    if path is None:
        return None
    from kvplan.quality.resume import read_previous

    report = read_previous(path)
    if report is None:
        raise InputError(f"{path} does not exist", "give the file that kvplan quality --out wrote")
    if report.request.model.lower() != _name(model):
        raise InputError(f"{path} is of {report.request.model}, not of {model}", "measure this model")
    return report


def _name(model: str) -> str:
    """A model's name as reports and captures have it: the folder's, or the GGUF file's without its ending."""
    return Path(model).resolve().name.removesuffix(".gguf").lower()
