"""A log's figures beside kvplan's: what the log says is asked first, then what it leaves open."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module

from kvplan.engines import load_engine
from kvplan.errors import InputError, KvplanError
from kvplan.plan.resolve import Resolved, resolve
from kvplan.plan.types import PlanRequest
from kvplan.reconcile.causes import causes_of
from kvplan.reconcile.explained.common import Attempt, Explainer
from kvplan.reconcile.model import find_model
from kvplan.reconcile.read import format_of
from kvplan.reconcile.result import Compared, Reconciliation
from kvplan.reconcile.summary import summary
from kvplan.reconcile.types import StartUp
from kvplan.specs.device import DeviceSpec
from kvplan.specs.model import ModelSpec


@dataclass(frozen=True)
class _Asked:
    """One attempt with its answer."""

    attempt: Attempt
    resolved: Resolved
    compared: list[Compared]

    @property
    def agrees(self) -> bool:
        """Whether there are figures and all agree."""
        return bool(self.compared) and all(c.agrees for c in self.compared)


def explain(start: StartUp, model: str | None = None, gpu: str | None = None) -> Reconciliation:
    """Each printed figure beside kvplan's own, the residual, its likely cause, and the memory beside the cache.

    Args:
        model: id, Hugging Face id or path; None: by the log.
        gpu: id or file of the GPU, for the memory beside the cache; None: by the log.

    Without a model, or where kvplan's engine refuses what the log says, the log is read and not explained; why stands
    in `model_from` or `why_not`.

    Raises:
        InputError: the model that is given, or the GPU, is not known.
    """
    explainer: Explainer = import_module(f"kvplan.reconcile.explained.{start.engine}").EXPLAINER
    device = _device(gpu)
    try:
        spec, found = find_model(start, model)
    except InputError as error:
        if model is not None:
            raise
        return _read_only(start, explainer, "", f"{error.message}; {error.hint}", "the model is not known")
    try:
        return _explained(start, spec, found, device, explainer)
    except KvplanError as error:
        return _read_only(start, explainer, spec.id, found, f"kvplan refuses what the log says: {error.message}")


def _explained(
    start: StartUp, spec: ModelSpec, found: str, device: DeviceSpec | None, explainer: Explainer
) -> Reconciliation:
    plain, best, tried = _ask(start, spec, device, explainer)
    chosen = best if best.agrees else plain
    beside = explainer.beside(start, chosen.resolved, device.memory_bytes if device else None)
    if not isinstance(beside, str) and beside.high_bytes < 0:
        beside = f"less than nothing is left ({beside.formula}); are these figures of one rank of this GPU?"
    supposed = best.attempt.cause if best is not plain and best.agrees else ""
    engine = chosen.resolved.engine
    assert engine is not None
    names = {c.printed.name for c in chosen.compared}
    return Reconciliation(
        start=start,
        model=spec.id,
        model_from=found,
        engine=engine.engine.name,
        version=engine.version,
        options=tuple(sorted((name, str(value)) for name, value in engine.options.items() if value is not None)),
        compared=tuple(chosen.compared),
        others=tuple(p for p in start.printed if p.name not in names),
        deciding=_deciding(start, explainer.deciding),
        causes=causes_of(start, plain.compared, supposed, tried, len(engine.engine.versions)),
        beside=None if isinstance(beside, str) else beside,
        why_not=beside if isinstance(beside, str) else "",
        notes=(*start.notes, *chosen.resolved.notes),
        summary=summary(start),
        derived=tuple(explainer.derived(start, chosen.resolved).items()),
    )


def _deciding(start: StartUp, name: str) -> str:
    """The rank with the least of a figure; empty where all are equal."""
    least = start.least(name) if name else None
    differ = len({p.value for p in start.all(name)}) > 1
    return least.rank if least and differ else ""


def _read_only(start: StartUp, explainer: Explainer, model: str, model_from: str, why: str) -> Reconciliation:
    """What the log says, where nothing of kvplan's can stand beside it."""
    return Reconciliation(
        start=start, model=model, model_from=model_from, engine=explainer.engine(start), version="", options=(),
        compared=(), others=start.printed, deciding=_deciding(start, explainer.deciding), causes=(), beside=None,
        why_not=why, notes=start.notes, summary=summary(start),
    )  # fmt: skip


def _ask(
    start: StartUp, spec: ModelSpec, device: DeviceSpec | None, explainer: Explainer
) -> tuple[_Asked, _Asked, int]:
    """The log's plain reading, the reading with which most agrees, and how many were tried."""
    refused: KvplanError | None = None
    plain = best = None
    tried = 0
    for asked in _answers(start, spec, device, explainer):
        tried += 1
        if isinstance(asked, KvplanError):
            refused = refused or asked
            continue
        plain = plain or asked
        if best is None or _score(asked) > _score(best):
            best = asked
        if asked.agrees:
            break
    if plain is None or best is None:
        assert refused is not None
        raise refused
    return plain, best, tried


def _score(asked: _Asked) -> int:
    return sum(c.agrees for c in asked.compared)


def _answers(
    start: StartUp, spec: ModelSpec, device: DeviceSpec | None, explainer: Explainer
) -> Iterator[_Asked | KvplanError]:
    name = explainer.engine(start)
    log = format_of(start.engine)
    for attempt in explainer.attempts(start, spec, load_engine(name)):
        try:
            request = PlanRequest(model=spec.id, engine=name, beyond_max=True, **attempt.fields)
            resolved = resolve(request, spec, device)
            yield _Asked(attempt, resolved, explainer.compare(start, resolved, log))
        except KvplanError as error:
            yield error


def _device(gpu: str | None) -> DeviceSpec | None:
    if gpu is None:
        return None
    from kvplan.specs.load import load_device

    return load_device(gpu)
