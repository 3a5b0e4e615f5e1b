"""Stored results: which there are, how each is read and drawn, and its JSON schema. One table."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from kvplan.errors import InputError, UsageError, did_you_mean
from kvplan.report.terminal import QuietConsole


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of result.

    Attributes:
        schema: what its JSON says under `schema`.
        model: module and class of the result.
        printer: module and function that draws it.
        command: the command that writes it.
        page: module and function that makes its HTML page with pictures, where it has one.
    """

    schema: str
    model: tuple[str, str]
    printer: tuple[str, str]
    command: str
    page: tuple[str, str] | None = None


KINDS = {
    "plan": Kind("kvplan.plan/1", ("kvplan.plan.result", "Plan"), ("kvplan.report.terminal", "print_plan"), "estimate"),
    "recommendation": Kind(
        "kvplan.recommendation/1",
        ("kvplan.recommend.types", "Recommendation"),
        ("kvplan.report.recommendation", "print_recommendation"),
        "recommend",
    ),
    "fleet": Kind(
        "kvplan.fleet/1",
        ("kvplan.recommend.types", "Fleet"),
        ("kvplan.report.recommendation", "print_fleet"),
        "recommend",
    ),
    "validation": Kind(
        "kvplan.validation/1",
        ("kvplan.validate.report", "ValidationReport"),
        ("kvplan.report.validation", "print_validation"),
        "validate",
    ),
    "reconciliation": Kind(
        "kvplan.reconciliation/1",
        ("kvplan.reconcile.result", "Reconciliation"),
        ("kvplan.report.reconcile", "print_reconciliation"),
        "reconcile",
    ),
    "diff": Kind("kvplan.diff/1", ("kvplan.plan.diff", "PlanDiff"), ("kvplan.report.diff", "print_diff"), "diff"),
    "layouts": Kind(
        "kvplan.layouts/1",
        ("kvplan.plan.layouts", "LayoutTable"),
        ("kvplan.report.layouts", "print_layouts"),
        "layouts",
    ),
    "solution": Kind(
        "kvplan.solution/1", ("kvplan.plan.solve", "Solution"), ("kvplan.report.solve", "print_solution"), "solve"
    ),
    "quality": Kind(
        "kvplan.quality/1",
        ("kvplan.quality.report", "QualityReport"),
        ("kvplan.report.quality", "print_quality"),
        "quality",
        ("kvplan.report.quality_page", "quality_page"),
    ),
    "prediction": Kind(
        "kvplan.prediction/1",
        ("kvplan.quality.law", "PredictionReport"),
        ("kvplan.report.quality", "print_prediction"),
        "quality --predict",
        ("kvplan.report.quality_page", "prediction_page"),
    ),
}
"""Name of a kind of result to what is known of it."""


def kind(name: str) -> Kind:
    """The kind of that name.

    Raises:
        UsageError: there is none.
    """
    if name not in KINDS:
        raise UsageError(f"unknown kind of result {name!r}", did_you_mean(name, KINDS))
    return KINDS[name]


def load_result(text: str, where: str) -> tuple[Kind, Any]:
    """A stored result and its kind.

    Raises:
        InputError: no JSON, no result of kvplan, or one with a number that does not follow from its parts.
    """
    known = "kvplan draws what its commands print with --json: " + ", ".join(KINDS)
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where} is no JSON: {error}", known) from None
    schema = data.get("schema") if isinstance(data, dict) else None
    found = next((each for each in KINDS.values() if each.schema == schema), None)
    if found is None:
        raise InputError(f"{where} is no stored result: its schema is {schema!r}", known)
    return found, _read(found, data, text)


def draw(found: Kind, result: Any, console: QuietConsole | None = None, **how: Any) -> None:
    """Print a result as its own command does."""
    _named(found.printer)(result, console, **how)


def page(found: Kind, result: Any) -> str | None:
    """A result's own HTML page, with pictures; None for kinds that have none."""
    if found.page is None:
        return None
    made: str = _named(found.page)(result)
    return made


def result_class(found: Kind) -> Any:
    """The class of the results of a kind."""
    return _named(found.model)


def _named(place: tuple[str, str]) -> Any:
    return getattr(import_module(place[0]), place[1])


def _read(found: Kind, data: dict[str, Any], text: str) -> Any:
    name = found.model[1]
    special: dict[str, Callable[[], Any]] = {
        "Plan": lambda: result_class(found).load(text),
        "Reconciliation": lambda: import_module("kvplan.reconcile.stored").from_dict(data),
    }
    if name in special:
        return special[name]()
    from pydantic import TypeAdapter, ValidationError

    # Dataclasses have no field for the schema; models of pydantic do.
    cls = result_class(found)
    body = data if hasattr(cls, "model_fields") else {key: value for key, value in data.items() if key != "schema"}
    try:
        return TypeAdapter(cls).validate_json(json.dumps(body))
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or "the whole"
        raise InputError(
            f"not a {found.schema} of this version: {field}: {first['msg']}",
            f"write it again with kvplan {found.command} --json",
        ) from None
