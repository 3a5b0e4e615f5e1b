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
        return bool(self.compared) and all(c.agrees for c in self.compared)


def explain(start: StartUp, model: str | None = None, gpu: str | None = None) -> Reconciliation:
    """Each printed figure beside kvplan's own, the residual, its likely cause, and the memory beside the cache.

    Args:
        model: id, Hugging Face id or path; None: by the log.
        gpu: id or file of the GPU, for the memory beside the cache; None: by the log.

    Raises:
        InputError: the model that is given, or the GPU, is not known.
        UsageError, UnsupportedError: kvplan's engine refuses what the log says.
    """
    explainer: Explainer = import_module(f"kvplan.reconcile.explained.{start.engine}").EXPLAINER
    try:
        spec, found = find_model(start, model)
    except InputError as error:
        if model is not None:
            raise
        return _read_only(start, explainer.engine(start), f"{error.message}; {error.hint}")
    device = _device(gpu)
    plain, best, tried = _ask(start, spec, device, explainer)
    chosen = best if best.agrees else plain
    memory = device.memory_bytes if device else None
    beside = explainer.beside(start, chosen.resolved, memory)
    if not isinstance(beside, str) and beside.high_bytes < 0:
        beside = f"less than nothing is left ({beside.formula}); are these figures of one rank of this GPU?"
    supposed = best.attempt.cause if best is not plain and best.agrees else ""
    engine = chosen.resolved.engine
    assert engine is not None
    names = {c.printed.name for c in chosen.compared}
    deciding = start.least(explainer.deciding) if explainer.deciding else None
    ranks = {p.value for p in start.all(explainer.deciding)} if explainer.deciding else set()
    return Reconciliation(
        start=start,
        model=spec.id,
        model_from=found,
        engine=engine.engine.name,
        version=engine.version,
        options=tuple(sorted((name, str(value)) for name, value in engine.options.items() if value is not None)),
        compared=tuple(chosen.compared),
        others=tuple(p for p in start.printed if p.name not in names),
        deciding=deciding.rank if deciding and len(ranks) > 1 else "",
        causes=causes_of(start, plain.compared, supposed, tried, len(engine.engine.versions)),
        beside=None if isinstance(beside, str) else beside,
        why_not=beside if isinstance(beside, str) else "",
        notes=(*start.notes, *chosen.resolved.notes),
        summary=summary(start),
        derived=tuple(explainer.derived(start, chosen.resolved).items()),
    )


def _read_only(start: StartUp, engine: str, why: str) -> Reconciliation:
    """What the log says, where nobody says which model it is of."""
    return Reconciliation(
        start=start, model="", model_from=why, engine=engine, version="", options=(), compared=(),
        others=start.printed, deciding="", causes=(), beside=None, why_not="the model is not known",
        notes=start.notes, summary=summary(start),
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
