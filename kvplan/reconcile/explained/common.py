"""What the explanations of all engines share: attempts, versions, figures by name, intervals."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from kvplan.engines.shared.select import number_of
from kvplan.engines.shared.types import Engine, EngineCache
from kvplan.plan.engine import EngineRank
from kvplan.plan.resolve import Resolved
from kvplan.reconcile.result import Beside, Compared
from kvplan.reconcile.rules import LogFormat
from kvplan.reconcile.sizes import in_unit
from kvplan.reconcile.types import Printed, StartUp
from kvplan.specs.model import ModelSpec


@dataclass(frozen=True)
class Attempt:
    """One reading of what the log leaves open.

    Attributes:
        cause: what it supposes, as a cause of differences; empty for the log's plain reading.
        fields: of a PlanRequest, engine and model left out.
    """

    cause: str
    fields: Mapping[str, Any] = field(default_factory=dict)

    def but(self, cause: str, **fields: Any) -> Attempt:
        """The same with something else supposed too."""
        both = "; ".join(filter(None, (self.cause, cause)))
        return Attempt(both, {**self.fields, **fields})

    def with_option(self, cause: str, name: str, value: object) -> Attempt:
        """The same with an option of the engine set."""
        kept = [text for text in self.fields.get("engine_options", ()) if not text.startswith(f"{name}=")]
        return self.but(cause, engine_options=(*kept, f"{name}={value}"))


@dataclass(frozen=True)
class Explainer:
    """How one engine's log is explained.

    Attributes:
        engine: name of kvplan's engine for a log.
        attempts: the log's plain reading, then others; each is asked until all figures agree.
        compare: printed figures beside those of a resolved request.
        beside: memory beside weights and cache, or why the log does not show it. The bytes of the GPU and of the
            weights of a rank are given where they are known.
        deciding: name of the figure whose least rank decides; empty: none does.
        derived: figures of kvplan that no line has, such as the number of blocks where only tokens are printed.
    """

    engine: Callable[[StartUp], str]
    attempts: Callable[[StartUp, ModelSpec, Engine], list[Attempt]]
    compare: Callable[[StartUp, Resolved, LogFormat], list[Compared]]
    beside: Callable[[StartUp, Resolved, int | None], Beside | str]
    deciding: str = ""
    derived: Callable[[StartUp, Resolved], dict[str, int]] = lambda _start, resolved: plain_figures(resolved)


def plain_figures(resolved: Resolved) -> dict[str, int]:
    """The engine's own whole numbers that need no pool: bytes of a block, of a token ..."""
    found = figures_of(cache_of(resolved), context_of(resolved))
    return {name: value for name, value in found.items() if type(value) is int}


def covered(engine: Engine, version: str | None) -> str | None:
    """The covered version whose rules a version has: the newest that is not newer; the oldest for older ones."""
    number = number_of(version or "")
    if not number:
        return None
    names = [v.name for v in engine.versions]
    older = [name for name in names if number_of(name)[: len(number)] <= number]
    return older[0] if older else names[-1]


def version_attempts(first: Attempt, engine: Engine, start: StartUp) -> list[Attempt]:
    """The first attempt with the log's version, then with every other covered one."""
    known = covered(engine, start.version)
    base = first.but("", engine_version=known) if known else first
    asked = known or engine.versions[0].name
    others = [v.name for v in engine.versions if v.name != asked]
    near = sorted(others, key=lambda name: abs([v.name for v in engine.versions].index(name) - _at(engine, asked)))
    return [base, *(base.but(f"the rules are those of {engine.title} {name}", engine_version=name) for name in near)]


def _at(engine: Engine, name: str) -> int:
    return [v.name for v in engine.versions].index(name)


def cache_of(resolved: Resolved) -> EngineCache:
    """The cache of the rank that holds most."""
    rank = resolved.ranks[resolved.stage]
    assert isinstance(rank, EngineRank)
    return rank.cache


def context_of(resolved: Resolved) -> int:
    """Tokens of a sequence that the engine is started for."""
    return resolved.request.context or resolved.spec.max_context


def figures_of(cache: EngineCache, context: int, pool_bytes: int | None = None) -> dict[str, Any]:
    """The engine's figures by name; of several of one name the first."""
    found: dict[str, Any] = {}
    for figure in cache.figures(context, pool_bytes):
        found.setdefault(figure.name, figure.value)
    return found


def compared(log: LogFormat, printed: Printed, low: Decimal | int | float, high: Decimal | int | float,
             formula: str) -> Compared:  # fmt: skip
    """A printed figure beside a computed interval."""
    return Compared(text=log.figures[printed.name].text, printed=printed, low=Decimal(str(low)),
                    high=Decimal(str(high)), formula=formula)  # fmt: skip


def sized(log: LogFormat, printed: Printed, nbytes: int, formula: str) -> Compared:
    """A printed size beside computed bytes."""
    exact = in_unit(nbytes, printed.unit)
    return compared(log, printed, exact, exact, formula)


def options_from(start: StartUp, engine: Engine, names: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Settings of the log that are options of the engine, as `NAME=VALUE`.

    Args:
        names: the log's word to the engine's option, where they differ.
    """
    known = {option.name: option for option in engine.options}
    made = {}
    for word, value in start.options:
        option = known.get((names or {}).get(word, word))
        if option is None or value in ("None", "null", "") or (value == "auto" and option.kind is not str):
            continue
        if option.kind is str and option.choices and value not in option.choices:
            continue
        if option.kind is int and not value.isdigit():
            continue
        made[option.name] = {"True": "on", "False": "off"}.get(value, value)
    return tuple(f"{name}={value}" for name, value in made.items())


def number(text: str | None, default: int) -> int:
    """A whole number of the log's settings."""
    return int(text) if text and text.isdigit() and int(text) else default


def ranks_of(start: StartUp, setting: str, kind: str = "TP") -> int:
    """Ranks of a kind (TP, PP): as set, else as many as printed something."""
    seen = [int(n) for rank in start.ranks for n in re.findall(rf"\b{kind}(\d+)", rank)]
    return number(start.option(setting), max(seen, default=0) + 1)
