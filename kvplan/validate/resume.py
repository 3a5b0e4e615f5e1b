"""Going on with a report that was interrupted: it must be of the same request, on the same device. No torch."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from kvplan.errors import InputError
from kvplan.validate.report import DeviceInfo, ValidationReport, ValidationRequest

AGAIN = "leave --resume out to start again"


def read_previous(path: Path) -> ValidationReport:
    """The unfinished report in a file.

    Raises:
        InputError: there is none, or nothing is left to do.
    """
    report = read_report(path)
    if report.complete:
        raise InputError(f"{path} is complete, nothing is left to run", f"kvplan show {path} draws it; {AGAIN}")
    return report


def read_report(path: Path) -> ValidationReport:
    """The report in a file, finished or not.

    Raises:
        InputError: there is none.
    """
    try:
        return ValidationReport.model_validate_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}", f"it is the file of --out; {AGAIN}") from None
    except (ValidationError, UnicodeDecodeError):
        raise InputError(f"{path} is no validation report of this version", AGAIN) from None


def check_same(previous: ValidationReport, request: ValidationRequest, device: DeviceInfo) -> None:
    """Figures of two requests or two machines never stand in one report.

    Raises:
        InputError: naming everything that differs.
    """
    pairs = [
        (name, getattr(previous.request, name), getattr(request, name))
        for name in ValidationRequest.model_fields
        if name != "notes"
    ]
    old, new = previous.device.versions, device.versions
    pairs += [(f"version of {name}", old.get(name), new.get(name)) for name in sorted({*old, *new})]
    pairs += [(f"device {x}", getattr(previous.device, x), getattr(device, x)) for x in ("name", "memory_bytes")]
    different = [f"{name} was {_text(a)}, now {_text(b)}" for name, a, b in pairs if a != b]
    if different:
        raise InputError(f"cannot resume: {'; '.join(different)}", f"repeat the first command exactly, or {AGAIN}")


def _text(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
