"""Files of other commands as evidence for a recommendation: quality reports, predictions, captures, validations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from kvplan.errors import InputError
from kvplan.recommend.evidence import MEASURED, PREDICTED, Body
from kvplan.recommend.latency import Measured

_HINT = "give what kvplan quality --out (also with --predict) wrote"


def from_report(path: Path, model: str) -> Body:
    """A quality report, or a prediction, of this model.

    Raises:
        InputError: it cannot be read, is something else, or is of another model.
    """
    data = _json(path, _HINT)
    schema = data.get("schema")
    if schema == "kvplan.quality/1":
        return _measured(path, data, model)
    if schema == "kvplan.prediction/1":
        return _predicted(path, data, model)
    raise InputError(f"{path} is no evidence of quality: its schema is {schema!r}", _HINT)


def from_tensors(path: Path, model: str) -> Body:
    """The predictor run on a capture of this model, for every format of the search space. Needs torch.

    Raises:
        InputError: no capture, or one of another model.
    """
    import torch

    from kvplan.captured import read_capture
    from kvplan.errors import UnsupportedError, UsageError
    from kvplan.formats.grammar import parse_any
    from kvplan.quality.law import KL_OF_K, KL_OF_V
    from kvplan.quality.tensors import TensorErrors
    from kvplan.recommend.space import K_FORMATS, LOW_K, LOW_V, V_FORMATS

    file = read_capture(path)
    _same_model(path, file.model, model)
    if file.is_latent:
        raise InputError(f"{path} holds latents, on which the law was not fitted", "compare the engine's answers")
    errors, parts = TensorErrors(file), {}
    with torch.inference_mode():
        for role, formats, factor in (("k", (*K_FORMATS, *LOW_K), KL_OF_K), ("v", (*V_FORMATS, *LOW_V), KL_OF_V)):
            for spelling in (parse_any(f).spelling for f in formats):
                try:
                    parts[role, spelling] = factor * errors.error(role, spelling) ** 2
                except (UsageError, UnsupportedError):
                    # The planner refuses it too: it does not fit these heads.
                    continue
        rows = errors.by_layer("k", "int4:group/32,asym").square().mean((1, 2)).tolist()
    layers = {x.layer: share / sum(rows) for x, share in zip(file.layers, rows, strict=True)}
    return Body(PREDICTED, f"captured tensors of {file.source}", parts, layers=layers)


def measured_times(path: Path) -> Measured:
    """Decode times of a validation report.

    Raises:
        InputError: it cannot be read, or has no times.
    """
    from kvplan.validate.report import ValidationReport

    try:
        report = ValidationReport.model_validate(_json(path, "give what kvplan validate --out wrote"))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise InputError(
            f"{path} is no validation: {where}: {first['msg']}", "give a report of kvplan validate"
        ) from None
    return times_of(report, path.name)


def times_of(report: Any, source: str) -> Measured:
    """Seconds of one decode step over all layers of the validated group, by formats; red and failed ones have none."""
    found: dict[tuple[str, ...], float] = {}
    for result in report.results:
        if result.status == "ok" and result.times:
            found[formats_of(result.format)] = report.layers * result.times.fused_seconds
    r = report.request
    where = f"{source}, {report.device.name}, {r.batch} x {r.context:,} tokens"
    return Measured(where, found, r.model, report.device.name, r.context, r.batch)


def formats_of(text: str) -> tuple[str, ...]:
    """(K, V) of a validated format, or (latent,) of a record of latents."""
    from kvplan.formats.ds_mla import RECORDS
    from kvplan.formats.grammar import Pair, parse_any, parse_kv

    k, apart, v = text.partition(" / ")
    if apart:
        return parse_any(k).spelling, parse_any(v).spelling
    if text in RECORDS:
        return (text,)
    both = parse_kv(text)
    return (both.k.spelling, both.v.spelling) if isinstance(both, Pair) else (both.spelling, both.spelling)


def _measured(path: Path, data: dict[str, Any], model: str) -> Body:
    from kvplan.quality.report import QualityReport

    try:
        report = QualityReport.model_validate(data)
    except ValidationError as error:
        raise _broken(path, error) from None
    _same_model(path, report.request.model, model)
    from kvplan.memory.groups import roles
    from kvplan.specs.load import load_model

    latent = "k" not in roles(load_model(model))
    parts: dict[tuple[str, str], float] = {}
    pairs: dict[tuple[str, str], tuple[float, float | None]] = {}
    for f in report.formats:
        for role, spelling, part in (("k", f.k, f.k_only), ("v", f.v, f.v_only)):
            if part is not None:
                parts.setdefault((role, spelling), part.kl_mean)
        if latent:
            parts["latent", f.k] = f.kl_mean
        else:
            pairs[f.k, f.v] = (f.kl_mean, f.top1)
    text = report.request.text
    return Body(MEASURED, f"{path.name}: {text.tokens:,} tokens of {text.name}", parts, pairs)


def _predicted(path: Path, data: dict[str, Any], model: str) -> Body:
    from kvplan.quality.law import KL_OF_K, KL_OF_V, PredictionReport

    try:
        report = PredictionReport.model_validate(data)
    except ValidationError as error:
        raise _broken(path, error) from None
    _same_model(path, report.model, model)
    if not any(f.evidence == PREDICTED for f in report.formats):
        raise InputError(
            f"{path} predicts from tensors of another model", "capture this model's own: kvplan capture, then --tensors"
        )
    parts: dict[tuple[str, str], float] = {}
    for f in report.formats:
        for role, spelling, off, factor in (("k", f.k, f.error_k, KL_OF_K), ("v", f.v, f.error_v, KL_OF_V)):
            if off is not None:
                parts[role, spelling] = factor * off**2
    return Body(PREDICTED, f"{path.name}: {report.tensors}", parts)


def _same_model(path: Path, found: str, model: str) -> None:
    """Names of folders and files stand for models: the last part, in any case, of id or Hugging Face id."""
    from kvplan.specs.load import load_model

    spec = load_model(model)
    names = {spec.id, model, *spec.hf_ids}
    if _tail(found) not in {_tail(name) for name in names}:
        raise InputError(f"{path} is of {found}, not of {spec.id}", "measure or capture this model")


def _tail(name: str) -> str:
    return Path(name).name.removesuffix(".gguf").lower()


def _broken(path: Path, error: ValidationError) -> InputError:
    first = error.errors()[0]
    return InputError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}", _HINT)


def _json(path: Path, hint: str) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}", hint) from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is no JSON: {error}", hint) from None
    if not isinstance(data, dict):
        raise InputError(f"{path} is no report", hint)
    return data
