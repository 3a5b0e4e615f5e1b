"""Predicted beside measured decode attention, for every format of validation reports: python tools/compare_times.py
REPORT.json ... [--json FILE]

One layer, the shape that was run, the time model of `kvplan recommend` on that GPU. Exit code 1 if a prediction is more
than 25% off, or if two formats whose measured times differ by more than 5% are predicted in the other order.
"""

from __future__ import annotations

import json
import sys
from itertools import combinations
from pathlib import Path
from typing import Any

from kvplan.cli.verify import CLOSE, predicted_seconds
from kvplan.specs.load import list_devices, load_device, load_model
from kvplan.validate.report import ValidationReport

APART = 1.05


def compare(path: Path) -> dict[str, Any]:
    """Rows of one report, those that are wrong, and pairs in the wrong order."""
    report = ValidationReport.model_validate_json(path.read_text(encoding="utf-8"))
    spec = load_model(report.request.model)
    device = next(d for d in map(load_device, list_devices()) if d.name.startswith(report.device.name))
    rows = []
    for r in report.results:
        if r.times is None:
            continue
        predicted = predicted_seconds(report, r.format, spec, device)
        measured = r.times.fused_seconds
        off = None if predicted is None else round(predicted / measured - 1, 4)
        rows.append({"format": r.format, "measured": measured, "predicted": predicted, "off": off})
    known = [r for r in rows if r["predicted"] is not None]
    swapped = [
        [a["format"], b["format"]]
        for a, b in combinations(sorted(known, key=lambda r: r["measured"]), 2)
        if b["measured"] > APART * a["measured"] and b["predicted"] < a["predicted"]
    ]
    wide = [r["format"] for r in known if abs(r["off"]) > CLOSE]
    r = report.request
    return {
        "report": path.name,
        "model": r.model,
        "shape": [r.batch, r.context],
        "rows": rows,
        "wide": wide,
        "swapped": swapped,
    }


def main() -> int:
    words = sys.argv[1:]
    out = words.index("--json") if "--json" in words else len(words)
    found = [compare(Path(name)) for name in words[:out]]
    for one in found:
        print(f"{one['report']}: {one['model']}, {one['shape'][0]} x {one['shape'][1]:,} tokens")
        for row in one["rows"]:
            off = (
                "not predicted"
                if row["off"] is None
                else f"{row['predicted'] * 1e6:8.1f} us predicted, {row['off']:+.1%}"
            )
            print(f"  {row['format']:45} {row['measured'] * 1e6:8.1f} us measured, {off}")
        print(f"  more than {CLOSE:.0%} off: {one['wide'] or 'none'}; in the wrong order: {one['swapped'] or 'none'}")
    if out < len(words):
        made = {"command": " ".join(["python", "tools/compare_times.py", *words]), "reports": found}
        Path(words[out + 1]).write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    return int(any(one["wide"] or one["swapped"] for one in found))


if __name__ == "__main__":
    sys.exit(main())
