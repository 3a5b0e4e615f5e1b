"""tools/accuracy.py: it computes nothing itself, knows nothing of the answers, and the collected configs agree."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

REPO = Path(__file__).resolve().parents[2]
TOOL = REPO / "tools" / "accuracy.py"
ARITHMETIC = (ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow, ast.LShift, ast.RShift, ast.MatMult)
CALLS = ("prod", "mul", "lshift", "truediv", "floordiv")


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(TOOL), "configs", str(folder), *options]
    return subprocess.run(command, capture_output=True, text=True, cwd=REPO, check=False)


def test_no_byte_arithmetic_in_the_tool() -> None:
    for node in ast.walk(ast.parse(TOOL.read_text(encoding="utf-8"))):
        if isinstance(node, ast.BinOp | ast.AugAssign):
            assert not isinstance(node.op, ARITHMETIC), f"line {node.lineno}"
        if isinstance(node, ast.Name | ast.Attribute):
            name = node.id if isinstance(node, ast.Name) else node.attr
            assert name not in CALLS, f"line {node.lineno}"


def test_no_name_or_figure_of_the_facts_in_kvplan(shared: Path) -> None:
    """The answers must come from the configs: neither a checked model's name nor its totals are in the code."""
    index = json.loads((shared / "data" / "configs" / "index.json").read_text(encoding="utf-8"))
    records = json.loads((shared / "data" / "model_facts.json").read_text(encoding="utf-8"))["records"]
    names = (
        {entry["hf_id"] for entry in index} | {r["hf_id"] for r in records} | {a for r in records for a in r["aliases"]}
    )
    # A stem without a size in it (gpt2, dbrx) is a model type.
    stems = {entry["file"].removesuffix(".json") for entry in index}
    totals = {value for entry in index for value in entry["expected"].values()}
    totals |= {value for r in records for value in r["derived"].values()}
    # Small numbers and powers of two are everywhere.
    figures = {int(v) for v in totals if v == int(v) and v >= 10_000 and int(v).bit_count() > 1}
    for file in (REPO / "kvplan").rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        words = set(re.findall(r"[\w.-]+/[\w.-]+", text))
        assert not names & words, file
        if "importers" in file.parts:
            assert not {s for s in stems if re.search(r"\d(\.\d+)?b\b", s)} & set(re.findall(r"[\w.-]+", text)), file
        numbers = {int(n.replace("_", "").replace(",", "")) for n in re.findall(r"(?<![\w.])\d[\d_,]*\d(?![\w])", text)}
        assert not figures & numbers, (file, figures & numbers)


@pytest.fixture(scope="module")
def answer(shared: Path) -> dict[str, Any]:
    done = run(shared / "data" / "configs", "--json")
    assert done.stderr == ""
    found: dict[str, Any] = json.loads(done.stdout)
    different = found["summary"]["different"] + found["summary"]["refused"]
    assert done.returncode == (1 if different else 0)
    return found


def test_every_config_of_the_facts_is_imported(answer: dict[str, Any]) -> None:
    assert answer["summary"]["refused"] == 0
    assert len(answer["configs"]) == 109


def test_every_figure_is_equal(answer: dict[str, Any]) -> None:
    assert [row for row in answer["rows"] if row["verdict"] != "equal"] == []
    assert answer["summary"]["figures"] > 250


LLAMA = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 8, "num_key_value_heads": 2,
         "num_hidden_layers": 6, "max_position_embeddings": 512}  # fmt: skip


def folder(tmp_path: Path, expected: dict[str, Any], **changes: Any) -> Path:
    (tmp_path / "a.json").write_text(json.dumps(LLAMA), encoding="utf-8")
    (tmp_path / "b.json").write_text(json.dumps({**LLAMA, **changes}), encoding="utf-8")
    entries = [{"file": "a.json", "expected": {"kv_per_token": 384.0}}, {"file": "b.json", "expected": expected}]
    (tmp_path / "index.json").write_text(json.dumps(entries), encoding="utf-8")
    return tmp_path


def test_equal(tmp_path: Path) -> None:
    done = run(folder(tmp_path, {"kv_per_token": 384, "window_bytes": 0}))
    assert done.returncode == 0
    assert done.stdout.splitlines() == ["equal: a.json b.json", "refused 0, different 0, equal 2, figures 3"]


@pytest.mark.parametrize(
    ("expected", "line"),
    [
        ({"kv_per_token": 383}, "different: b.json kv_per_token: expected 383, found 384.0"),
        ({"kv_per_token": 384.0000001}, "different: b.json kv_per_token"),
        ({"new_key": 1}, "different: b.json new_key: expected 1, found None this tool does not know the key"),
    ],
)
def test_different(tmp_path: Path, expected: dict[str, Any], line: str) -> None:
    done = run(folder(tmp_path, expected))
    assert done.returncode == 1
    assert line in done.stdout
    assert "refused 0, different 1, equal 1, figures 2" in done.stdout


def test_refused(tmp_path: Path) -> None:
    done = run(folder(tmp_path, {"kv_per_token": 384}, model_type="unheard-of"), "--json")
    assert done.returncode == 1
    found = json.loads(done.stdout)
    assert found["configs"] == {"a.json": "equal", "b.json": "refused"}
    assert "model_type: unknown architecture" in found["rows"][1]["why"]
