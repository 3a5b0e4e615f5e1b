"""What a report of several phases looks like, drawn from a file; files of before phases still load."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvplan.cli.main import main
from kvplan.errors import ExitCode
from kvplan.validate.report import ValidationReport

RESULTS = Path(__file__).parents[2] / "docs" / "results"
CLIPPED = {"per_head": [0.0, 0.002], "mean": 0.001, "max": 0.002}


def check(name: str, passed: bool = True) -> dict[str, Any]:
    return {"name": name, "passed": passed, "detail": "7 of 9"}


def report(**changes: Any) -> dict[str, Any]:
    path = {"name": "one token", "seconds": 7.25e-6, "spread": 0.01}
    phases = [
        {"name": "decode", "status": "error", "error": "out of GPU memory: x", "verdict": "attention latency: no"},
        {"name": "append", "status": "failed", "checks": [check("pieces", False)], "paths": [path], "verdict": "a"},
    ]
    result = {
        "format": "int8:head", "status": "error", "checks": [check("codes")], "phases": phases,
        "clipped_fraction": {"k": 0.001}, "clipping": {"k": CLIPPED}, "verdicts": ["attention latency: no"],
        "drift": {"clipped": {"v": CLIPPED}, "output_error": 0.3, "output_error_without": 0.02, "flagged": True},
    }  # fmt: skip
    request = {
        "model": "m", "context": 8, "batch": 1, "formats": ["int8:head"], "device": "cpu", "page_size": 128, "seed": 1,
        "dtype": "bf16", "phases": ["decode", "append"], "not_for_model": {"int4,rot": "no Hadamard"},
    }  # fmt: skip
    made = {
        "schema": "kvplan.validation/1", "command": "x", "created": "x", "request": request,
        "device": {"name": "d", "versions": {}}, "tensors": "t", "layer_group": "g", "layers": 2, "results": [result],
    }  # fmt: skip
    return made | changes


def shown(tmp_path: Path, data: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> str:
    path = tmp_path / "r.json"
    path.write_text(json.dumps(data))
    assert main(["show", str(path)]) == ExitCode.OK
    return capsys.readouterr().out


def test_every_phase_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(tmp_path, report(), capsys)
    rows = [line.split() for line in text.splitlines()]
    assert ["int8:head", "1", "of", "2,", "error", "-", "-", "-"] in rows
    assert ["int8:head", "append", "one", "token", "7.2"] in rows
    assert "decode: error: out of GPU memory: x" in text and "RED pieces" in text and "ok  codes" in text
    assert "K values outside the calibrated range: 0.1000%, at most 0.2000% of a head (by head: 0.000% 0.200%)" in text
    assert "V values clipped 0.1000%" in text and "output error 2.0e-02 -> 3.0e-01" in text
    assert "not for this model: int4,rot: no Hadamard" in text and "--resume" in text


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("table", "the table's"),
        ("generic", "the table's, which was not measured on this GPU"),
        ("searched", "searched on this GPU in this run"),
        ("kept", "searched on this GPU before, from the cache folder"),
    ],
)
def test_where_the_launch_shape_comes_from(
    source: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = report()
    path = {"name": "fused", "seconds": 1e-6, "spread": 0.01}
    phase = {"name": "decode", "status": "ok", "paths": [path], "launch": {"shape": "tile 64", "source": source}}
    data["results"][0]["phases"] = [phase]
    assert f"decode, launch: tile 64; {words}\n" in shown(tmp_path, data, capsys)
    # Where nothing was timed the shape says nothing.
    phase["paths"] = []
    assert "launch:" not in shown(tmp_path, data, capsys)


def test_a_complete_report_asks_for_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "--resume" not in shown(tmp_path, report(complete=True), capsys)


def test_unknown_phases_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = report()
    data["results"][0]["phases"][0]["name"] = "decide"
    (tmp_path / "r.json").write_text(json.dumps(data))
    assert main(["show", str(tmp_path / "r.json")]) == ExitCode.INPUT
    assert "phases.0.name" in capsys.readouterr().err


@pytest.mark.parametrize("path", sorted(RESULTS.glob("validate_*.json")), ids=lambda p: p.stem)
def test_stored_reports_load(path: Path) -> None:
    report = ValidationReport.model_validate_json(path.read_text())
    assert report.passed or ("partial" in path.name and all(r.status == "ok" for r in report.results))
