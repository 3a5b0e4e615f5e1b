"""Faults that the matrix found and the kernels still have: each with the cases it touches and the smallest of them.

A test holds the smallest case of each to failing, so that a mended fault leaves this list with the commit that mends
it. The matrix itself counts such cases as failures.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kvplan_kernels.matrix.cases import Case


@dataclass(frozen=True)
class Fault:
    """Where the kernels are wrong: in `phase`, for cases in which `touches` holds."""

    phase: str
    touches: Callable[[Case], bool]
    smallest: tuple[Case, ...]


FAULTS: dict[str, Fault] = {}


def fault_of(case: Case) -> str | None:
    """Name of the known fault that touches the case."""
    return next((name for name, fault in FAULTS.items() if fault.touches(case)), None)
