"""The trap matrix in the interpreter, one half of the pairwise cases; and that the list is what it claims to be."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from kvplan_kernels.attention.door import check_supported
from kvplan_kernels.matrix.cases import Case
from kvplan_kernels.matrix.pairwise import COVER_SEED, cover, dump, feasible_pairs, load, pairs_of
from kvplan_kernels.matrix.report import Report
from kvplan_kernels.matrix.run import PHASES, chunks, run_case
from kvplan_kernels.matrix.traps import TRAPS, missing, traps_of

from kvplan.errors import UnsupportedError

sys.path.insert(0, str(Path(__file__).parent))

from trap_check import CASES, assert_passes, case_name

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy warns where the kernels saturate


@pytest.mark.parametrize("case", load(CASES)[0::2], ids=case_name)
def test_a_case_of_the_pairwise_cover(case: Case) -> None:
    assert_passes(case)


def test_the_list_is_generated_and_covers_every_pair() -> None:
    cases = cover(COVER_SEED)
    assert CASES.read_text() == dump(cases), "run python tools/make_trap_cases.py"
    assert all(case.refusal() is None for case in cases)
    assert set().union(*map(pairs_of, cases)) >= feasible_pairs()


def test_every_trap_has_a_case_or_needs_a_gpu() -> None:
    executed = {name for case in load(CASES) for name in traps_of(case) if runs(case, TRAPS[name].phase)}
    assert missing(executed, gpu=False) == []
    assert [name for name, trap in TRAPS.items() if trap.gpu] == [
        "70,000 tokens: probabilities below fp16", "a pool of more than 2^31 elements", "no memory but the workspace",
    ]  # fmt: skip
    assert {trap.phase for trap in TRAPS.values()} <= set(PHASES)


def runs(case: Case, phase: str) -> bool:
    """Whether the phase's door lets the case in; asked without running it."""
    try:
        if phase == "decode":
            check_supported(case.layout)
    except UnsupportedError:
        return False
    return phase != "fusion"


# The smallest cases of faults that the matrix has found: outliers, ranges beyond fp16 and below it.
FOUND = [
    Case("bf16 int4", "one request", 16, (64, 64), 1, data="outlier"),
    Case("bf16 int8", "one request", 16, (64, 64), 1, data="overflow", dtype="bf16"),
    Case("bf16 int8,scale=bf16", "one request", 16, (64, 64), 1, data="denormal", dtype="bf16"),
    Case("bf16 int8:tensor,asym", "page edge", 16, (64, 64), 1, data="outlier"),
]


@pytest.mark.parametrize("case", FOUND, ids=case_name)
def test_a_fault_that_was_mended_stays_mended(case: Case) -> None:
    assert_passes(case)


def test_a_trap_without_an_executed_case_fails_the_run() -> None:
    report = Report({"name": "interpreter"}, seed=0)
    report.add(run_case(Case("fp32 fp32", "one request", 16)))
    assert not report.passed and "fp32 rows" not in report.missing and "length 1" in report.missing
    assert report.phases["decode"]["refused"] == 1
    assert Report.from_json(report.as_json()).as_json() == report.as_json()
    report.merge(Report.from_json(report.as_json()))
    assert report.cases == 2 and report.traps["fp32 rows"] == 2


def test_a_resumed_run_counts_a_failed_case_once() -> None:
    case = Case("fp32 fp32", "one request", 16)
    good, bad = run_case(case), run_case(case)
    bad.failures, bad.phases["append"] = ["append: wrong"], "failed"
    report, whole = Report({"name": "interpreter"}, seed=0), Report({"name": "interpreter"}, seed=0)
    report.add(bad)
    assert len(report.failures) == 1 and report.passed_cases == []
    report = Report.from_json(report.as_json())
    report.forget_failures()
    assert report.cases == 0 and not +report.traps and not +report.refused
    report.add(good)
    whole.add(good)
    assert (report.cases, +report.traps, report.phases["append"]["ok"]) == (1, +whole.traps, 1)
    assert report.passed_cases == [case.digest] and report.phases["append"]["failed"] == 0


def test_writes_are_cut_where_the_pattern_says() -> None:
    assert chunks(Case(lengths="page edge", page_size=16)) == [(0, 17)]
    assert chunks(Case(lengths="page edge", page_size=16, write="pieces")) == [(0, 7), (7, 8), (8, 17)]
    assert chunks(Case(lengths="zero and one", write="tokens")) == [(0, 1)]
    assert chunks(Case(lengths="page edge", page_size=16, write="tokens"))[0] == (0, 11)


def test_the_stored_list_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "cases.json"
    path.write_text(dump([Case(group=7, pool="huge")]))
    assert load(path) == [Case(group=7, pool="huge")]
