"""What a process of the matrix does: prepare itself, then run cases that share compiled kernels.

Imports nothing of Triton before it is prepared. Beside `__main__`, because other processes cannot find its functions.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from kvplan_kernels.matrix.cases import Case
    from kvplan_kernels.matrix.run import Outcome


def prepare() -> None:
    """In this process: the interpreter without a GPU (before Triton is imported), one thread for small tensors."""
    torch.set_num_threads(1)
    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"
        from kvplan_kernels.interpreter import replace_builtins_once

        replace_builtins_once()


def run_group(cases: list[Case], seed: int, stop: float) -> tuple[list[Outcome], int]:
    """Outcomes of cases that share compiled kernels, and how many were not begun; `stop` is a monotonic time."""
    from kvplan_kernels.matrix.run import run_case

    outcomes = []
    for case in cases:
        if time.monotonic() > stop:
            break
        outcomes.append(run_case(case, seed=seed))
    return outcomes, len(cases) - len(outcomes)
