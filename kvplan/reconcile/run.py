"""What `kvplan reconcile` does: read a log, explain it, and the JSON of both."""

from __future__ import annotations

import json
from dataclasses import asdict
from decimal import Decimal
from pathlib import Path
from typing import Any

from kvplan.reconcile.clean import read_lines
from kvplan.reconcile.explain import explain as explain
from kvplan.reconcile.read import HINTS, read_start
from kvplan.reconcile.result import Compared, Reconciliation
from kvplan.reconcile.types import Printed, StartUp

SCHEMA = "kvplan.reconciliation/1"


def read_log(path: Path | str) -> StartUp:
    """The last complete start-up in a log of vLLM, SGLang, llama.cpp, TensorRT-LLM, LMDeploy or Ollama.

    Raises:
        InputError: no text file, no engine's lines, two engines', or none that says how large the cache is.
    """
    return read_start(read_lines(Path(path), HINTS))


def to_json(found: Reconciliation) -> str:
    """One object: the start as read, each figure with kvplan's and the residual, causes, memory beside the cache."""
    body = {
        "schema": SCHEMA,
        "log": _log(found.start),
        "model": found.model,
        "model_from": found.model_from,
        "engine": found.engine,
        "version": found.version,
        "options": dict(found.options),
        "cache": asdict(found.summary),
        "derived": dict(found.derived),
        "agrees": found.agrees if found.compared else None,
        "compared": [_compared(c) for c in found.compared],
        "deciding_rank": found.deciding,
        "causes": list(found.causes),
        "beside": asdict(found.beside) if found.beside else None,
        "beside_missing": found.why_not,
        "notes": list(found.notes),
    }
    return json.dumps(body, indent=1)


def _log(start: StartUp) -> dict[str, Any]:
    return {
        "engine": start.engine,
        "title": start.title,
        "version": start.version,
        "model": start.model,
        "ranks": list(start.ranks),
        "restarts": start.restarts,
        "missing": list(start.missing),
        "options": dict(start.options),
        "printed": [_printed(p) for p in start.printed],
    }


def _printed(p: Printed) -> dict[str, Any]:
    return {
        "name": p.name, "value": _number(p.value), "unit": p.unit, "half_unit": _number(p.half_unit), "line": p.line,
        "rank": p.rank, "of": p.of,
    }  # fmt: skip


def _compared(c: Compared) -> dict[str, Any]:
    return {
        "text": c.text, **_printed(c.printed), "low": _number(c.low), "high": _number(c.high),
        "residual": _number(c.residual), "agrees": c.agrees, "formula": c.formula,
    }  # fmt: skip


def _number(value: Decimal) -> int | float:
    return int(value) if value == value.to_integral_value() else float(value)
