"""Fit the recommender's time model to the stored benchmarks of decode and of latents: python tools/fit_times.py

Formats that no benchmark has keep what they had. `python tools/fit_times.py --validations` adds formats without any
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
from kvplan.report.verification import CLOSE
from kvplan.specs.load import load_device

REPO = Path(__file__).resolve().parents[1]
REPORTS = {Path("docs/results/decode_h200.json"): 0.05, Path("docs/results/latent_h200.json"): CLOSE}
"""Benchmark to how far a shape that was not fitted may be predicted off; blocks of heads make latents less even."""
VALIDATIONS = tuple(
    Path(f"docs/results/validate_llama-3.1-8b_32k_x16_{name}_h200.json") for name in ("all", "fp4", "kivi")
)
"""16 x 32,768 tokens of one layer, head_dim 128, on the H200."""

EXCEPTIONS = {"int3,rot": 0.06}
"""Queries and outputs are rotated by launches of their own, which do not grow with the cache."""


def fitted() -> dict[str, Speed]:
    """What `times.json` should hold."""
    speeds = measured_speeds()
    for path in REPORTS:
        if (REPO / path).is_file():
            speeds = speeds | fit(json.loads((REPO / path).read_text(encoding="utf-8")), path.as_posix())
    # Unpacked by fewer instructions, read by the same kernel.
    return speeds | {"fp8_e5m2": speeds["fp8_e4m3"]}


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
    """The file; what is not known of a format is left out."""
    said = {key: {name: x for name, x in asdict(s).items() if x not in (None, {})} for key, s in speeds.items()}
    return json.dumps(said, indent=1) + "\n"


def too_far(speeds: dict[str, Speed]) -> list[str]:
    """Formats that are predicted worse than their benchmark allows, at shapes that were not fitted."""
    bounds = {path.as_posix(): bound for path, bound in REPORTS.items()}
    return [
        key
        for key, s in speeds.items()
        if (s.worst_held_out_error or 0) > EXCEPTIONS.get(key, bounds.get(s.source, 0.05))
    ]


def main() -> int:
    """Write the file; 1 if a shape that was not fitted is predicted too far off."""
    speeds = from_validations() if "--validations" in sys.argv else fitted()
    TIMES.write_text(text(speeds), encoding="utf-8")
    for key, s in speeds.items():
        error = s.worst_held_out_error
        judged = "not judged" if error is None else f"held out within {error:.1%}"
        flops = f", {s.flops_per_second / 1e12:.0f} TFLOP/s" if s.flops_per_second else ""
        dims = "".join(f", {share:.3f} at head_dim {dim}" for dim, share in s.share_by_head_dim.items())
        print(f"{key:48} {s.fixed_seconds * 1e6:5.1f} us, {s.roof_share:.3f} of the roof{flops}{dims}, {judged}")
    bad = too_far(speeds)
    print(f"too far off at shapes that were not fitted: {', '.join(bad) or 'none'}")
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
