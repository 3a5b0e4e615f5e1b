"""`kvplan quality --predict`: KL of formats in seconds, from captured tensors; measured figures come first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from kvplan.captured import SHIPPED, read_capture
from kvplan.errors import InputError, UnsupportedError, UsageError
from kvplan.formats.grammar import PLAIN
from kvplan.quality.calibrate import check_pair
from kvplan.quality.law import (
    FACTOR,
    OTHER_MODEL_FACTOR,
    STATISTICS_FACTOR,
    Evidence,
    Prediction,
    PredictionReport,
    interval,
    kl_of,
    kl_of_statistics,
)
from kvplan.quality.predict import predicted_kl
from kvplan.quality.report import Candidate, QualityReport
from kvplan.quality.request import candidates, unverified
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
        """Measured KL of the pair or the sum of its measured parts; else the law on captured tensors.

        Raises:
            UsageError, UnsupportedError: a format that does not fit the tensors or has no codec.
        """
        import torch

        if self.latent and c.k != c.v:
            raise UsageError("K and V of a latent are one row, in one format", "give one format: --kv F")
        kl = self._measured(c)
        if kl is not None:
            kind: Evidence = "measured on this model"
            return Prediction(
                format=c.format, k=c.k, v=c.v, kl=kl, low=kl, high=kl, error_k=None, error_v=None, evidence=kind
            )
        near = self.own and not self.latent
        errors: tuple[float, float] | None = None
        with torch.inference_mode():
            alone = kl_of_statistics(self.statistics.error("k", c.k), self.statistics.error("v", c.v))
            least, most = interval(alone, STATISTICS_FACTOR if near else OTHER_MODEL_FACTOR)
            try:
                found = self.errors.error("k", c.k), self.errors.error("v", c.v)
            except UnsupportedError:
                # No codec: statistics are all there is.
                kl, low, high = alone, least, most
            else:
                kl, errors = kl_of(*found), found
                low, high = interval(kl, FACTOR if near else OTHER_MODEL_FACTOR)
        return Prediction(
            format=c.format,
            k=c.k,
            v=c.v,
            kl=kl,
            low=low,
            high=high,
            error_k=errors and errors[0],
            error_v=errors and errors[1],
            kl_statistics=alone,
            low_statistics=least,
            high_statistics=most,
            heads_k=_by_head(self.errors, c.k) if errors else (),
            evidence="predicted from this model's tensors" if self.own else "from another model",
        )

    def _measured(self, c: Candidate) -> float | None:
        if self.report is None:
            return None
        whole = next((f.kl_mean for f in self.report.formats if (f.k, f.v) == (c.k, c.v)), None)
        return predicted_kl(self.report, c.k, c.v) if whole is None else whole


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
    bare = [r.format for r in rows if r.error_k is None and r.kl_statistics is not None]
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
