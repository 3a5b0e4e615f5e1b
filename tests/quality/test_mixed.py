"""Pairs of two formats, measured on three texts: what their parts say of them, and what captured tensors say."""

from __future__ import annotations

import json
from functools import cache
from math import sqrt
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kvplan.quality.forecast import Forecaster
from kvplan.quality.law import COMPOUNDING, PARTS_FACTOR, together
from kvplan.quality.predict import alone, predicted_kl
from kvplan.quality.report import Candidate, FormatQuality, QualityReport

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
FITTED, CODE, LICENCE = "quality_mixed", "quality_mixed_heldout", "quality_mixed_gpl"
ERRORS: dict[str, list[float]] = json.loads((RESULTS / f"{CODE}_errors.json").read_text(encoding="utf-8"))["errors"]
"""Of K and V on the 22 layers and the text that the law was not fitted to."""


@cache
def stored(name: str) -> QualityReport:
    return QualityReport.model_validate_json((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def pairs(name: str) -> list[FormatQuality]:
    return [f for f in stored(name).formats if f.k != f.v]


def off(predicted: float, f: FormatQuality) -> float:
    return predicted / f.kl_mean - 1


def share(errors: list[float], most: float) -> int:
    return sum(abs(e) <= most for e in errors)


@pytest.mark.parametrize("name", [FITTED, CODE, LICENCE])
def test_all_were_run_alike(name: str) -> None:
    report, usual = stored(name), stored("quality_smollm2")
    assert report.complete and len(pairs(name)) == 40 and report.weights_sha256 == usual.weights_sha256
    assert report.request.compute == "fp32" and report.request.text.tokens == 2048
    assert {(f.k, f.v) for f in pairs(name)} == {(f.k, f.v) for f in pairs(FITTED)}
    assert (report.request.text == usual.request.text) == (name == FITTED)
    assert sum("int2" in f.k + f.v or "int3" in f.k + f.v for f in pairs(name)) == 26


def test_the_constant_is_what_the_tool_finds(fit_quality: Any) -> None:
    assert fit_quality.fit_pairs(stored(FITTED)) == COMPOUNDING


@pytest.mark.parametrize(("name", "sums", "within"), [(FITTED, 35, 35), (CODE, 34, 36), (LICENCE, 0, 0)])
def test_parts_make_the_pair_within_a_tenth(name: str, sums: int, within: int) -> None:
    """Nine of ten on texts that the constant was not fitted to."""
    report = stored(name)
    found, added = [], []
    for f in pairs(name):
        kl, k, v = predicted_kl(report, f.k, f.v), alone(report, "k", f.k), alone(report, "v", f.v)
        assert kl is not None and k is not None and v is not None and kl == together(k, v)
        found.append(off(kl, f))
        added.append(off(k + v, f))
    assert (share(added, 0.1), share(found, 0.1)) == (sums, within)
    if name != FITTED:
        assert share(found, PARTS_FACTOR - 1) >= 0.9 * len(found)


def test_coarse_pairs_cost_more_than_their_sum() -> None:
    """Both parts below 4 bits, on the texts that were not fitted."""
    coarse = [(f, stored(n)) for n in (CODE, LICENCE) for f in pairs(n) if min(kl_parts(f)) > 0.05]
    assert len(coarse) >= 4
    for f, report in coarse:
        k, v = kl_parts(f)
        assert k + v < 0.95 * f.kl_mean and abs(off(predicted_kl(report, f.k, f.v) or 0, f)) < abs(off(k + v, f))


def kl_parts(f: FormatQuality) -> tuple[float, float]:
    assert f.k_only is not None and f.v_only is not None
    return f.k_only.kl_mean, f.v_only.kl_mean


def test_nothing_is_sure_to_a_tenth() -> None:
    """Why no prediction from tensors can be: KL of one pair moves as much between texts, and by nothing at all."""
    other = {f.format: f.kl_mean for f in pairs(CODE)}
    moved = [other[f.format] / f.kl_mean - 1 for f in pairs(FITTED)]
    assert share(moved, 0.1) == 29
    # V in int8 alone costs less than 0.0001.
    nothing = [off(kl_parts(f)[0], f) for n in (FITTED, CODE) for f in pairs(n) if f.v == "int8"]
    assert all(kl_parts(f)[1] < 1e-4 for f in pairs(FITTED) if f.v == "int8")
    assert 0.06 < max(map(abs, nothing)) < 0.1 and sqrt(sum(x * x for x in nothing) / len(nothing)) > 0.03


def known(f: FormatQuality, role: str | None) -> QualityReport | None:
    """The report if only K, only V, or only the larger part of a pair had been run."""
    if role is None:
        return None
    k, v = kl_parts(f)
    other = "v" if role == "k" or (role == "larger" and k > v) else "k"
    row = f.model_copy(update={other: "bf16", f"{other}_only": None})
    return stored(CODE).model_copy(update={"formats": (row,)})


@pytest.mark.parametrize(("role", "within"), [(None, 18), ("k", 31), ("v", 22), ("larger", 35)])
def test_from_tensors_that_were_not_fitted(role: str | None, within: int) -> None:
    """Nine of ten pairs lie within their interval; within a tenth only where the larger part was measured."""
    errors = {("k", f.k): ERRORS[f.format][0] for f in pairs(CODE)}
    errors |= {("v", f.v): ERRORS[f.format][1] for f in pairs(CODE)}
    tensors: Any = SimpleNamespace(
        file=SimpleNamespace(is_latent=False),
        error=lambda role, f: errors[role, f],
        by_layer=lambda role, f: torch.zeros(1, 1, 1),
    )
    statistics: Any = SimpleNamespace(error=lambda role, f: 0.1)
    found = []
    for f in pairs(CODE):
        p = Forecaster("smollm2-135m", tensors, statistics, True, known(f, role)).predict(
            Candidate(format=f.format, k=f.k, v=f.v)
        )
        assert p.evidence == "predicted from this model's tensors" and p.low < p.kl < p.high
        assert (p.error_k is None) + (p.error_v is None) == (role is not None)
        found.append((p, f))
    assert share([off(p.kl, f) for p, f in found], 0.1) == within
    assert sum(p.low <= f.kl_mean <= p.high for p, f in found) >= 0.9 * len(found)
