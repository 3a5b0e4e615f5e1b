"""accuracy.py golden and logs: nothing differs, little is out of scope, and both can fail."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

REPO = Path(__file__).resolve().parents[2]
TOOLS = REPO / "tools"
FRAME = ("__init__.py", "common.py", "run.py")
ADAPTERS = [p for folder in ("golden", "logs") for p in sorted((TOOLS / folder).rglob("*.py")) if p.name not in FRAME]
ARITHMETIC = (ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow, ast.LShift, ast.RShift, ast.MatMult)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(TOOLS / "accuracy.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=REPO, check=False)


@pytest.mark.parametrize("path", ADAPTERS, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_adapters_map_and_compare_but_compute_nothing(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.BinOp | ast.AugAssign):
            assert not isinstance(node.op, ARITHMETIC), f"line {node.lineno}"


@pytest.fixture(scope="module")
def measured(shared: Path) -> Any:
    sys.path.insert(0, str(TOOLS))
    try:
        import engine_accuracy

        return engine_accuracy.measure(shared / "data")
    finally:
        sys.path.remove(str(TOOLS))


@pytest.mark.slow
def test_golden_figures(measured: Any) -> None:
    files = measured["golden"]["files"]
    assert {name.removesuffix("_golden.json") for name in files} == {
        "vllm", "sglang", "hf", "llamacpp", "mlx", "openvino"
    }  # fmt: skip
    for name, count in files.items():
        assert count["different"] == 0, name
        assert count["not_in_scope_percent"] <= 3, name
        assert count["refusals_equal"] + sum(count["rules"].values()) >= count["refusals"], name


@pytest.mark.slow
def test_printed_logs(measured: Any) -> None:
    engines = measured["logs"]["engines"].values()
    assert sum(e["independent"] for e in engines) == 39
    assert sum(e["independent_reproduced"] for e in engines) >= 36
    assert sum(e["independent_different"] for e in engines) == 0


@pytest.mark.slow
def test_the_stored_result_is_what_is_measured(measured: Any) -> None:
    stored = json.loads((REPO / "docs" / "results" / "engine_accuracy.json").read_text(encoding="utf-8"))
    assert stored == measured, "run python tools/engine_accuracy.py ../shared/data"


def test_a_wrong_figure_is_seen(shared: Path, tmp_path: Path) -> None:
    """One record with another number: different, and the exit code says so."""
    data = json.loads((shared / "data" / "vllm_golden.json").read_text(encoding="utf-8"))
    record = next(r for r in data["records"] if r["kind"] == "sliding_window")
    record["outputs"]["max_memory_usage_bytes"] += 1
    file = tmp_path / "vllm_golden.json"
    file.write_text(json.dumps(data | {"records": [record]}), encoding="utf-8")
    done = run("golden", str(file), "--json")
    summary = json.loads(done.stdout)["summary"]
    assert (done.returncode, summary["different"], summary["equal"]) == (1, 1, 0)


def test_a_file_of_no_engine_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "golden.json"
    file.write_text('{"meta": {"engine": "none"}, "records": []}', encoding="utf-8")
    done = run("golden", str(file))
    assert done.returncode == 1 and "no engine claims this file" in done.stderr
