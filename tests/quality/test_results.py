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


def test_k_and_v_add(report: QualityReport) -> None:
    found = [f for f in report.formats if f.k_only is not None]
    assert len(found) >= 14
    sums = []
    for f in found:
        predicted = predicted_kl(report, f.k, f.v)
        assert predicted is not None and f.parts_sum is not None
        assert f.kl_mean == pytest.approx(f.parts_sum, rel=0.2), f.format
        sums.append(predicted)
    assert spearman(sums, [f.kl_mean for f in found]) > 0.98


@pytest.mark.parametrize(("k", "v"), [("int8", "int4:group/64,asym"), ("int8:group/32", "int2:group/32,asym")])
def test_a_mixed_pair_follows_from_its_parts(report: QualityReport, k: str, v: str) -> None:
    mixed = next(f for f in report.formats if f.format == f"{k} / {v}")
    k_only, v_only = part_of(report.formats, "k", k), part_of(report.formats, "v", v)
    assert k_only is not None and v_only is not None
    assert mixed.kl_mean == pytest.approx(k_only.kl_mean + v_only.kl_mean, rel=0.1)
    assert predicted_kl(report, "bf16", v) == v_only.kl_mean and predicted_kl(report, "int3", "int8") is None


def test_spearman() -> None:
    assert spearman([1, 2, 3, 4], [10, 20, 30, 40]) == 1 and spearman([1, 2, 3], [3, 2, 1]) == -1


def test_tasks_are_lost_where_single_steps_say_so() -> None:
    """Figures of docs/quality.md."""
    stored = STORED.with_name("quality_smollm2_tasks.json")
    report = QualityReport.model_validate_json(stored.read_text(encoding="utf-8"))
    found = {f.format: {t.kind: t for t in f.tasks} for f in report.formats}
    assert report.complete and {t.kind: t.right for t in report.baseline.tasks}["addition"] == 17
    page = (STORED.parents[1] / "quality.md").read_text(encoding="utf-8")
    for name, by_kind in found.items():
        needles = " / ".join(str(by_kind[f"needle {n}"].right) for n in (512, 1024, 2048))
        row = f"| `{name}` | {needles} | {by_kind['addition'].right} | {by_kind['greedy'].tokens_mean:.1f} |"
        assert row in page
