"""Pages: nothing loaded, every value escaped, the Pareto line right; pictures where matplotlib is installed."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from kvplan.cli.main import main
from kvplan.errors import ExitCode
from kvplan.quality.report import QualityReport
from kvplan.report.quality_page import _page, pareto, quality_page

STORED = Path(__file__).resolve().parents[2] / "docs" / "results" / "quality_smollm2.json"
DRAWS = importlib.util.find_spec("matplotlib") is not None
drawn = pytest.mark.skipif(not DRAWS, reason="matplotlib is not installed")


def test_the_pareto_line() -> None:
    points = [("a", 4.0, 1.0), ("b", 2.0, 3.0), ("c", 3.0, 3.0), ("d", 5.0, 1.0), ("e", 4.0, 2.0)]
    assert [p[0] for p in pareto(points)] == ["b", "a"]


def test_values_are_escaped() -> None:
    bad = "<script>alert('x')</script>"
    page = _page(bad, [(bad, "<svg/>")], [bad], [[bad]], [bad])
    assert "<script" not in page and page.count("&lt;script&gt;") == 6


def test_a_missing_library_is_said_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "matplotlib" else found(name))
    assert main(["quality", "--predict", "--out", str(tmp_path / "x.html")]) == ExitCode.UNSUPPORTED
    assert "matplotlib" in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_stored_reports_are_shown_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`show`, `report` and `schema` know both kinds."""
    predicted = tmp_path / "p.json"
    assert main(["quality", "--predict", "--kv", "int8", "--kv", "bf16", "--out", str(predicted)]) == ExitCode.OK
    drawn_first = capsys.readouterr().out
    assert main(["show", str(predicted)]) == ExitCode.OK
    assert capsys.readouterr().out == drawn_first
    for path, kind in ((STORED, "quality"), (predicted, "prediction")):
        data = json.loads(path.read_text(encoding="utf-8"))
        assert main(["report", str(path), "--md"]) == ExitCode.OK
        out = capsys.readouterr().out
        assert all(f["format"] in out.replace("\\", "") for f in data["formats"])
        assert main(["schema", kind]) == ExitCode.OK
        schema = json.loads(capsys.readouterr().out)
        assert set(data) == set(schema["properties"]) and schema["properties"]["schema"] == {"const": data["schema"]}
        row = "FormatQuality" if kind == "quality" else "Prediction"
        assert set(data["formats"][0]) == set(schema["$defs"][row]["properties"])
        del data["formats"][0]["kl_mean" if kind == "quality" else "kl"]
        (tmp_path / "bad.json").write_text(json.dumps(data))
        assert main(["show", str(tmp_path / "bad.json")]) == ExitCode.INPUT
        assert "formats.0.kl" in capsys.readouterr().err


@drawn
def test_a_measured_page() -> None:
    report = QualityReport.model_validate_json(STORED.read_text(encoding="utf-8"))
    bad = report.model_copy(update={"notes": ("<b>",), "request": report.request.model_copy(update={"model": "<i>"})})
    page = quality_page(bad)
    assert page.count("<svg") == 3 and "<b>" not in page and "<i>" not in page
    assert 'src="' not in page and "<script" not in page and "@import" not in page
    assert all(f"<td>{f.format}</td>" in page for f in report.formats)


@drawn
def test_a_predicted_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "x.html"
    assert main(["quality", "--predict", "--kv", "int8", "--kv", "kivi2", "--kv", "bf16", "--out", str(out)]) == 0
    page = out.read_text(encoding="utf-8")
    assert page.count("<svg") == 4 and "over the heads" in page and "by layer" in page
    stored = tmp_path / "x.json"
    assert main(["quality", "--predict", "--kv", "int8", "--out", str(stored)]) == ExitCode.OK
    capsys.readouterr()
    assert main(["report", str(stored), "--html"]) == ExitCode.OK
    assert capsys.readouterr().out.count("<svg") == 4
