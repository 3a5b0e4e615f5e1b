"""Shared by the files that run trap cases: they are several so that test processes divide them."""

from __future__ import annotations

from pathlib import Path

from kvplan_kernels.matrix.cases import Case
from kvplan_kernels.matrix.run import run_case

CASES = Path(__file__).parent / "trap_cases.json"


def case_name(case: Case) -> str:
    return f"{case.formats}-{case.lengths}-{case.data}-{case.dims[0]}-{case.group}".replace(" ", "_")


def assert_passes(case: Case) -> None:
    outcome = run_case(case)
    assert not outcome.failures, outcome.failures
