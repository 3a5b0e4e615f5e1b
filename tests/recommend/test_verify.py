"""`recommend --verify`: what is run, and the verdict by what the machine says.

The measurement is a function from (request, spec, source, file) to a report; here it makes one up, or is Triton's
interpreter.
"""

from __future__ import annotations

import json
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from kvplan.cli import verify as subject
from kvplan.cli.main import main
from kvplan.cli.verify import verified
from kvplan.errors import ExitCode, UnsupportedError
from kvplan.recommend import Recommendation, RecommendRequest, recommend
from kvplan.report.answers import ANSWERS
from kvplan.report.verification import Row, Verified, compare
from kvplan.validate.candidates import EVERY
from kvplan.validate.report import Check, DeviceInfo, FormatResult, Times, ValidationReport
from kvplan.validate.subject import choose_group

REPO = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def tight() -> Recommendation:
    return recommend(RecommendRequest(model="llama-3.1-8b", gpu="h200", context=32768, concurrency=40))


def machine(
    seconds: dict[str, float | None], seen: list[Any] | None = None, *, complete: bool = True
) -> Callable[[Any, Any, str, Path | None], ValidationReport]:
    """A GPU on which each format takes so many seconds a layer; None: one of its checks is red."""

    def run(request: Any, spec: Any, _source: str, _file: Path | None) -> ValidationReport:
        group = choose_group(spec, request.layer_group)
        if seen is not None:
            seen.append(request)
        results = []
        for name in request.formats:
            took = seconds.get(name, 1e-3)
            checks = (Check(name="codes bit-exact", passed=took is not None, detail=""),)
            times = took and Times(
                fused_seconds=took, unfused_seconds=None, bytes_read=1, bytes_per_second=1.0, roof_share=1.0,
                speedup=1.0, fusion_gain=None, spread=0.0, config="",
            )  # fmt: skip
            results.append(
                FormatResult(
                    format=name, status="failed" if took is None else "ok", checks=checks, times=times or None,
                    cache_bytes=8, planned_bytes=8,
                )
            )  # fmt: skip
        return ValidationReport(
            command="", created="", request=request, device=DeviceInfo(name="NVIDIA H200", versions={}), tensors="",
            layer_group=group.name, layers=len(spec.positions(group)), results=tuple(results), complete=complete,
        )  # fmt: skip

    return run


def predicted(tight: Recommendation) -> float:
    assert tight.recommended and tight.recommended.candidate.attention.seconds
    return tight.recommended.candidate.attention.seconds / 32


def second(result: Recommendation) -> str:
    """The runner-up, as validate is asked for it."""
    assert result.runner_up
    c = result.runner_up.candidate
    return str(c.k) if c.k == c.v else f"{c.k} / {c.v}"


def on_cuda(result: Recommendation, how: Any, monkeypatch: pytest.MonkeyPatch, every: Path | None = None) -> Verified:
    """As on a machine with a GPU of the right size."""
    from kvplan.validate import device

    monkeypatch.setattr(device, "free_bytes", lambda _: None)
    return verified(result, how, every)


def test_both_are_run_as_they_were_asked_for(tight: Recommendation, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    found = on_cuda(tight, machine({"int8": predicted(tight)}, seen), monkeypatch)
    assert seen[0].formats == ("bf16", "int8", second(tight))
    assert (seen[0].context, seen[0].batch, seen[0].device) == (32768, 40, "cuda")
    assert found.verdict == "confirmed" and [r.format for r in found.rows] == ["int8", second(tight)]
    assert found.rows[0].off == pytest.approx(0, abs=1e-9) and found.rows[0].bytes_equal


def test_a_red_check_changes_the_verdict(tight: Recommendation, monkeypatch: pytest.MonkeyPatch) -> None:
    found = on_cuda(tight, machine({"int8": None, second(tight): 6e-4}), monkeypatch)
    assert found.verdict == "changed" and f"take {second(tight)}" in found.reason
    assert "red codes bit-exact" in found.rows[0].note
    both = on_cuda(tight, machine({"int8": None, second(tight): None}), monkeypatch)
    assert both.verdict == "not decided"


def test_a_wrong_prediction_is_said(tight: Recommendation, monkeypatch: pytest.MonkeyPatch) -> None:
    found = on_cuda(tight, machine({"int8": 1.5 * predicted(tight)}), monkeypatch)
    assert found.verdict == "not decided" and "-33% off" in found.reason
    near = on_cuda(tight, machine({"int8": 1.2 * predicted(tight)}), monkeypatch)
    assert near.verdict == "confirmed"


def test_a_latency_bound_is_held_to_the_measured_time(monkeypatch: pytest.MonkeyPatch) -> None:
    result = recommend(RecommendRequest(model="llama-3.1-8b", gpu="h200", context=32768, concurrency=27, slo_itl_ms=18))
    fast, slow = (on_cuda(result, machine({"int8": x * predicted(result)}), monkeypatch) for x in (1.0, 1.1))
    assert fast.verdict == "confirmed" and slow.verdict == "changed" and "above the bound 18 ms" in slow.reason


def test_the_order_by_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    result = recommend(RecommendRequest(model="llama-3.1-8b", gpu="h200", context=32768, concurrency=27))
    right, wrong = (
        on_cuda(result, machine({"bf16": predicted(result), "int8": x * predicted(result)}), monkeypatch).comparison
        for x in (0.52, 1.1)
    )
    assert right.holds and not right.swapped
    assert wrong.swapped == (("bf16 (attention)", "int8 (attention)"),)


def test_what_a_comparison_judges() -> None:
    def row(name: str, predicted: float | None, measured: float | None, group: str = "full") -> Row:
        off = predicted / measured - 1 if predicted and measured else None
        return Row(name, group, 8, True, predicted, measured, off, True, "")

    found = compare([row("a", 1.0, 1.0), row("b", 0.9, 1.04), row("c", 0.9, 1.1), row("d", 1.3, 1.0, "sliding")])
    # b is 4% slower than a: no order. c is 10% slower and predicted faster. Groups are not compared.
    assert found.swapped == (("a (full)", "c (full)"),)
    assert found.wide == ("d (sliding)",) and not found.holds
    assert compare([row("a", None, 1.0)]).unpredicted == ("a (full)",) and not compare([row("a", None, 1.0)]).holds
    assert compare([row("a", 1.0, None), row("b", 1.2, 1.0)]).holds


def test_each_layer_group_of_a_sliding_model_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """8 full and 40 sliding layers: a step reads both, and neither is predicted with the other's rows."""
    seen: list[Any] = []
    result = recommend(RecommendRequest(model="gemma-3-12b", gpu="h200", context=32768, concurrency=16))
    assert result.recommended and result.recommended.candidate.attention.seconds
    found = on_cuda(result, machine({}, seen), monkeypatch)
    assert [r.layer_group for r in seen] == ["full", "sliding"]
    full, sliding = (next(r for r in found.rows if r.layer_group == name) for name in ("full", "sliding"))
    assert (full.layers, sliding.layers) == (8, 40) and full.predicted_seconds and sliding.predicted_seconds
    assert full.predicted_seconds > 10 * sliding.predicted_seconds
    step = 8 * full.predicted_seconds + 40 * sliding.predicted_seconds
    assert step == pytest.approx(result.recommended.candidate.attention.seconds)
    # As fast as predicted in one group, far slower in the other.
    name = full.format
    once = iter((full.predicted_seconds, 3 * sliding.predicted_seconds))
    wrong = on_cuda(result, lambda *asked: machine({name: next(once)})(*asked), monkeypatch)
    assert wrong.verdict == "not decided" and "-67% off" in wrong.reason


def test_a_lost_device_leaves_the_other_groups_out(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    result = recommend(RecommendRequest(model="gemma-3-12b", gpu="h200", context=32768, concurrency=16))
    found = on_cuda(result, machine({}, seen, complete=False), monkeypatch)
    assert len(seen) == 1 and found.verdict == "not decided"
    assert all("the device was lost" in r.note for r in found.rows if r.layer_group == "sliding")


def test_every_format_with_kernels(tight: Recommendation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    found = on_cuda(tight, machine({"int8": predicted(tight)}, seen), monkeypatch, tmp_path)
    names = [r.format for r in found.rows]
    assert names[:2] == ["int8", second(tight)] and sorted(names) == sorted(seen[0].formats)
    assert len(names) > len(EVERY) > 20 and seen[0].phases == ("decode",)
    # All but int8 take 1 ms here.
    assert "int8 (attention)" not in found.comparison.wide and "int4,asym (attention)" in found.comparison.wide
    assert found.verdict == "confirmed" and not found.comparison.holds


@pytest.mark.parametrize("model", ["deepseek-v2-lite", "mistral-7b-v0.1"])
def test_every_format_of_other_models_is_predicted(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kvplan.recommend import timemodel

    latents = {f"latent {f}": timemodel.Speed(1e-5, 0.9, "here", None, 2e14) for f in ("bf16", "fp8_ds_mla")}
    speeds = timemodel.measured_speeds() | latents
    monkeypatch.setattr(timemodel, "measured_speeds", lambda: speeds)
    result = recommend(RecommendRequest(model=model, gpu="h200", context=4096, concurrency=64))
    found = on_cuda(result, machine({}), monkeypatch, tmp_path)
    assert len(found.rows) >= 2 and not found.comparison.unpredicted


def test_an_engine_s_formats_are_run_in_kvplan_s_spelling(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    result = recommend(RecommendRequest(model="llama-3.1-8b", gpu="h200", engine="vllm", context=32768, concurrency=40))
    on_cuda(result, machine({}, seen), monkeypatch)
    assert seen[0].formats[1] == "int8"


def test_a_runner_up_without_a_kernel_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    result = recommend(RecommendRequest(model="qwen2.5-7b", gpu="l4", engine="llamacpp", context=32768, concurrency=7))
    assert result.runner_up and "q5" in (result.runner_up.candidate.v or "")
    found = on_cuda(result, machine({}), monkeypatch)
    assert found.rows[0].format == "int8:group/32" and found.rows[0].passed
    assert "not run: " in found.rows[1].note and not found.rows[1].passed


def test_stored_reports_beside_the_time_model() -> None:
    """tools/compare_times.py on what was measured on an H200."""
    tool = runpy.run_path(str(REPO / "tools" / "compare_times.py"))
    found = tool["compared"](REPO / "docs" / "results" / "validate_llama-3.1-8b_32k_x16_h200.json")
    assert {r["format"] for r in found["rows"] if r["off"] is not None} >= {"bf16", "int8", "fp8_e4m3"}
    assert found["holds"] and all(r["measured_seconds"] > 1e-4 for r in found["rows"])
    stored = json.loads((REPO / "docs" / "results" / "recommend_times_h200.json").read_text(encoding="utf-8"))
    assert len(stored["reports"]) >= 7 and sum(len(r["rows"]) for r in stored["reports"]) > 25
    assert all(not r["comparison"]["wide"] and not r["comparison"]["swapped"] for r in stored["reports"])


@pytest.mark.parametrize("model", ["deepseek-v2-lite", "deepseek-v3"])
def test_what_was_verified_on_a_gpu(model: str) -> None:
    path = REPO / "docs" / "results" / f"recommend_verify_{model}_h200.json"
    stored = json.loads(path.read_text(encoding="utf-8"))["verification"]
    assert stored["device"] == "NVIDIA H200" and {r["format"] for r in stored["rows"]} == {"bf16", "fp8_ds_mla"}
    assert all(r["passed"] and abs(r["off"]) < 0.25 for r in stored["rows"])
    assert not any(stored["comparison"].values())


def test_nothing_to_verify() -> None:
    result = recommend(RecommendRequest(model="llama-3.1-8b", gpu="h200", context=32768, concurrency=500))
    with pytest.raises(UnsupportedError, match="nothing is recommended"):
        verified(result, machine({}))


def test_the_command(
    tight: Recommendation, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvplan.validate import device

    argv = ["recommend", "llama-3.1-8b", "--gpu", "h200", "--context", "32k", "--concurrency", "40", "--verify"]
    assert main(argv) == ExitCode.NO_DEVICE
    capsys.readouterr()
    monkeypatch.setattr(device, "require", lambda _: None)
    monkeypatch.setattr(device, "free_bytes", lambda _: None)
    monkeypatch.setattr(subject, "measure", machine({"int8": predicted(tight)}))
    assert main(argv) == ExitCode.OK
    shown = capsys.readouterr().out
    assert "Verified on NVIDIA H200, 40 x 32,768 tokens, one layer: confirmed" in shown and "us predicted" in shown
    monkeypatch.setattr(subject, "measure", machine({"int8": None}))
    assert main([*argv, "--json"]) == ExitCode.CHECK_FAILED
    data = json.loads(capsys.readouterr().out)
    assert data["verification"]["verdict"] == "changed" and data["recommendation"]["recommended"]
    assert data.pop("schema") == ANSWERS["verification"][0]
    ANSWERS["verification"][1].model_validate_json(json.dumps(data))


def test_the_real_measurement_is_validate_s_last_report(tight: Recommendation, monkeypatch: pytest.MonkeyPatch) -> None:
    from kvplan.validate import launch

    run = machine({"int8": predicted(tight)})

    def start(request: Any, spec: Any, source: str, command: str, *_: Any) -> Any:
        assert source == "llama-3.1-8b" and command.startswith("kvplan")
        yield run(request.model_copy(update={"formats": request.formats[:1]}), spec, source, None)
        yield run(request, spec, source, None)

    monkeypatch.setattr(launch, "start", start)
    found = on_cuda(tight, subject.measure, monkeypatch)
    assert found.verdict == "confirmed" and all(r.passed for r in found.rows)


def test_a_second_run_goes_on_with_the_folder(
    tight: Recommendation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is finished is not run again; a complete file is only compared."""
    from kvplan.validate import device, launch

    run, previous = machine({"int8": predicted(tight)}), []
    monkeypatch.setattr(device, "device_info", lambda _: DeviceInfo(name="NVIDIA H200", versions={}))

    def start(request: Any, spec: Any, source: str, _command: str, _say: Any, before: Any) -> Any:
        previous.append(before)
        report = run(request, spec, source, None)
        if before is None:
            yield report.model_copy(update={"results": report.results[:3], "complete": False})
            raise KeyboardInterrupt
        yield report

    monkeypatch.setattr(launch, "start", start)
    with pytest.raises(KeyboardInterrupt):
        on_cuda(tight, subject.measure, monkeypatch, tmp_path)
    file = tmp_path / "validate_llama-3.1-8b_attention.json"
    assert len(ValidationReport.model_validate_json(file.read_text()).results) == 3
    found = [on_cuda(tight, subject.measure, monkeypatch, tmp_path) for _ in range(2)]
    assert found[0] == found[1] and len(previous) == 2 and len(previous[1].results) == 3
