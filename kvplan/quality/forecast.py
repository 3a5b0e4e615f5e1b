"""`kvplan quality --predict`: KL of formats in seconds, from captured tensors; measured figures come first."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kvplan.captured import SHIPPED, read_capture
from kvplan.errors import InputError
from kvplan.formats.grammar import PLAIN
from kvplan.quality.calibrate import check_pair
from kvplan.quality.law import FACTOR, Evidence, Prediction, PredictionReport, kl_of, kl_of_statistics
from kvplan.quality.predict import predicted_kl
from kvplan.quality.report import Candidate, QualityReport
from kvplan.quality.statistics import StatisticErrors
from kvplan.quality.tensors import TensorErrors

SAME_TEXT = "static scales come from the first half of the same tensors: another text clips more, by channel most"


def forecast(
    model: str,
    chosen: Sequence[Candidate],
    tensors: Path | None,
    measured: Path | None,
    command: str,
    calibration: Path | None = None,
) -> PredictionReport:
    """Predict every candidate for `model` from a capture file, the shipped one by default.

    Args:
        calibration: capture of the same layers on another text, for static scales.

    Raises:
        InputError: a file that is no capture or no report; a report of another model.
        UsageError, UnsupportedError: a format that does not fit the tensors or has no codec.
    """
    import torch

    file = read_capture(tensors or SHIPPED)
    report = _report(measured, model)
    own = file.model.lower() == _name(model)
    learn = read_capture(calibration) if calibration else None
    if learn is not None:
        check_pair(learn, file)
    errors, statistics = TensorErrors(file, learn), StatisticErrors(file)
    with torch.inference_mode():
        rows = [_predict(c, errors, statistics, report, own) for c in chosen]
    notes = [SAME_TEXT] if learn is None and any(r.error_k is not None for r in rows) else []
    if not own:
        notes.append(f"{file.model} is another model: the order of formats mostly carries over, the size does not")
    return PredictionReport(
        command=command,
        model=model,
        tensors=file.source,
        layers=tuple(x.layer for x in file.layers),
        measured=report.weights_sha256 if report else None,
        formats=tuple(rows),
        notes=tuple(notes),
    )


def _predict(
    c: Candidate, errors: TensorErrors, statistics: StatisticErrors, report: QualityReport | None, own: bool
) -> Prediction:
    if report is not None:
        whole = next((f.kl_mean for f in report.formats if (f.k, f.v) == (c.k, c.v)), None)
        kl = predicted_kl(report, c.k, c.v) if whole is None else whole
        if kl is not None:
            return Prediction(
                format=c.format,
                k=c.k,
                v=c.v,
                kl=kl,
                low=kl,
                high=kl,
                error_k=None,
                error_v=None,
                evidence="measured on this model",
            )
    error_k, error_v = errors.error("k", c.k), errors.error("v", c.v)
    kl = kl_of(error_k, error_v)
    kind: Evidence = "predicted from this model's tensors" if own else "from another model"
    return Prediction(
        format=c.format,
        k=c.k,
        v=c.v,
        kl=kl,
        low=kl / FACTOR,
        high=kl * FACTOR,
        error_k=error_k,
        error_v=error_v,
        kl_statistics=kl_of_statistics(statistics.error("k", c.k), statistics.error("v", c.v)),
        heads_k=_by_head(errors, c.k),
        evidence=kind,
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
