"""What was read from a start-up log. No path, host, user, process id or address is ever kept in these objects."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal


@dataclass(frozen=True, kw_only=True)
class Printed:
    """One figure of a log.

    Attributes:
        name: what it is, the same word in every version of the engine (see the engine's table of figures).
        value: exactly as printed.
        unit: GiB, MiB, tokens, blocks ...; engines that print GB or MB and mean 2^30 or 2^20 get the true unit here.
        half_unit: half a unit of the last decimal: the true value lies within value +- half_unit.
        line: number of the line, from 1.
        rank: such as `TP1`, `DP0 TP1` or `draft`; empty where the line names none.
        of: the device or the cache that it belongs to, where an engine prints several; else empty.
    """

    name: str
    value: Decimal
    unit: str
    half_unit: Decimal
    line: int
    rank: str = ""
    of: str = ""


@dataclass(frozen=True, kw_only=True)
class StartUp:
    """One start of one engine.

    Attributes:
        engine: as kvplan names it (`vllm`, `llamacpp`, ...).
        title: as its project writes it.
        version: as the log says; None where it does not.
        model: the model's name or the last part of its path; None where the log has neither.
        printed: every figure, in the order of the log.
        options: settings that change bytes, as the log spells them; names sorted.
        missing: lines that a complete start has and this log lacks, in words.
        restarts: starts in the log besides this one.
        notes: what the reader should know: which start was used, what was cut.
        header: numbers of the model file's header, where the log repeats them (llama.cpp).
    """

    engine: str
    title: str
    version: str | None
    model: str | None
    printed: tuple[Printed, ...]
    options: tuple[tuple[str, str], ...] = ()
    missing: tuple[str, ...] = ()
    restarts: int = 0
    notes: tuple[str, ...] = ()
    header: tuple[tuple[str, str], ...] = ()

    @property
    def ranks(self) -> tuple[str, ...]:
        """Every rank that printed a figure, in the order of appearance."""
        return tuple(dict.fromkeys(p.rank for p in self.printed))

    def all(self, *names: str) -> tuple[Printed, ...]:
        """Every figure of these names, in the order of the log."""
        return tuple(p for p in self.printed if p.name in names)

    def last(self, name: str, rank: str | None = None) -> Printed | None:
        """The last figure of that name (of a rank, if one is given); None without any."""
        found = [p for p in self.printed if p.name == name and rank in (None, p.rank)]
        return found[-1] if found else None

    def least(self, name: str) -> Printed | None:
        """The smallest figure of that name: what decides where an engine takes the minimum over its ranks."""
        return min(self.all(name), key=lambda p: p.value, default=None)

    def option(self, name: str) -> str | None:
        """A setting as the log spells it; None where the log does not say."""
        return dict(self.options).get(name)


def total(figures: Iterable[Printed]) -> tuple[Decimal, Decimal]:
    """Sum of figures of one unit, and the sum of their half units."""
    found = list(figures)
    assert len({p.unit for p in found}) <= 1, found
    return sum((p.value for p in found), Decimal(0)), sum((p.half_unit for p in found), Decimal(0))
