"""What reconciling finds: printed figures beside kvplan's own, residuals, causes, and the memory beside the cache."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from kvplan.reconcile.summary import Summary
from kvplan.reconcile.types import Printed, StartUp


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One printed figure and what kvplan computes for it.

    Attributes:
        text: in plain words.
        printed: from the log.
        low, high: what kvplan computes, in the figure's unit; an interval where its inputs are rounded in the log.
        formula: the arithmetic, or the engine's own rule.
    """

    text: str
    printed: Printed
    low: Decimal
    high: Decimal
    formula: str

    @property
    def agrees(self) -> bool:
        """Whether the intervals of the printed and of the computed figure meet."""
        value, half = self.printed.value, self.printed.half_unit
        return self.low <= value + half and value - half <= self.high

    @property
    def residual(self) -> Decimal:
        """Printed less computed: zero within the rounding, else from the nearest end of what kvplan computes."""
        value = self.printed.value
        return Decimal(0) if self.agrees else value - (self.low if value < self.low else self.high)


@dataclass(frozen=True, kw_only=True)
class Beside:
    """Memory beside weights and cache that the log shows: activations, CUDA graphs and what no allocator counts.

    Attributes:
        low_bytes, high_bytes: by the rounding of the printed figures; of one rank.
        formula: the arithmetic with the printed figures.
        memory_bytes: of the GPU; None: not known.
    """

    low_bytes: int
    high_bytes: int
    formula: str
    memory_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class Reconciliation:
    """A log, explained.

    Attributes:
        model: id of the spec, empty where the log does not tell it and the user neither; `model_from` says how it
            was found, or why not. Without a model nothing is compared.
        engine, version: of kvplan's rules that were asked.
        options: settings that were taken from the log, as options of the engine.
        compared: figures that kvplan has too.
        others: figures of the log that kvplan has no figure for.
        deciding: rank whose memory decides, where ranks differ; empty otherwise.
        causes: why figures differ, the likeliest first.
        summary: the cache as the log states it.
        derived: kvplan's figures of the engine that the log does not print.
        beside: None where the log does not show it; `why_not` then says what is missing.
    """

    start: StartUp
    model: str
    model_from: str
    engine: str
    version: str
    options: tuple[tuple[str, str], ...]
    compared: tuple[Compared, ...]
    others: tuple[Printed, ...]
    deciding: str
    causes: tuple[str, ...]
    beside: Beside | None
    why_not: str
    notes: tuple[str, ...]
    summary: Summary
    derived: tuple[tuple[str, int], ...] = ()

    @property
    def agrees(self) -> bool:
        """Whether every compared figure agrees."""
        return all(c.agrees for c in self.compared)
