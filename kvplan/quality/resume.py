"""Going on with a report: figures of the same model, text and arithmetic are not measured again. No torch."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from kvplan.errors import InputError
from kvplan.quality.report import FormatQuality, QualityReport, QualityRequest
from kvplan.quality.request import is_calibrated

SAME = ("model", "text", "compute", "device", "probes", "tasks_sha256")
AGAIN = "leave --resume out to start again"


def read_previous(path: Path | None) -> QualityReport | None:
    """The report that --out has written so far; None where nothing has been.

    Raises:
        InputError: another file, or no file named.
    """
    if path is None:
        raise InputError("--resume goes on with the file of --out", "give --out FILE")
    if not path.exists():
        return None
    try:
        return QualityReport.model_validate_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}", AGAIN) from None
    except (ValidationError, UnicodeDecodeError):
        raise InputError(f"{path} is no quality report of this version", AGAIN) from None


def usable(
    previous: QualityReport, request: QualityRequest, weights_sha256: str | None, versions: dict[str, str]
) -> tuple[FormatQuality, ...]:
    """Formats of an earlier report that stand as they are; calibrated ones only if the calibration is the same.

    Raises:
        InputError: naming everything that differs.
    """
    pairs = [(name, getattr(previous.request, name), getattr(request, name)) for name in SAME]
    pairs.append(("weights", previous.weights_sha256, weights_sha256))
    names = ("torch", "transformers")
    pairs += [(f"version of {name}", previous.versions.get(name), versions.get(name)) for name in names]
    different = [name for name, a, b in pairs if a != b]
    if different:
        raise InputError(f"cannot resume: other {', '.join(different)}", f"repeat the first command, or {AGAIN}")
    same = previous.request.calibration == request.calibration
    return tuple(f for f in previous.formats if same or not (is_calibrated(f.k) or is_calibrated(f.v)))
