"""What the readers of logs share: a finding for each log, and comparison within the rounding of what was printed."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

REPRODUCED, EXPLAINED, DIFFERENT, NO_FIGURE = "reproduced", "explained", "different", "no figure"


@dataclass(frozen=True)
class Compared:
    """One printed figure and the interval of what kvplan computes from the rounded inputs."""

    what: str
    printed: float
    low: float
    high: float

    @property
    def agrees(self) -> bool:
        """Whether the printed figure lies in the interval."""
        return self.low <= self.printed <= self.high


@dataclass(frozen=True)
class Finding:
    """One log.

    Attributes:
        verdict: reproduced (every figure agrees), explained (not all; `why` says what is known), different, or
            no figure.
    """

    log: str
    engine: str
    strength: str
    verdict: str
    compared: tuple[Compared, ...] = ()
    why: str = ""

    @property
    def off(self) -> tuple[Compared, ...]:
        """The figures that do not agree."""
        return tuple(c for c in self.compared if not c.agrees)


def finding(record: dict[str, Any], compared: list[Compared], why: str = "") -> Finding:
    """The verdict of compared figures: `why` turns a difference into an explained one."""
    if not compared:
        verdict = NO_FIGURE
    elif all(c.agrees for c in compared):
        verdict = REPRODUCED
    else:
        verdict = EXPLAINED if why else DIFFERENT
    return Finding(record["id"], record["engine"], record["evidence_strength"], verdict, tuple(compared), why)


def half_unit(printed: float) -> float:
    """Half a unit of the last decimal of a number as it was printed: 3.81 -> 0.005, 64 -> 0.5."""
    exponent = Decimal(str(printed)).normalize().as_tuple().exponent
    places = -exponent if isinstance(exponent, int) and exponent < 0 else 0
    return float(Decimal(5).scaleb(-places - 1))


def rounded(what: str, printed: float, exact: float, half: float | None = None) -> Compared:
    """A figure that kvplan computes exactly, against its printed rounding."""
    slack = half_unit(printed) if half is None else half
    return Compared(what, printed, exact - slack, exact + slack)
