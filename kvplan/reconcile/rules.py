"""How an engine's log lines are described: one table per engine, read by `kvplan.reconcile.read`."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from kvplan.reconcile.types import Printed

_NUMBER = r"-?\d+(?:,\d{3})*(?:\.\d+)?"
_FIELD = re.compile(r"\{([a-z_]+)\}")


@dataclass(frozen=True)
class Figure:
    """What a number of a line is.

    Attributes:
        text: in plain words, for the report.
        unit: the true unit; `*` where the line says it (a group called `unit`).
        places: decimals to which the engine rounds; fewer may be printed because trailing zeros are dropped.
        floor: cut off instead of rounded, so that the true value may be a whole unit higher.
    """

    text: str
    unit: str = ""
    places: int = 0
    floor: bool = False


@dataclass(frozen=True)
class Rule:
    """One line of a log.

    Attributes:
        hint: a part of the line that is always there, for a quick look.
        pattern: where `{name}` stands for a number called so. The groups `version`, `model`, `of` (device or cache),
            `unit` and those that start with `o_` (an option's value) have a meaning of their own.
        source: the file of the engine's own source that prints the line, or where the line was seen.
        since, until: first and last version that is known to print it so; empty where that is not known.
        keys: settings to take from the line.
        effect: `start`: a process starts here; `model`: it loads a model or lays out a context, which starts anew if a
            cache was laid out already; `label`: what follows belongs to the cache `of`; `draft`: to a draft model.
        labelled: whether its figures belong to the cache of the last label.
        laid_out: for effect `model`: names of figures that tell that a cache was laid out; empty: the engine's own.
    """

    hint: str
    pattern: str
    source: str
    since: str = ""
    until: str = ""
    keys: tuple[str, ...] = ()
    effect: str = ""
    labelled: bool = False
    laid_out: tuple[str, ...] = ()

    @cached_property
    def regex(self) -> re.Pattern[str]:
        """The compiled pattern."""
        return re.compile(_FIELD.sub(lambda field: f"(?P<{field[1]}>{_NUMBER})", self.pattern))


@dataclass(frozen=True, kw_only=True)
class LogFormat:
    """The log of one engine.

    Attributes:
        engine: as kvplan names it.
        title: as its project writes it.
        figures: what each name in the patterns is.
        rules: every line that is read.
        capacity: names of figures of which one must be there: without any, the log says nothing about the cache.
        capacity_lines: the same as lines, for the error.
        expected: names of figures that a complete start prints, each with its line; one of several names is enough.
        once: names that a rank prints once in a start: a second one is a second start.
        latest: names of which only the last is kept for each rank and device.
        refine: names figures whose meaning follows from other lines.
        wraps: an engine whose lines this one's log contains; `signs` are hints of lines that only this one prints.
    """

    engine: str
    title: str
    figures: dict[str, Figure]
    rules: tuple[Rule, ...]
    capacity: frozenset[str]
    capacity_lines: tuple[str, ...]
    expected: tuple[tuple[tuple[str, ...], str], ...] = ()
    once: frozenset[str] = frozenset()
    latest: frozenset[str] = frozenset()
    refine: Callable[[list[Printed]], list[Printed]] | None = None
    wraps: str = ""
    signs: frozenset[str] = frozenset()
