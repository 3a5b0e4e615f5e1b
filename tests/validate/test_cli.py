"""`kvplan validate` as a user runs it: the interpreter run, its report, bad input, interruption."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from kvplan.cli.main import main
from kvplan.errors import ExitCode
from kvplan.validate import launch
from kvplan.validate.report import ValidationReport

SMALL = ["validate", "smollm2-135m", "--device", "cpu", "--context", "70", "--batch", "1"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One real run in Triton's interpreter, all five formats, through the command line."""
    out = tmp_path_factory.mktemp("validate") / "report.json"
    code = main([*SMALL, "--out", str(out)])
    return {"code": code, "report": json.loads(out.read_text())}


@pytest.mark.slow
def test_all_checks_are_green(run: dict[str, Any]) -> None:
    report = ValidationReport.model_validate(run["report"])
    assert run["code"] == ExitCode.OK and report.passed
    assert [r.format for r in report.results] == ["bf16", "int8", "int8:head", "fp8_e4m3", "fp8_e4m3:head"]
    for result in report.results:
        names = {c.name for c in result.checks}
        assert {"codes bit-exact", "bytes allocated = bytes planned", "one flipped V code obeyed"} <= names
        assert ("doubled K scales obeyed" in names) == (result.format != "bf16")
        assert [p.name for p in result.phases] == ["decode"] and result.phases[0].status == "ok"
        assert result.kernel_error == result.phases[0].kernel_error
        assert result.kernel_error is not None and 0 < result.kernel_error < 2e-3
        assert result.cache_bytes == result.planned_bytes


@pytest.mark.slow
def test_kivi_and_scales_by_channel_pass_all_proofs(capsys: pytest.CaptureFixture[str]) -> None:
    """The residual is part of the bytes planned, allocated and read."""
    argv = [*SMALL[:4], "--context", "40", "--batch", "1", "--kv", "kivi4/16,recent=32", "--json"]
    assert main(argv) == ExitCode.OK
    report = ValidationReport.model_validate_json(capsys.readouterr().out)
    kivi = report.results[1]
    assert (
        report.passed
        and kivi.format == "kivi4/16,recent=32"
        and len(kivi.checks) == 7
        and len(kivi.phases[0].checks) == 1
    )
    assert "one flipped recent V value obeyed" in {c.name for c in kivi.checks}
    # 30 layers, 3 heads: a page of 128 tokens with codes and metadata, and 32 rows of K and V that wait in 16 bit.
    assert kivi.cache_bytes == 30 * 3 * (128 * (2 * 32 + 2 * 16) + 2 * 32 * 64 * 2)


@pytest.mark.slow
def test_kernel_error_and_format_error_are_apart(run: dict[str, Any]) -> None:
    by_format = {r["format"]: r for r in run["report"]["results"]}
    int8 = by_format["int8"]["format_error"]
    assert set(int8) == {"k_only", "v_only", "both"}
    assert int8["v_only"]["logit"]["mean"] == 0 and int8["v_only"]["output"]["mean"] > 0
    assert int8["k_only"]["softmax_tv"]["mean"] > 0
    assert int8["both"]["output"]["p99"] >= int8["both"]["output"]["mean"]
    # The format's error is far above the kernel's: they must not be one number.
    assert int8["both"]["output_all_rows"] > 5 * by_format["int8"]["kernel_error"]


@pytest.mark.slow
def test_fp8_shows_both_ways_of_computing(run: dict[str, Any]) -> None:
    for result in run["report"]["results"]:
        errors = {e["name"]: e for e in result["phases"][0]["path_errors"]}
        if not result["format"].startswith("fp8_e4m3"):
            assert not errors
            continue
        assert set(errors) == {"16-bit compute", "fp8 domain"}
        assert errors["16-bit compute"]["kernel"] == result["kernel_error"]
        # Rounding queries and probabilities costs something, and it is not the kernel's own error.
        assert errors["fp8 domain"]["output"] > errors["16-bit compute"]["output"] > errors["fp8 domain"]["kernel"]


@pytest.mark.slow
def test_no_speed_on_the_cpu(run: dict[str, Any]) -> None:
    report = run["report"]
    assert report["roof"] is None and all(r["times"] is None for r in report["results"])
    assert any("speed: not measured" in note for note in report["notes"])
    for result in report["results"]:
        capacity, latency, *warnings, throughput = result["verdicts"]
        assert all(w.startswith("warning: ") for w in warnings)
        assert capacity.startswith("capacity:") and latency == "attention latency: not measured here"
        assert throughput == "end-to-end throughput: not measured here"
    assert "do not rank quality" in report["tensors"]


@pytest.mark.slow
def test_static_formats_count_clipped_values(run: dict[str, Any]) -> None:
    by_format = {r["format"]: r for r in run["report"]["results"]}
    assert set(by_format["int8:head"]["clipped_fraction"]) == {"k", "v"}
    assert by_format["int8"]["clipped_fraction"] == {} and by_format["int8"]["drift"] is None
    clipping = by_format["int8:head"]["clipping"]["k"]
    assert len(clipping["per_head"]) == 3 and clipping["max"] == max(clipping["per_head"])
    drift = by_format["int8:head"]["drift"]
    assert drift["flagged"] and drift["output_error"] > drift["output_error_without"]
    assert any("rows that double after calibration" in v for v in by_format["int8:head"]["verdicts"])


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.mark.parametrize(
    ("argv", "code", "message", "hint"),
    [
        ([*SMALL[:2]], ExitCode.NO_DEVICE, "no CUDA GPU", "--device cpu"),
        (["validate", "lama-3.1-8b", "--device", "cpu"], ExitCode.INPUT, "lama-3.1-8b", "llama-3.1-8b"),
        ([*SMALL, "--kv", "int9"], ExitCode.USAGE, "int9", "int8"),
        ([*SMALL, "--kv", "int6"], ExitCode.UNSUPPORTED, "int6", "int8"),
        ([*SMALL[:4], "--context", "32k"], ExitCode.USAGE, "above the maximum", "8192"),
        ([*SMALL[:4], "--context", "8k"], ExitCode.USAGE, "too many", "2,048"),
        ([*SMALL[:4], "--context", "0"], ExitCode.USAGE, "context", "positive"),
        ([*SMALL, "--batch", "zwei"], ExitCode.USAGE, "zwei", "whole number"),
        (["validate", "deepseek-v4-flash", "--device", "cpu"], ExitCode.UNSUPPORTED, "no K and V", "llama-3.1-8b"),
        ([*SMALL, "--out", "no/such/folder/x.json"], ExitCode.INPUT, "folder does not exist", "folder"),
    ],
)
def test_bad_input(
    argv: list[str],
    code: ExitCode,
    message: str,
    hint: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(argv) == code
    captured = capsys.readouterr()
    error, fix = captured.err.strip().splitlines()
    assert error.startswith("error: ") and message in error
    assert fix.startswith("hint: ") and hint in fix
    assert captured.out == ""


@pytest.mark.parametrize("words", [[], ["--no-tune"]])
def test_no_tune_reaches_the_request(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(launch, "start", lambda request, *_: seen.append(request) or iter(()))
    main([*SMALL, *words])
    assert seen[0].tune == (not words)


def test_finished_formats_survive_an_interruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(
        request: Any, spec: Any, source: str, command: str, progress: Any, previous: Any
    ) -> Iterator[ValidationReport]:
        first = {"format": request.formats[0], "status": "ok"}
        yield ValidationReport.model_validate(
            {
                "command": command, "created": "2026-11-30T00:00:00+00:00", "request": request.model_dump(),
                "device": {"name": "none", "versions": {}}, "tensors": "none", "layer_group": "attention", "layers": 30,
                "results": [first],
            }
        )  # fmt: skip
        raise KeyboardInterrupt

    monkeypatch.setattr(launch, "start", interrupted)
    out = tmp_path / "report.json"
    assert main([*SMALL, "--out", str(out)]) == ExitCode.INTERRUPTED
    kept = json.loads(out.read_text())
    assert [r["format"] for r in kept["results"]] == ["bf16"] and kept["complete"] is False
    captured = capsys.readouterr()
    assert captured.err.splitlines()[0] == "error: interrupted"
    assert "bf16" in captured.out
    assert list(tmp_path.iterdir()) == [out]


def test_what_the_interpreter_needs_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """torch does not bring numpy, and Triton's interpreter cannot be imported without it."""
    from kvplan.validate import device

    found = device.importlib.util.find_spec
    monkeypatch.setattr(device.importlib.util, "find_spec", lambda name: None if name == "numpy" else found(name))
    assert main(SMALL) == ExitCode.NO_DEVICE
    error, hint = capsys.readouterr().err.splitlines()
    assert "numpy" in error and "kvplan-advisor[gpu]" in hint


def test_the_layer_group_is_chosen(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[Any] = []

    def start(request: Any, *_: Any) -> Iterator[ValidationReport]:
        seen.append(request)
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(launch, "start", start)
    argv = ["validate", "gemma-3-270m", "--device", "cpu", "--kv", "int8"]
    for more in ([], ["--layer-group", "sliding"]):
        assert main([*argv, *more]) == ExitCode.INTERRUPTED
    assert [r.layer_group for r in seen] == [None, "sliding"]
    capsys.readouterr()
    assert main([*argv, "--layer-group", "nope"]) == ExitCode.USAGE
    shown = capsys.readouterr().err
    assert "gemma-3-270m has no layer group 'nope' that kernels read" in shown and "full, sliding" in shown
