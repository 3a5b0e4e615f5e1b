"""Fit the recommender's time model to the stored decode benchmark: python tools/fit_times.py

Formats that the benchmark lacks keep what they had.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

from kvplan.recommend.fit import fit
from kvplan.recommend.timemodel import TIMES, Speed, measured_speeds

REPO = Path(__file__).resolve().parents[1]
REPORT = Path("docs/results/decode_h200.json")


def fitted() -> dict[str, Speed]:
    """What `times.json` should hold."""
    report = json.loads((REPO / REPORT).read_text(encoding="utf-8"))
    return measured_speeds() | fit(report, REPORT.as_posix())


def text(speeds: dict[str, Speed]) -> str:
    return json.dumps({key: asdict(speed) for key, speed in speeds.items()}, indent=1) + "\n"


def main() -> int:
    """Write the file; 1 if a shape that was not fitted is predicted worse than within 5%."""
    speeds, worst = fitted(), 0.0
    TIMES.write_text(text(speeds), encoding="utf-8")
    for key, s in speeds.items():
        error = s.worst_held_out_error
        worst = max(worst, error or 0.0)
        judged = "not judged" if error is None else f"held out within {error:.1%}"
        print(f"{key:48} {s.fixed_seconds * 1e6:5.1f} us, {s.roof_share:.3f} of the roof, {judged}")
    return int(worst > 0.05)


if __name__ == "__main__":
    sys.exit(main())
