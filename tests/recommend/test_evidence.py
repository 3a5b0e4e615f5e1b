"""Evidence of quality: where each figure comes from, which kind it is, and what is refused as unknown."""

from __future__ import annotations

import json
import runpy
from dataclasses import replace
from pathlib import Path

import pytest

from kvplan.cli.evidence_files import from_report, from_tensors, measured_times
from kvplan.errors import InputError
from kvplan.loss import FACTOR, LEVEL_FACTOR, together
from kvplan.quality.report import QualityReport
from kvplan.recommend import RecommendRequest, recommend
from kvplan.recommend.bounds import NOISE, fewest_bits
from kvplan.recommend.evidence import (
    KINDS,
    MEASURED,
    OTHER,
    PREDICTED,
    STORED,
    THEORY,
    Body,
    Evidence,
    bare,
    k_precise,
    top1_of,
)  # fmt: skip
from kvplan.recommend.space import K_FORMATS, LOW_K, LOW_V, V_FORMATS
from kvplan.recommend.theory import relative_error, theory_kl
from kvplan.specs.load import load_model

REPO = Path(__file__).resolve().parents[2]
REPORT = REPO / "docs" / "results" / "quality_smollm2.json"
LLAMA, SMOL, QWEN = (load_model(name) for name in ("llama-3.1-8b", "smollm2-135m", "qwen2.5-7b"))


@pytest.fixture(scope="module")
def report() -> QualityReport:
    return QualityReport.model_validate_json(REPORT.read_text(encoding="utf-8"))


def test_the_stored_file_is_what_the_tool_collects() -> None:
    tool = runpy.run_path(str(REPO / "tools" / "collect_evidence.py"))
    stored = json.loads(STORED.read_text(encoding="utf-8"))
    again = json.loads(json.dumps(tool["measured"]()))
    assert {key: stored[key] for key in again} == again
    for role, formats in (("k", K_FORMATS + LOW_K), ("v", V_FORMATS + LOW_V)):
        known = stored["measured"][role].keys() | stored["predicted"][role].keys()
        assert {bare(f) for f in formats} <= {bare(f) for f in known}


def test_the_words_are_those_of_kvplan_quality() -> None:
    from typing import get_args

    from kvplan.loss import Evidence as Words

    assert get_args(Words) == KINDS


@pytest.mark.parametrize(("known", "factor"), [((), LEVEL_FACTOR), (("int4:group/32,asym",), FACTOR)])
def test_predictions_have_the_interval_of_kvplan_quality(
    report: QualityReport, known: tuple[str, ...], factor: float
) -> None:
    """The same errors on tensors and the same runs give the KL, low and high that `kvplan.quality.parts` has."""
    pytest.importorskip("torch")
    from types import SimpleNamespace
    from typing import Any, cast

    from kvplan.quality.law import KL_OF_K, KL_OF_V
    from kvplan.quality.parts import Parts

    rows = tuple(f for f in report.formats if f.k in known and f.v in known and f.k_only and f.v_only)
    assert len(rows) == len(known)
    off = {"int4:group/64,asym": 0.09, "int8": 0.01, "int4:group/32,asym": 0.08}
    errors = cast(Any, SimpleNamespace(error=lambda role, f: off[f]))
    parts = Parts(errors, cast(Any, None), True, report.model_copy(update={"formats": rows}) if rows else None)
    law = {(r, f): c * e**2 for r, c in (("k", KL_OF_K), ("v", KL_OF_V)) for f, e in off.items()}
    run = {(r, f.k): p.kl_mean for f in rows for r, p in (("k", f.k_only), ("v", f.v_only)) if p}
    evidence = Evidence(LLAMA, [Body(PREDICTED, "tensors", law), *([Body(MEASURED, "run", run)] if run else [])])
    for f in off.keys() - set(known):
        for role, q in (("k", evidence.of(f, None)), ("v", evidence.of(None, f))):
            part = parts.of(role, f)
            assert q and q.evidence == PREDICTED and part.factor == factor
            assert (q.kl, q.low, q.high) == pytest.approx((part.kl, part.kl / factor, part.kl * factor))
    for f in known:
        q = evidence.of(f, None)
        assert q and (q.evidence, q.kl) == (MEASURED, parts.of("k", f).kl)


def test_a_pair_that_was_run_comes_first(report: QualityReport) -> None:
    """Then both parts together, which is nearer to the run than their sum where both are coarse."""
    body = from_report(REPORT, "smollm2-135m")
    seen = 0
    for f in report.formats:
        if f.k_only is None or f.v_only is None:
            continue
        run, other, parts = (Evidence(LLAMA, bodies).of(f.k, f.v) for bodies in ([body], [], [replace(body, pairs={})]))
        assert run and other and parts and other.evidence == OTHER and run.evidence == parts.evidence == MEASURED
        assert run.kl == f.kl_mean and other.kl == pytest.approx(f.kl_mean, abs=2e-6)
        assert parts.kl == together(f.k_only.kl_mean, f.v_only.kl_mean) and parts.low < parts.kl < parts.high
        assert parts.kl == pytest.approx(f.kl_mean, rel=0.15)
        seen += 1
    assert seen >= 13


def test_two_bits_cost_more_than_their_sum(report: QualityReport) -> None:
    [f] = [f for f in report.formats if f.format == "kivi2"]
    body = replace(from_report(REPORT, "smollm2-135m"), pairs={})
    q = Evidence(LLAMA, [body]).of(f.k, f.v)
    assert q and f.k_only and f.v_only
    assert 1.16 * (f.k_only.kl_mean + f.v_only.kl_mean) < f.kl_mean
    assert f.k_only.kl_mean + f.v_only.kl_mean < q.kl < f.kl_mean < 1.13 * q.kl


def test_the_studied_model_itself_is_measured() -> None:
    ours, other = Evidence(SMOL).of("int8", "int8"), Evidence(LLAMA).of("int8", "int8")
    assert ours and other and ours.kl == other.kl
    assert (ours.evidence, other.evidence) == (MEASURED, OTHER) and ours.high < other.high


def test_top1_follows_from_kl(report: QualityReport) -> None:
    assert all(abs(top1_of(f.kl_mean) - f.top1) < 0.05 for f in report.formats)


def test_16_bit_loses_nothing() -> None:
    q = Evidence(LLAMA).of("bf16", "bf16")
    assert q and (q.kl, q.high, q.top1) == (0, 0, 1)


def test_best_evidence_first() -> None:
    own = Body(MEASURED, "mine", {("k", "int8"): 0.5, ("v", "int8"): 0.1})
    guess = Body(PREDICTED, "tensors", {("k", "int8"): 0.3, ("v", "int8"): 0.1, ("k", "nvfp4"): 0.2})
    evidence = Evidence(LLAMA, [guess, own])
    first, second, mixed = evidence.of("int8", "int8"), evidence.of("nvfp4", "int8"), evidence.of("int8", "nvfp4")
    assert first and (first.kl, first.evidence) == (pytest.approx(together(0.5, 0.1)), MEASURED)
    # The weaker kind of the two parts is the kind of the pair; K's level is that of the measured int8.
    assert second and (second.kl, second.evidence) == (pytest.approx(together(0.2 * 0.5 / 0.3, 0.1)), PREDICTED)
    assert mixed and mixed.evidence == OTHER
    whole = Body(MEASURED, "no parts", {}, {("int8", "int8"): (0.02, 0.9)})
    q = Evidence(LLAMA, [whole]).of("int8", "int8")
    assert q and (q.kl, q.top1, q.evidence) == (0.02, 0.9, MEASURED)
    assert Evidence(LLAMA, [replace(whole, pairs={})]).of("int8", "int8") != q


def test_scales_and_packing_of_engines_change_nothing() -> None:
    evidence = Evidence(LLAMA)
    plain = evidence.of("int8", "int8")
    assert plain and plain == evidence.of("int8,scale=fp32,pack=slot", "int8,scale=fp32,pack=slot")
    assert evidence.of("q8_0", "q8_0") == evidence.of("int8:group/32", "int8:group/32")
    q4, study = evidence.of("q4_0", "q4_0"), together(0.0977, 0.00651)
    assert q4 and q4.kl == pytest.approx(study)


def test_what_was_never_measured_is_theory() -> None:
    q = Evidence(LLAMA).of("int6:group/32", "int6:group/32")
    k, v = (theory_kl(role, "int6:group/32") or 0 for role in "kv")
    assert q and (q.evidence, q.kl, q.high) == (THEORY, together(k, v), together(10 * k, 10 * v))
    assert Evidence(LLAMA).of("octave_k3v4", "octave_k3v4") is None


@pytest.mark.parametrize(
    ("spelling", "percent"),
    [
        ("int8:group/32,asym", 0.46), ("int4:group/32,asym", 7.8), ("int4:group/64,asym", 9.0),
        ("int4:token,asym", 10.0), ("int4:token", 11.8), ("int2:group/32,asym", 39.0), ("int3:group/64,asym", 19.0),
        ("fp8_e4m3:token", 2.65), ("nvfp4", 9.5), ("mxfp4", 11.5),
    ],
)  # fmt: skip
def test_theory_against_simulated_gaussians(spelling: str, percent: float) -> None:
    """Table of the kernel study, section 4.2."""
    error = relative_error(spelling)
    assert error is not None and 100 * error == pytest.approx(percent, rel=0.05)


def test_theory_is_within_its_factor_of_what_was_measured(report: QualityReport) -> None:
    ratios = [
        theory / part.kl_mean
        for f in report.formats
        for role, part, spelling in (("k", f.k_only, f.k), ("v", f.v_only, f.v))
        if part and "channel" not in spelling and "recent" not in spelling and "int2" not in spelling
        and (theory := theory_kl(role, spelling)) is not None
    ]  # fmt: skip
    assert len(ratios) >= 14 and all(0.1 < r < 10 for r in ratios)


def test_k_bias_makes_other_models_evidence_worthless() -> None:
    evidence = Evidence(QWEN)
    for k in ("fp8_e4m3", "int8", "nvfp4", "q4_0", "int4:channel/32,asym,recent=128"):
        assert evidence.of(k, "bf16") is None and "bias" in evidence.why_unknown(k), k
    for k in ("bf16", "q8_0", "int8:group/32", "int8:channel/32"):
        assert k_precise(k) and evidence.of(k, "fp8_e4m3") is not None, k
    own = Body(MEASURED, "mine", {("k", "fp8_e4m3"): 0.01})
    q = Evidence(QWEN, [own]).of("fp8_e4m3", "bf16")
    assert q and q.evidence == MEASURED


def test_layers_in_16_bit() -> None:
    evidence = Evidence(LLAMA)
    q = evidence.of("int4:group/32,asym", "int4:group/32,asym")
    assert q
    half = evidence.kept(q, frozenset(range(16)), range(32))
    assert half.kl == pytest.approx(q.kl / 2) and half.high == q.high and "count alike" in half.source
    own = Body(PREDICTED, "tensors", {}, layers={0: 0.7, 1: 0.1, 2: 0.1, 3: 0.1})
    tensors = Evidence(LLAMA, [own])
    assert tensors.worst_layers(1) == (0,)
    assert tensors.kept(q, frozenset({0}), range(4)).kl == pytest.approx(0.3 * q.kl)


def test_few_bits_need_a_report_of_the_model() -> None:
    bits = {"bf16": 16, "q8_0": 8, "nvfp4": 4, "int2": 2, "turboquant_k3v4_nc": 3, "iq4_nl": 4, "fp8_ds_mla": 8}
    assert {f: fewest_bits(f) for f in bits} == bits and fewest_bits("int8", "int2:token", None) == 2
    request = RecommendRequest(model="llama-3.1-8b", gpu="h200", context=32768, concurrency=130, max_kl=1.0)
    without = recommend(request)
    pair = "int2:group/32,asym"
    own = Body(MEASURED, "mine", {(r, f): 0.01 for r in ("k", "v") for f in (pair, "int8")})
    with_report = recommend(request, [own])
    assert without.recommended is None
    assert with_report.recommended and with_report.recommended.candidate.k == pair


def test_files_of_kvplan_quality(tmp_path: Path, report: QualityReport) -> None:
    body = from_report(REPORT, "smollm2-135m")
    assert body.kind == MEASURED and body.part("k", "int8") == pytest.approx(0.00065, rel=0.05)
    with pytest.raises(InputError, match="not of llama"):
        from_report(REPORT, "llama-3.1-8b")
    for text, words in (
        ("{}", "schema is None"),
        ("[1]", "no report"),
        ("x", "no JSON"),
        ('{"schema": "kvplan.quality/1"}', ": "),
    ):
        path = tmp_path / "x.json"
        path.write_text(text)
        with pytest.raises(InputError, match=words):
            from_report(path, "smollm2-135m")


def test_a_prediction_is_evidence_only_of_its_own_model(tmp_path: Path) -> None:
    from kvplan.quality.law import KL_OF_K, KL_OF_V, Prediction, PredictionReport

    row = Prediction(
        format="int8", k="int8", v="int8", kl=0.1, low=0.05, high=0.2, error_k=0.1, error_v=0.2, evidence=PREDICTED
    )
    report = PredictionReport(
        command="",
        model="Llama-3.1-8B-Instruct",
        tensors="layer 0",
        layers=(0,),
        measured=None,
        formats=(row,),
        notes=(),
    )
    path = tmp_path / "prediction.json"
    report.save(path)
    body = from_report(path, "llama-3.1-8b")
    assert body.kind == PREDICTED and body.part("k", "int8") == pytest.approx(KL_OF_K * 0.01)
    assert body.part("v", "int8") == pytest.approx(KL_OF_V * 0.04)
    with pytest.raises(InputError, match="not of qwen"):
        from_report(path, "qwen2.5-7b")
    report.model_copy(update={"formats": (row.model_copy(update={"evidence": OTHER}),)}).save(path)
    with pytest.raises(InputError, match="tensors of another model"):
        from_report(path, "llama-3.1-8b")


def test_a_capture_predicts_the_model_s_own_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    from kvplan.captured import SHIPPED, read_capture
    from kvplan.recommend import space

    monkeypatch.setattr(space, "K_FORMATS", ("int8:token", "int4:group/32,asym"))
    monkeypatch.setattr(space, "V_FORMATS", ("int8:token",))
    monkeypatch.setattr(space, "LOW_K", ())
    monkeypatch.setattr(space, "LOW_V", ())
    body = from_tensors(SHIPPED, "smollm2-135m")
    assert (
        body.kind == PREDICTED
        and sum(body.layers.values()) == pytest.approx(1)
        and set(body.layers) == {x.layer for x in read_capture(SHIPPED).layers}
    )
    measured = from_report(REPORT, "smollm2-135m")
    for role, f in body.parts:
        known = measured.part(role, f)
        assert known and 0.4 < body.parts[role, f] / known < 2.5, (role, f)
    with pytest.raises(InputError, match="not of llama"):
        from_tensors(SHIPPED, "llama-3.1-8b")


def test_measured_times_replace_predicted_ones() -> None:
    path = REPO / "docs" / "results" / "validate_llama-3.1-8b_32k_x16_h200.json"
    measured = measured_times(path)
    request = RecommendRequest(model="llama-3.1-8b", gpu="h200", context=32768, concurrency=16)
    c = next(c for c in recommend(request, measured=measured).candidates if (c.k, c.v) == ("int8", "int8"))
    stored = json.loads(path.read_text(encoding="utf-8"))
    fused = next(r["times"]["fused_seconds"] for r in stored["results"] if r["format"] == "int8")
    assert c.attention.seconds == pytest.approx(32 * fused) and c.attention.basis.startswith("measured: validate_llama")
    other = recommend(request.model_copy(update={"concurrency": 17}), measured=measured)
    assert all(not c.attention.basis.startswith("measured") for c in other.candidates)


def test_the_noise_is_the_study_s() -> None:
    assert pytest.approx(0.0012) == NOISE
