"""How the parts of a phase become its result: checks decide the status, and times are only there when all are green."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kvplan_kernels.bench.timing import Timing
from kvplan_kernels.testing import Error

from kvplan.validate.filled import Filled
from kvplan.validate.phases.table import TITLES
from kvplan.validate.report import Check, LaunchShape, PathError, PathTime, PhaseName, PhaseResult
from kvplan.validate.session import Session

Paths = tuple[PathTime, ...]


def path(name: str, timing: Timing) -> PathTime:
    """A timing under the name of its path."""
    return PathTime(name=name, seconds=timing.seconds, spread=timing.spread)


def micro(seconds: float) -> str:
    return f"{seconds * 1e6:,.1f} us"


def finish(
    session: Session,
    filled: Filled,
    name: PhaseName,
    checks: Sequence[Check],
    timed: Callable[[], Paths],
    verdict: Callable[[Paths], str],
    *,
    error: Error | None = None,
    launch: LaunchShape | None = None,
    path_errors: tuple[PathError, ...] = (),
) -> PhaseResult:
    """The result of a phase.

    Args:
        timed: measures; called only on a GPU and when the cache and this phase are green.
        verdict: what the times say, without the title.
    """
    green = all(c.passed for c in checks)
    paths: Paths = ()
    if session.timed and green and filled.green:
        session.progress(f"{filled.fmt}: timing {name}")
        paths = timed()
    result = PhaseResult(
        name=name,
        status="ok" if green else "failed",
        checks=tuple(checks),
        kernel_error=None if error is None else error.relative,
        kernel_max_ratio=None if error is None else error.max_ratio,
        paths=paths,
        launch=launch,
        path_errors=path_errors,
        verdict=f"{TITLES[name]}: {verdict(paths) if paths else 'not measured here'}",
    )
    if filled.native:
        session.native[name] = result
    return result
