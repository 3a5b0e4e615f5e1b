"""Write tests/kernels/trap_cases.json: cases of kernels that cover all pairs of axis values (kvplan_kernels/matrix).

python tools/make_trap_cases.py [--check]
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

# No kernel runs here; Triton needs no GPU to be imported for the interpreter.
os.environ.setdefault("TRITON_INTERPRET", "1")

from kvplan_kernels.matrix.pairwise import COVER_SEED, cover, dump

PATH = Path(__file__).resolve().parents[1] / "tests" / "kernels" / "trap_cases.json"


def main() -> int:
    made = dump(cover(COVER_SEED))
    if "--check" in sys.argv[1:]:
        return 0 if PATH.read_text() == made else 1
    PATH.write_text(made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
