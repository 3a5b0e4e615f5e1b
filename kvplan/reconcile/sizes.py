"""Printed sizes as bytes: intervals by the rounding, and their sums."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from math import ceil, floor

from kvplan.reconcile.types import Printed
from kvplan.units import GIB, KIB, MIB

UNIT_BYTES = {"TiB": 2**40, "GiB": GIB, "MiB": MIB, "KiB": KIB, "bytes": 1}


def ends(figure: Printed) -> tuple[int, int]:
    """Least and most bytes that are printed so."""
    unit = UNIT_BYTES[figure.unit]
    low = (figure.value - figure.half_unit) * unit
    high = (figure.value + figure.half_unit) * unit
    return ceil(low), floor(high)


def in_unit(nbytes: int, unit: str) -> Decimal:
    """Bytes in a unit, exactly."""
    return Decimal(nbytes) / UNIT_BYTES[unit]


def interval(parts: Iterable[tuple[int, Printed | int]]) -> tuple[int, int]:
    """Low and high of a sum of printed sizes and exact bytes, each with a sign."""
    low = high = 0
    for sign, part in parts:
        least, most = ends(part) if isinstance(part, Printed) else (part, part)
        low += sign * (least if sign > 0 else most)
        high += sign * (most if sign > 0 else least)
    return low, high
