"""Fit the recommender's time model to the stored decode benchmark: python tools/fit_times.py

Formats that the benchmark lacks keep what they had. `python tools/fit_times.py --validations` adds formats without any
speed from stored validations of one shape, with the fixed time of 16 bit.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

from kvplan.cli.evidence_files import formats_of
from kvplan.recommend.fit import fit
from kvplan.recommend.timemodel import TIMES, Speed, measured_speeds, pair_key, read_roof
from kvplan.specs.load import load_device

REPO = Path(__file__).resolve().parents[1]
REPORT = Path("docs/results/decode_h200.json")
VALIDATIONS = tuple(
    Path(f"docs/results/validate_llama-3.1-8b_32k_x16_{name}_h200.json") for name in ("all", "fp4", "kivi")
)
"""16 x 32,768 tokens of one layer, head_dim 128, on the H200."""


def fitted() -> dict[str, Speed]:
    """What `times.json` should hold."""
    report = json.loads((REPO / REPORT).read_text(encoding="utf-8"))
    return measured_speeds() | fit(report, REPORT.as_posix())


def from_validations() -> dict[str, Speed]:
    """`times.json` with the formats that only a validation has timed: share of the roof at that one shape."""
    speeds, roof = measured_speeds(), read_roof(load_device("h200"))
    fixed, found = speeds["bf16"].fixed_seconds, dict(speeds)
    for path in VALIDATIONS:
        for row in json.loads((REPO / path).read_text(encoding="utf-8"))["results"]:
            key, times = pair_key(*formats_of(row["format"])), row["times"]
            if times and key not in found and not covered(key):
                share = times["bytes_read"] / ((times["fused_seconds"] - fixed) * roof)
                found[key] = Speed(fixed, round(share, 3), f"{path.as_posix()}, one shape")
    return found


def covered(key: str) -> bool:
    """Whether a format without an entry of its own has that of its number: its scales are few."""
    return not any(word in key for word in ("group", "asym", "recent", "rot", "/", "mxfp8", "mxfp4", "nvfp4"))


def text(speeds: dict[str, Speed]) -> str:
    return json.dumps({key: asdict(speed) for key, speed in speeds.items()}, indent=1) + "\n"


def main() -> int:
    """Write the file; 1 if a shape that was not fitted is predicted worse than within 5%."""
    speeds, worst = from_validations() if "--validations" in sys.argv else fitted(), 0.0
    TIMES.write_text(text(speeds), encoding="utf-8")
    for key, s in speeds.items():
        error = s.worst_held_out_error
        worst = max(worst, error or 0.0)
        judged = "not judged" if error is None else f"held out within {error:.1%}"
        print(f"{key:48} {s.fixed_seconds * 1e6:5.1f} us, {s.roof_share:.3f} of the roof, {judged}")
    return int(worst > 0.05)


if __name__ == "__main__":
    sys.exit(main())
