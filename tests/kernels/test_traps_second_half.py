"""The other half of the pairwise cases, see test_traps.py."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from kvplan_kernels.matrix.cases import Case
from kvplan_kernels.matrix.pairwise import load

sys.path.insert(0, str(Path(__file__).parent))

from trap_check import CASES, assert_passes, case_name

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy warns where the kernels saturate


@pytest.mark.parametrize("case", load(CASES)[1::2], ids=case_name)
def test_a_case_of_the_pairwise_cover(case: Case) -> None:
    assert_passes(case)
