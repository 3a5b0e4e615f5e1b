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


def _scaled_values(case: Case) -> bool:
    v = case.layout.view("v")
    return v.has_row_scale or v.by_channel


FAULTS = {
    # The kernel multiplies probabilities, kept times 2**8, by the values' scales and casts the product to fp16: scales
    # above 255 give infinity, scales near 2**-24 lose their last bits and vanish.
    "row scales of values far from 1": Fault(
        "decode",
        lambda case: (
            _scaled_values(case)
            # A flipped code among zeros is worth the smallest scale there is.
            and (case.data in ("outlier", "overflow", "denormal") or (case.data, case.again) == ("zeros", "code"))
        ),
        (
            Case("bf16 int4", "one request", 16, (64, 64), 1, data="outlier"),
            Case("bf16 int8", "one request", 16, (64, 64), 1, data="overflow", dtype="bf16"),
            Case("bf16 int8,scale=bf16", "one request", 16, (64, 64), 1, data="denormal", dtype="bf16"),
        ),
    ),
    # Static codes are centred in the loop with probabilities rounded to fp16, the centre is added back with their exact
    # sum: after an outlier nearly all codes are far from the centre, and what is left of the difference is the error.
    "static zeros of values beside an outlier": Fault(
        "decode",
        lambda case: case.data == "outlier" and case.layout.view("v").has_static_scale and case.layout.view("v").asym,
        (Case("bf16 int8:tensor,asym", "page edge", 16, (64, 64), 1, data="outlier"),),
    ),
}


def fault_of(case: Case) -> str | None:
    """Name of the known fault that touches the case."""
    return next((name for name, fault in FAULTS.items() if fault.touches(case)), None)
