"""What a machine said of a recommendation: see `kvplan recommend --verify`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One of the two, predicted and measured: decode attention of one layer."""

    format: str
    passed: bool
    predicted_seconds: float | None
    measured_seconds: float | None
    bytes_equal: bool | None
    note: str

    @property
    def off(self) -> float | None:
        """Relative difference of prediction and measurement."""
        if self.predicted_seconds is None or self.measured_seconds is None:
            return None
        return self.predicted_seconds / self.measured_seconds - 1


@dataclass(frozen=True)
class Verified:
    """What the machine says: confirmed, changed (then the runner-up is right), or not decided."""

    verdict: str
    reason: str
    device: str
    context: int
    batch: int
    rows: tuple[Row, ...]
    same_order: bool | None
