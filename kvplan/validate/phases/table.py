"""Which phases there are, and how one is run so that its failure is its result."""

from __future__ import annotations

from importlib import import_module

from kvplan.validate.failures import LOST, describe, usable
from kvplan.validate.filled import Filled
from kvplan.validate.report import PhaseName, PhaseResult
from kvplan.validate.session import Session

TITLES: dict[PhaseName, str] = {
    "decode": "attention latency",
    "prefill": "prefill cost",
    "prefix": "prefix hit",
    "append": "append cost",
}


def run_phases(session: Session, filled: Filled) -> tuple[PhaseResult, ...]:
    """Every phase of the request; after one that loses the device, the others are marked as not run."""
    results: list[PhaseResult] = []
    for name in session.request.phases:
        if session.lost:
            results.append(_absent(name, "not run", LOST))
            continue
        session.progress(f"{filled.fmt}: {name}")
        results.append(_guarded(session, filled, name))
    return tuple(results)


def _guarded(session: Session, filled: Filled, name: PhaseName) -> PhaseResult:
    try:
        result: PhaseResult = import_module(f"kvplan.validate.phases.{name}").run(session, filled)
        return result
    except Exception as error:
        text = describe(error)
    session.lost = not usable(session.request.device)
    return _absent(name, "error", text)


def _absent(name: PhaseName, status: str, error: str) -> PhaseResult:
    verdict = f"{TITLES[name]}: {'could not run' if status == 'error' else 'not run'}"
    return PhaseResult.model_validate({"name": name, "status": status, "error": error, "verdict": verdict})
