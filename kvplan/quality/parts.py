"""KL with one tensor alone stored, by the best there is: a run, the codec on captured tensors, their statistics."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import Literal

from kvplan.errors import UnsupportedError, UsageError
from kvplan.formats.grammar import PLAIN
from kvplan.loss import FACTOR, LEVEL_FACTOR, PARTS_FACTOR
from kvplan.quality.law import (
    OTHER_MODEL_FACTOR,
    STATISTICS_FACTOR,
    kl_of,
    kl_of_statistics,
)
from kvplan.quality.predict import alone
from kvplan.quality.report import QualityReport
from kvplan.quality.statistics import StatisticErrors
from kvplan.quality.tensors import TensorErrors

MOST = 8
"""Measured formats that the level of a tensor is taken from, at most: each runs a codec."""


@dataclass(frozen=True)
class Part:
    """KL with one tensor alone stored.

    Attributes:
        factor: how far off it may be, either way, in nine of ten formats.
        error: of the attention output, where the codec was run.
    """

    kl: float
    factor: float
    basis: Literal["measured", "codec", "statistics"]
    error: float | None = None


@dataclass(frozen=True)
class Parts:
    """What is known of single tensors of one model.

    Attributes:
        near: whether the tensors are K and V of the model itself.
        report: measured figures of the model.
    """

    errors: TensorErrors
    statistics: StatisticErrors
    near: bool
    report: QualityReport | None

    def of(self, role: str, spelling: str) -> Part:
        """One tensor in one format.

        Raises:
            UsageError, UnsupportedError: a format that does not fit the tensors or of which nothing is known.
        """
        kl = alone(self.report, role, spelling) if self.report else None
        if kl is not None:
            return Part(kl, PARTS_FACTOR, "measured", 0.0 if spelling in PLAIN else None)
        try:
            error = self.errors.error(role, spelling)
        except UnsupportedError:
            kl = kl_of_statistics(*_of(role, self.statistics.error(role, spelling)))
            return Part(kl, STATISTICS_FACTOR if self.near else OTHER_MODEL_FACTOR, "statistics")
        level = self._levels.get(role)
        factor = (LEVEL_FACTOR if level is None else FACTOR) if self.near else OTHER_MODEL_FACTOR
        return Part((level or 1.0) * kl_of(*_of(role, error)), factor, "codec", error)

    @cached_property
    def _levels(self) -> dict[str, float]:
        """Role to measured KL over what the law says of the same formats, the median; texts differ in it."""
        found: dict[str, list[float]] = {"k": [], "v": []}
        rows = self.report.formats if self.report and self.near else ()
        for role, ratios in found.items():
            for spelling in dict.fromkeys(getattr(f, role) for f in rows):
                kl = alone(self.report, role, spelling) if self.report and spelling not in PLAIN else None
                if kl is None or len(ratios) == MOST:
                    continue
                try:
                    ratios.append(kl / kl_of(*_of(role, self.errors.error(role, spelling))))
                except (UnsupportedError, UsageError):
                    # Measured by a version that had its codec.
                    continue
        return {role: median(ratios) for role, ratios in found.items() if ratios}


def _of(role: str, error: float) -> tuple[float, float]:
    """Errors of K and V with only one of them stored."""
    return (error, 0.0) if role == "k" else (0.0, error)
