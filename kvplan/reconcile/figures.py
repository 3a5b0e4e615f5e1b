"""From the match of a rule to figures: numbers as printed, with half a unit of their last decimal."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal

from kvplan.reconcile.rules import Figure, LogFormat
from kvplan.reconcile.types import Printed

_UNITS = {"KB": "KiB", "MB": "MiB", "GB": "GiB", "TB": "TiB", "B": "bytes"}
_COUNTED = ("tokens", "blocks", "layers", "slots", "sequences", "streams", "cells", "requests", "bytes", "copies")
_PLAIN = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?|true|false|\[(?:(?:\d+|true|false)(?:, )?)+\]")


def printed_figures(
    figures: Mapping[str, Figure], groups: Mapping[str, str | None], line: int, rank: str, of: str
) -> list[Printed]:
    """The figures among the groups of a match."""
    made = []
    for name, text in groups.items():
        spec = figures.get(name)
        if spec is not None and text is not None:
            value, half = _number(text, spec)
            said = groups.get("unit") or ""
            unit = _UNITS.get(said, said) if spec.unit == "*" else spec.unit
            made.append(Printed(name=name, value=value, unit=unit, half_unit=half, line=line, rank=rank, of=of))
    return made


def figures_in(log: LogFormat, text: str) -> list[Printed]:
    """The figures of one line, whatever stands around it in a log."""
    found = [(rule, rule.regex.search(text)) for rule in log.rules if rule.hint in text]
    matches = [match.groupdict() for rule, match in found if match and not rule.effect]
    return [p for groups in matches for p in printed_figures(log.figures, groups, 0, "", "")]


def header_value(key: str, value: str) -> bool:
    """Whether an entry of a model file's header may be kept: numbers and the architecture, no other text."""
    private = key.startswith(("general.", "tokenizer."))
    return key == "general.architecture" or (not private and _PLAIN.fullmatch(value) is not None)


def _number(text: str, spec: Figure) -> tuple[Decimal, Decimal]:
    """A number as printed, and half a unit of its last decimal (a whole unit where decimals are cut off)."""
    plain = text.replace(",", "")
    value = Decimal(plain)
    places = max(len(plain.partition(".")[2]), spec.places)
    if spec.floor:
        return value, Decimal(1).scaleb(-places)
    return value, Decimal(0) if spec.unit in _COUNTED and not places else Decimal(5).scaleb(-places - 1)
