"""Reads back what `kvplan reconcile --json` wrote."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from kvplan.errors import InputError
from kvplan.reconcile.result import Beside, Compared, Reconciliation
from kvplan.reconcile.summary import Summary
from kvplan.reconcile.types import Printed, StartUp

_HINT = "write it again with kvplan reconcile --json"


def from_dict(data: dict[str, Any]) -> Reconciliation:
    """The reconciliation of a JSON object.

    Raises:
        InputError: a field is missing or no such value, or a residual does not follow from its figures.
    """
    try:
        found = _read(data)
    except (KeyError, TypeError, ValueError, ArithmeticError, AttributeError) as broken:
        raise InputError(f"not a reconciliation ({type(broken).__name__}: {broken})", _HINT) from None
    for one, stored in zip(found.compared, data["compared"], strict=True):
        if one.agrees is not stored["agrees"] or abs(float(one.residual) - float(stored["residual"])) > 1e-9:
            raise InputError(f"the residual of {one.text!r} does not follow from its figures", _HINT)
    return found


def _read(data: dict[str, Any]) -> Reconciliation:
    log = data["log"]
    compared = tuple(_compared(each) for each in data["compared"])
    printed = tuple(_printed(each) for each in log["printed"])
    start = StartUp(
        engine=log["engine"],
        title=log["title"],
        version=log["version"],
        model=log["model"],
        printed=printed,
        options=tuple(log["options"].items()),
        missing=tuple(log["missing"]),
        restarts=log["restarts"],
    )
    known = {each.printed.name for each in compared}
    return Reconciliation(
        start=start,
        model=data["model"],
        model_from=data["model_from"],
        engine=data["engine"],
        version=data["version"],
        options=tuple(data["options"].items()),
        compared=compared,
        others=tuple(p for p in printed if p.name not in known),
        deciding=data["deciding_rank"],
        causes=tuple(data["causes"]),
        beside=Beside(**data["beside"]) if data["beside"] else None,
        why_not=data["beside_missing"],
        notes=tuple(data["notes"]),
        summary=Summary(**data["cache"]),
        derived=tuple(data["derived"].items()),
    )


def _printed(data: dict[str, Any]) -> Printed:
    value, half_unit = _decimal(data["value"]), _decimal(data["half_unit"])
    last_place = (2 * half_unit).normalize()
    if 0 < last_place < 1 and last_place.as_tuple().digits == (1,):
        # JSON has no zeros at the end of a number; the log had.
        value = value.quantize(last_place)
    texts: dict[str, Any] = {name: data[name] for name in ("name", "unit", "line", "rank", "of")}
    return Printed(**texts, value=value, half_unit=half_unit)


def _compared(data: dict[str, Any]) -> Compared:
    ends: dict[str, Any] = {name: _decimal(data[name]) for name in ("low", "high")}
    return Compared(text=data["text"], printed=_printed(data), formula=data["formula"], **ends)


def _decimal(number: int | float) -> Decimal:
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise ValueError(f"{number!r} is no number")
    return Decimal(str(number))


@dataclass(frozen=True, kw_only=True)
class StoredPrinted:
    """A figure of the log."""

    name: str
    value: int | float
    unit: str
    half_unit: int | float
    line: int
    rank: str
    of: str


@dataclass(frozen=True, kw_only=True)
class StoredCompared(StoredPrinted):
    """A figure of the log beside kvplan's own."""

    text: str
    low: int | float
    high: int | float
    residual: int | float
    agrees: bool
    formula: str


@dataclass(frozen=True, kw_only=True)
class StoredLog:
    """What was read from the log."""

    engine: str
    title: str
    version: str | None
    model: str | None
    ranks: list[str]
    restarts: int
    missing: list[str]
    options: dict[str, str]
    printed: list[StoredPrinted]


@dataclass(frozen=True, kw_only=True)
class Stored:
    """The JSON of a reconciliation, for its schema; nothing makes one of these."""

    log: StoredLog
    model: str
    model_from: str
    engine: str
    version: str
    options: dict[str, str]
    cache: Summary
    derived: dict[str, int]
    agrees: bool | None
    compared: list[StoredCompared]
    deciding_rank: str
    causes: list[str]
    beside: Beside | None
    beside_missing: str
    notes: list[str]
