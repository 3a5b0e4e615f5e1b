"""`recommend --verify`: what is run, and the verdict by what the machine says.

The measurement is a function from (request, spec, source) to a report; here it makes one up, or is Triton's
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
from kvplan.cli.verify import Verified, verified
from kvplan.errors import ExitCode, UnsupportedError
from kvplan.recommend import Recommendation, RecommendRequest, recommend
from kvplan.report.answers import ANSWERS
from kvplan.validate.report import Check, DeviceInfo, FormatResult, Times, ValidationReport

REPO = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def tight() -> Recommendation:
    return recommend(RecommendRequest(model="llama-3.1-8b", gpu="h200", context=32768, concurrency=40))


def machine(
    seconds: dict[str, float | None], seen: list[Any] | None = None
) -> Callable[[Any, Any, str], ValidationReport]:
    """A GPU on which each format takes so many seconds a layer; None: one of its checks is red."""

    def run(request: Any, _spec: Any, _source: str) -> ValidationReport:
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
            layer_group="attention", layers=32, results=tuple(results), complete=True,
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


def on_cuda(result: Recommendation, how: Any, monkeypatch: pytest.MonkeyPatch) -> Verified:
    """As on a machine with a GPU of the right size."""
    from kvplan.validate import device

    monkeypatch.setattr(device, "free_bytes", lambda _: None)
    return verified(result, how)


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
        on_cuda(result, machine({"bf16": predicted(result), "int8": x * predicted(result)}), monkeypatch)
        for x in (0.52, 1.1)
    )
    assert (right.same_order, wrong.same_order) == (True, False)


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
    found = tool["compare"](REPO / "docs" / "results" / "validate_llama-3.1-8b_32k_x16_h200.json")
    assert {r["format"] for r in found["rows"] if r["off"] is not None} >= {"bf16", "int8", "fp8_e4m3"}
    assert found["wide"] == [] and found["swapped"] == []
    assert all(r["measured"] > 1e-4 for r in found["rows"])
    stored = json.loads((REPO / "docs" / "results" / "recommend_times_h200.json").read_text(encoding="utf-8"))
    assert len(stored["reports"]) == 8 and sum(len(r["rows"]) for r in stored["reports"]) > 40
    assert all(not r["wide"] and not r["swapped"] for r in stored["reports"])


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
        yield run(request.model_copy(update={"formats": request.formats[:1]}), spec, source)
        yield run(request, spec, source)

    monkeypatch.setattr(launch, "start", start)
    found = on_cuda(tight, subject.measure, monkeypatch)
    assert found.verdict == "confirmed" and all(r.passed for r in found.rows)
