"""The stored measurement: beside the project's earlier study of the same model and text, and the sum of K and V."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvplan.quality.predict import part_of, predicted_kl, spearman
from kvplan.quality.report import QualityReport

STORED = Path(__file__).resolve().parents[2] / "docs" / "results" / "quality_smollm2.json"

STUDY: dict[str, list[float]] = json.loads((Path(__file__).parent / "study.json").read_text(encoding="utf-8"))["kl"]
FACTOR = 1.15
OUTSIDE: dict[str, float] = {}
"""Formats beyond the factor, with theirs."""


@pytest.fixture(scope="module")
def report() -> QualityReport:
    return QualityReport.model_validate_json(STORED.read_text(encoding="utf-8"))


def test_it_says_how_it_was_made(report: QualityReport) -> None:
    assert report.complete and report.command.startswith("kvplan quality ") and report.layers == 30
    assert report.request.compute == "fp32" and report.request.text.tokens == 2048
    assert report.baseline.noise.kl_mean < 1e-9
    assert report.baseline.ppl == pytest.approx(14.006, abs=1e-3)


def test_the_figures_are_those_of_the_study(report: QualityReport) -> None:
    """Same text, tokens and calibration text (GPL-3), other quantisers."""
    assert report.request.calibration is not None and report.request.calibration.name == "GPL-3"
    assert set(STUDY) == {f.format for f in report.formats} and len(STUDY) >= 25
    low = [
        f for f in report.formats if any(n in f.k + f.v for n in ("int4", "int3", "int2", "fp4")) or "fp4" in f.format
    ]
    assert len(low) >= 8 and sum(f.format.startswith("kivi") for f in report.formats) >= 4
    ratios = {f.format: f.kl_mean / STUDY[f.format][0] for f in report.formats}
    outside = {f: round(r, 2) for f, r in ratios.items() if not 1 / FACTOR < r < FACTOR}
    assert outside == OUTSIDE


def test_the_order_is_that_of_the_study(report: QualityReport) -> None:
    measured = [f.kl_mean for f in report.formats]
    assert spearman(measured, [STUDY[f.format][0] for f in report.formats]) > 0.98


def test_parts_make_the_whole(report: QualityReport) -> None:
    """Of every format, mixed or not, from the runs of K alone and of V alone; single ones are off by up to 15%."""
    found = []
    for f in report.formats:
        kl = predicted_kl(report, f.k, f.v)
        assert kl is not None and kl / f.kl_mean == pytest.approx(1, abs=0.15), f.format
        found.append(kl)
    assert sum(abs(kl / f.kl_mean - 1) <= 0.1 for kl, f in zip(found, report.formats, strict=True)) >= 30
    assert spearman(found, [f.kl_mean for f in report.formats]) > 0.98


def test_a_part_alone(report: QualityReport) -> None:
    v_only = part_of(report.formats, "v", "int8")
    assert v_only is not None and predicted_kl(report, "bf16", "int8") == v_only.kl_mean
    assert predicted_kl(report, "int3", "int8") is None


def test_spearman() -> None:
    assert spearman([1, 2, 3, 4], [10, 20, 30, 40]) == 1 and spearman([1, 2, 3], [3, 2, 1]) == -1


@pytest.mark.parametrize(
    ("stored", "lengths"), [("quality_smollm2_tasks", (512, 1024, 2048)), ("quality_smollm2_needles", (4096, 8192))]
)
def test_tasks_are_as_the_page_says(stored: str, lengths: tuple[int, ...]) -> None:
    """Rows of docs/quality.md; coarse formats lose needles that 8 bits keep."""
    report = QualityReport.model_validate_json(STORED.with_name(f"{stored}.json").read_text(encoding="utf-8"))
    assert report.complete and report.command.startswith("kvplan quality ")
    right = {t.kind: t.right for t in report.baseline.tasks}
    page = (STORED.parents[1] / "quality.md").read_text(encoding="utf-8")
    words = " / ".join(f"{n:,}" for n in lengths) + " (of " + " / ".join(str(right[f"needle {n}"]) for n in lengths)
    assert f"needles {words})" in page
    found = {}
    for f in report.formats:
        by_kind = {t.kind: t for t in f.tasks}
        cells = " / ".join(str(by_kind[f"needle {n}"].right) for n in lengths)
        if 512 in lengths:
            cells += f" | {by_kind['addition'].right} | {by_kind['greedy'].tokens_mean:.1f}"
        assert f"| `{f.format}` | {cells} |" in page
        found[f.format] = sum(by_kind[f"needle {n}"].right for n in lengths)
    assert found["int8"] == sum(right[f"needle {n}"] for n in lengths) and found["kivi2"] <= 0.25 * found["int8"]
