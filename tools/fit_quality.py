"""Fit the laws of kvplan/quality/law.py: errors on captured tensors against KL measured end to end.

    python tools/fit_quality.py fit TENSORS quality.json
    python tools/fit_quality.py errors TENSORS quality.json [LAYERS]
    python tools/fit_quality.py compare quality.json TENSORS OTHER...
    python tools/fit_quality.py pairs quality_mixed.json

`fit` prints the two constants; `errors` prints K's and V's error of every format of the report as JSON, for an
evaluation on other layers or another text. `fit-statistics` and `errors-statistics` do so from statistics alone.
`compare` prints, as JSON, the errors of every format with a codec (of the report, and of kvplan validate --kv all) on
each capture, and whether it ranks them as the first does. `pairs` prints the constant of mixed pairs.
"""

from __future__ import annotations

import json
import math
import platform
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from kvplan.captured import CaptureFile, read_capture
from kvplan.formats.grid import row_bytes
from kvplan.quality.law import kl_of
from kvplan.quality.predict import spearman
from kvplan.quality.report import Candidate, FormatQuality, QualityReport
from kvplan.quality.request import candidates
from kvplan.quality.run import versions
from kvplan.quality.statistics import StatisticErrors
from kvplan.quality.tensors import TensorErrors
from kvplan.validate.candidates import EVERY

LEAST, MOST, STEP = 0.05, 1.5, 0.05
LEFT_OUT = "int8:channel"
"""Its loss is values that another text clips: scales from the same text do not show it."""


def errors_of(
    file: CaptureFile,
    formats: Sequence[Candidate | FormatQuality],
    make: type[TensorErrors] | type[StatisticErrors] = TensorErrors,
) -> dict[str, tuple[float, float]]:
    """Format to (error of K, error of V)."""
    made = make(file)
    with torch.inference_mode():
        return {f.format: (made.error("k", f.k), made.error("v", f.v)) for f in formats}


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


def fit_pairs(report: QualityReport) -> float:
    """c of KL = k + v + c k v over the mixed pairs of a report, in steps of 0.1: the least square of log ratios."""
    rows = [(f.k_only, f.v_only, f.kl_mean) for f in report.formats if f.k != f.v]
    found = []
    for c in (i / 10 for i in range(50)):
        parts = [(k.kl_mean, v.kl_mean, kl) for k, v, kl in rows if k is not None and v is not None]
        found.append((sum(math.log((k + v + c * k * v) / kl) ** 2 for k, v, kl in parts), c))
    return min(found)[1]


def compare(report: QualityReport, paths: Sequence[str]) -> dict[str, Any]:
    """Errors of every format on captures, and whether the KL that they predict ranks formats as on the first."""
    formats = {f.format: f for f in (*report.request.candidates, *candidates(EVERY, None, None))}
    files = [read_capture(Path(path)) for path in paths]
    errors = [errors_of(file, list(formats.values())) for file in files]
    # Spellings that are one layout at this width have one rank.
    first = {e: f for f, e in reversed(errors[0].items())}
    names = [f for f in formats if f in first.values()]
    kl = [{f: kl_of(*e[f]) for f in names} for e in errors]
    middle = [f for f in names if 60 <= row_bytes(formats[f].k, formats[f].v, files[0].layers[0].k.shape[2]) <= 96]
    return {
        "command": shlex.join(["python", *sys.argv]),
        "device": f"cpu, {platform.machine()}",
        "versions": versions(),
        "formats": {"all": len(names), "60 to 96 bytes": len(middle)},
        "sets": [
            {
                "tensors": file.source,
                "queries": len(file.layers[0].positions),
                "file_bytes": Path(path).stat().st_size,
                "spearman": {
                    title: round(spearman([kl[0][f] for f in chosen], [mine[f] for f in chosen]), 4)
                    for title, chosen in (("all", names), ("60 to 96 bytes", middle))
                },
                "errors": rounded({f: e[f] for f in names}),
            }
            for path, file, mine, e in zip(paths, files, kl, errors, strict=True)
        ],
    }


def rounded(errors: dict[str, tuple[float, float]]) -> dict[str, list[float]]:
    return {f: [round(x, 6) for x in e] for f, e in errors.items()}


def read_report(path: str) -> QualityReport:
    return QualityReport.model_validate_json(Path(path).read_text(encoding="utf-8"))


def main() -> None:
    what, *paths = sys.argv[1:]
    if what == "pairs":
        print(f"COMPOUNDING = {fit_pairs(read_report(paths[0])):.1f}")
        return
    if what == "compare":
        print(json.dumps(compare(read_report(paths[0]), paths[1:]), indent=1))
        return
    file, report = read_capture(Path(paths[0])), read_report(paths[1])
    if len(paths) > 2:
        layers = {int(x) for x in paths[2].split(",")}
        file = replace(file, layers=tuple(x for x in file.layers if x.layer in layers))
    statistics = what.endswith("-statistics")
    errors = errors_of(file, report.formats, StatisticErrors if statistics else TensorErrors)
    if what.startswith("fit"):
        a, b = fit(errors, {f.format: f.kl_mean for f in report.formats})
        print(f"{'STATISTICS_' if statistics else ''}KL_OF_K, ..._V = {a:.2f}, {b:.2f}")
    else:
        words = shlex.join(["python", *sys.argv])
        print(json.dumps({"command": words, "tensors": file.source, "errors": rounded(errors)}, indent=1))


if __name__ == "__main__":
    main()
