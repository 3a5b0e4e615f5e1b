"""Interrupted runs go on, others are not mixed; memory that is short; `--kv all`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from kvplan.cli.main import main
from kvplan.errors import ExitCode, UsageError
from kvplan.report.validation import print_validation
from kvplan.specs.load import load_model
from kvplan.validate import device, launch
from kvplan.validate.candidates import EVERY
from kvplan.validate.memory import fit, memory_needed
from kvplan.validate.report import ValidationReport
from kvplan.validate.request import make_request

ROOT = Path(__file__).parents[2]
SHAPE = ["validate", "smollm2-135m", "--device", "cpu", "--context", "8", "--batch", "1"]
ONE = [*SHAPE, "--kv", "int8"]
TWO = [*SHAPE, "--kv", "int8", "--kv", "int4"]


def finished(path: Path) -> list[str]:
    return [r["format"] for r in json.loads(path.read_text())["results"]] if path.exists() else []


@pytest.mark.slow
def test_ctrl_c_keeps_what_is_done_and_resume_does_the_rest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "report.json"
    child = subprocess.Popen(
        [sys.executable, "-m", "kvplan", *ONE, "--out", str(out)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A test runner in the background of a shell ignores SIGINT, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "kernels")])},
    )
    while child.poll() is None and not finished(out):
        time.sleep(0.01)
    child.send_signal(signal.SIGINT)
    shown, errors = child.communicate()
    assert child.returncode == ExitCode.INTERRUPTED and "error: interrupted" in errors and "Traceback" not in errors
    kept = json.loads(out.read_text())
    assert not kept["complete"] and [r["format"] for r in kept["results"]] == ["bf16"] and "bf16" in shown
    assert list(tmp_path.iterdir()) == [out]
    assert main([*ONE, "--out", str(out), "--resume"]) == ExitCode.OK
    report = ValidationReport.model_validate_json(out.read_text())
    assert report.complete and [r.format for r in report.results] == ["bf16", "int8"]
    # The first format is the one that was kept, not another run of it.
    assert report.results[0].model_dump(mode="json") == kept["results"][0]
    assert "resumed" in capsys.readouterr().out
    assert main([*ONE, "--out", str(out), "--resume"]) == ExitCode.INPUT
    assert "is complete" in capsys.readouterr().err


def unfinished(path: Path, **changes: Any) -> Path:
    """A report of TWO with its first format done."""
    request = make_request(
        load_model("smollm2-135m"), context=8, batch=1, formats=("int8", "int4"), device="cpu", page_size=None, seed=1
    )
    report = ValidationReport(
        command="x", created="2026-11-30T00:00:00+00:00", request=request.model_copy(update=changes),
        device=device.device_info("cpu"), tensors="none", layer_group="attention", layers=30,
    )  # fmt: skip
    report.save(path)
    return path


@pytest.mark.parametrize(
    ("changes", "more", "message"),
    [
        ({"seed": 7}, [], "seed was 7, now 1"),
        ({"formats": ("bf16", "int8")}, [], "formats was bf16, int8, now bf16, int8, int4"),
        ({"model": "smollm2-360m"}, [], "model was smollm2-360m, now smollm2-135m"),
        ({}, ["--phase", "append"], "phases was decode, now append"),
        ({}, ["--context", "9"], "context was 8, now 9"),
    ],
)
def test_another_request_is_not_resumed(
    changes: dict[str, Any], more: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = unfinished(tmp_path / "r.json", **changes)
    before = path.read_text()
    assert main([*TWO, *more, "--out", str(path), "--resume"]) == ExitCode.INPUT
    error, hint = capsys.readouterr().err.strip().splitlines()
    assert message in error and "--resume" in hint and path.read_text() == before


def test_another_version_is_not_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = unfinished(tmp_path / "r.json")
    here = device.device_info("cpu")
    other = here.model_copy(update={"name": "other", "versions": {**here.versions, "triton": "9"}})
    monkeypatch.setattr(device, "device_info", lambda _device: other)
    assert main([*TWO, "--out", str(path), "--resume"]) == ExitCode.INPUT
    error = capsys.readouterr().err
    assert "version of triton was" in error and "now 9" in error and "device name was" in error


def test_resume_takes_the_shape_of_the_first_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, seen = unfinished(tmp_path / "r.json"), []
    monkeypatch.setattr(launch, "start", lambda request, *_: seen.append(request) or iter(()))
    words = [w for w in TWO if w not in ("--context", "8", "--batch", "1")]
    main([*words, "--out", str(path), "--resume"])
    assert (seen[0].context, seen[0].batch) == (8, 1)


def test_resume_needs_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TWO, "--resume"]) == ExitCode.USAGE
    assert main([*TWO, "--resume", "--out", str(tmp_path / "no.json")]) == ExitCode.INPUT
    (tmp_path / "x.json").write_text("{}")
    assert main([*TWO, "--resume", "--out", str(tmp_path / "x.json")]) == ExitCode.INPUT
    told = capsys.readouterr().err
    assert told.count("error: ") == told.count("hint: ") == 3


# Memory

LLAMA = load_model("llama-3.1-8b")


def llama() -> Any:
    return make_request(
        LLAMA, context=None, batch=None, formats=("int8",), device="cuda", page_size=None, seed=1, phases=("decode",)
    )


def test_what_nobody_gave_becomes_smaller_with_a_note() -> None:
    request = llama()
    need = memory_needed(request, LLAMA)
    assert fit(request, LLAMA, need, frozenset()) == request
    small = fit(request, LLAMA, need - 1, frozenset())
    assert (small.batch, small.context) == (8, 32768) and small.notes[0].startswith("batch 16 -> 8: about ")
    assert "are free" in small.notes[0]
    only_context = fit(request, LLAMA, need - 1, frozenset({"batch"}))
    assert (only_context.batch, only_context.context) == (16, 16384)
    both = fit(request, LLAMA, 2 * 10**9, frozenset())
    assert both.batch == 1 and both.context < 32768 and memory_needed(both, LLAMA) <= 2 * 10**9


def test_what_was_given_is_refused() -> None:
    with pytest.raises(UsageError) as refused:
        fit(llama(), LLAMA, 4 * 10**9, frozenset({"batch", "context"}))
    assert "GPU memory" in refused.value.message and "--batch" in refused.value.hint
    with pytest.raises(UsageError) as hopeless:
        fit(llama(), LLAMA, 10**6, frozenset())
    assert "larger" in hopeless.value.hint


def test_memory_is_fitted_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(device, "require", lambda _device: None)
    monkeypatch.setattr(device, "free_bytes", lambda _device: 5 * 10**9)
    monkeypatch.setattr(launch, "start", lambda request, *_: seen.append(request) or iter(()))
    main(["validate", "llama-3.1-8b", "--context", "32k"])
    assert seen[0].context == 32768 and seen[0].batch < 16 and seen[0].notes
    assert main(["validate", "llama-3.1-8b", "--context", "32k", "--batch", "16"]) == ExitCode.USAGE
    assert "hint: use --batch" in capsys.readouterr().err


# Every format


def test_all_is_every_kind_that_the_geometry_allows(capsys: pytest.CaptureFixture[str]) -> None:
    def every(model: str) -> Any:
        return make_request(
            load_model(model), context=64, batch=1, formats=("all",), device="cpu", page_size=None, seed=1
        )

    whole = every("llama-3.1-8b")
    assert len(whole.formats) == 1 + len(EVERY) and not whole.not_for_model
    part = every("phi-3-mini-128k")
    assert {"int4,rot", "int3,rot", "int2,rot"} <= set(part.not_for_model) and "int8" in part.formats
    assert len(part.formats) + len(part.not_for_model) == 1 + len(EVERY)
    assert all("Hadamard" in part.not_for_model[f] for f in ("int4,rot", "int2,rot"))
    report = ValidationReport(
        command="x", created="x", request=part, device=device.device_info("cpu"), tensors="none",
        layer_group="attention", layers=32,
    )  # fmt: skip
    print_validation(report)
    shown = capsys.readouterr().out
    assert "not for this model: int4,rot: " in shown and "--resume" in shown


def test_a_named_format_that_the_geometry_refuses_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["validate", "phi-3-mini-128k", "--device", "cpu", "--context", "16", "--kv", "int4,rot"]
    assert main(argv) == ExitCode.UNSUPPORTED
    assert "Hadamard" in capsys.readouterr().err
