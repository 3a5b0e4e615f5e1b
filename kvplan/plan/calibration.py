"""Measured memory beside weights and cache, from a start-up log (`kvplan reconcile --save`), instead of estimates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvplan.engines.shared.memory import MemoryNeed
from kvplan.errors import InputError, UsageError

if TYPE_CHECKING:
    from kvplan.plan.resolve import Resolved

SCHEMA = "kvplan.calibration/1"
_HINT = "write it with kvplan reconcile LOG MODEL --save FILE"


def read_calibration(path: Path) -> dict[str, Any]:
    """The fields of a calibration file.

    Raises:
        InputError: it cannot be read or is no calibration.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"calibration {path.name} cannot be read: {error}", _HINT) from None
    wanted = {"engine": str, "version": str, "model": str, "residual_low_bytes": int, "residual_high_bytes": int}
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise InputError(f"{path.name} is no calibration ({SCHEMA})", _HINT)
    for name, kind in wanted.items():
        if not isinstance(data.get(name), kind):
            raise InputError(f"calibration {path.name}: {name} is missing or no {kind.__name__}", _HINT)
    return data


def calibrated(resolved: Resolved) -> MemoryNeed:
    """What the log measured for activations, graphs and framework together.

    Raises:
        UsageError: the calibration is of another engine.
    """
    chosen, path = resolved.engine, Path(resolved.request.calibration or "")
    assert chosen is not None
    data = read_calibration(path)
    if data["engine"] != chosen.engine.name:
        raise UsageError(f"calibration {path.name} is of {data['engine']}, the plan is for {chosen.engine.name}", _HINT)
    other = "" if data["model"] == resolved.spec.id else f", measured on {data['model']}"
    return MemoryNeed(
        name="measured residual",
        low_bytes=data["residual_low_bytes"],
        high_bytes=data["residual_high_bytes"],
        basis="measured",
        source=f"start-up log of {data['engine']} {data['version']}{other}",
    )
