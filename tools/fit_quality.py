"""Fit the law of kvplan/quality/law.py: errors on captured tensors against KL measured end to end.

    python tools/fit_quality.py fit TENSORS quality.json
    python tools/fit_quality.py errors TENSORS quality.json [LAYERS]

`fit` prints the two constants; `errors` prints K's and V's error of every format of the report as JSON, for an
evaluation on other layers or another text. `fit-statistics` and `errors-statistics` do so from statistics alone.
"""

from __future__ import annotations

import json
import math
import shlex
import sys
from dataclasses import replace
from pathlib import Path

import torch

from kvplan.captured import CaptureFile, read_capture
from kvplan.quality.report import QualityReport
from kvplan.quality.statistics import StatisticErrors
from kvplan.quality.tensors import TensorErrors

LEAST, MOST, STEP = 0.05, 1.5, 0.05
LEFT_OUT = "int8:channel"
"""Its loss is values that another text clips: scales from the same text do not show it."""


def errors_of(
    file: CaptureFile, report: QualityReport, make: type[TensorErrors] | type[StatisticErrors] = TensorErrors
) -> dict[str, tuple[float, float]]:
    """Format to (error of K, error of V)."""
    made = make(file)
    with torch.inference_mode():
        return {f.format: (made.error("k", f.k), made.error("v", f.v)) for f in report.formats}


def fit(errors: dict[str, tuple[float, float]], measured: dict[str, float]) -> tuple[float, float]:
    """KL = a eK^2 + b eV^2 with the least spread of its logarithm, and no bias."""
    found = []
    for i in range(round((MOST - LEAST) / STEP) + 1):
        ratio = LEAST + i * STEP
        logs = [math.log(measured[f] / (k * k + ratio * v * v)) for f, (k, v) in errors.items() if f != LEFT_OUT]
        mean = sum(logs) / len(logs)
        spread = sum((x - mean) ** 2 for x in logs)
        found.append((spread, math.exp(mean), ratio))
    _, a, ratio = min(found)
    return a, a * ratio


def main() -> None:
    what, tensors, stored = sys.argv[1:4]
    file = read_capture(Path(tensors))
    if len(sys.argv) > 4:
        layers = {int(x) for x in sys.argv[4].split(",")}
        file = replace(file, layers=tuple(x for x in file.layers if x.layer in layers))
    report = QualityReport.model_validate_json(Path(stored).read_text(encoding="utf-8"))
    statistics = what.endswith("-statistics")
    errors = errors_of(file, report, StatisticErrors if statistics else TensorErrors)
    if what.startswith("fit"):
        a, b = fit(errors, {f.format: f.kl_mean for f in report.formats})
        print(f"{'STATISTICS_' if statistics else ''}KL_OF_K, ..._V = {a:.2f}, {b:.2f}")
    else:
        rows = {f: [round(x, 6) for x in e] for f, e in errors.items()}
        words = shlex.join(["python", *sys.argv])
        print(json.dumps({"command": words, "tensors": file.source, "errors": rows}, indent=1))


if __name__ == "__main__":
    main()
