"""Predicted beside measured decode attention, for every format of validation reports: python tools/compare_times.py
REPORT.json ... [--json FILE]

One layer, the shape that was run, the time model of `kvplan recommend` on that GPU. Exit code 1 if a prediction is more
than 25% off or missing, or if two formats whose measured times differ by more than 5% are predicted in the other order.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kvplan.cli.verify import rows_of
from kvplan.report.verification import compare, comparison_lines, row_lines
from kvplan.specs.load import list_devices, load_device, load_model
from kvplan.validate.report import ValidationReport


def compared(path: Path) -> dict[str, Any]:
    """The rows of one report, and what they say."""
    report = ValidationReport.model_validate_json(path.read_text(encoding="utf-8"))
    device = next(d for d in map(load_device, list_devices()) if d.name.startswith(report.device.name))
    rows, r = rows_of(report, load_model(report.request.model), device), report.request
    found = compare(rows)
    print(f"{path.name}: {r.model}, {r.batch} x {r.context:,} tokens")
    for line in (*row_lines(rows), *comparison_lines(found)):
        print(f"  {line}")
    where = {"report": path.name, "model": r.model, "context": r.context, "batch": r.batch}
    return where | {"rows": [asdict(row) for row in rows], "holds": found.holds, "comparison": asdict(found)}


def main() -> int:
    words = sys.argv[1:]
    out = words.index("--json") if "--json" in words else len(words)
    found = [compared(Path(name)) for name in words[:out]]
    if out < len(words):
        made = {"command": " ".join(["python", "tools/compare_times.py", *words]), "reports": found}
        Path(words[out + 1]).write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    return int(not all(one["holds"] for one in found))


if __name__ == "__main__":
    sys.exit(main())
