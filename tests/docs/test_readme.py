"""The README shows what the commands print and what the stored results say."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

from kvplan.errors import ExitCode

REPO = Path(__file__).resolve().parents[2]
README = (REPO / "README.md").read_text(encoding="utf-8")
RESULTS = REPO / "docs" / "results"
MAIN = RESULTS / "validate_llama-3.1-8b_32k_x16_h200.json"


def test_the_table_of_a_validation_is_the_stored_result() -> None:
    table = runpy.run_path(str(REPO / "tools" / "readme_table.py"))["table"]
    assert table(json.loads(MAIN.read_text(encoding="utf-8"))) in README


def test_the_example_is_what_the_command_prints() -> None:
    found = re.search(r"`kvplan (estimate [^`]*)`\n\n```text\n(.*?)\n```", README, re.DOTALL)
    assert found
    command = [sys.executable, "-m", "kvplan", *found.group(1).split()]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "COLUMNS": "80"}, cwd=REPO)
    assert done.stdout.strip() == found.group(2).strip()


def test_stored_results_are_green_and_say_where_they_come_from() -> None:
    reports = sorted(RESULTS.glob("validate_*.json"))
    assert MAIN in reports
    for path in reports:
        report = json.loads(path.read_text(encoding="utf-8"))
        # A run that was cut off says so in its name; what is in it must be green all the same.
        assert report["complete"] != ("partial" in path.name), path
        assert report["results"] and all(r["status"] == "ok" for r in report["results"]), path
        assert report["command"].startswith("kvplan validate ") and report["device"]["name"] == "NVIDIA H200"
        assert set(report["device"]["versions"]) >= {"torch", "triton", "kvplan", "python", "cuda"}
        for result in report["results"]:
            assert all(c["passed"] for c in result["checks"]) and result["kernel_error"] < 2e-3
            assert result["cache_bytes"] == result["planned_bytes"]


def test_the_slice_s_targets_on_the_h200() -> None:
    report = json.loads(MAIN.read_text(encoding="utf-8"))
    by_format = {r["format"]: r["times"] for r in report["results"]}
    assert by_format["bf16"]["roof_share"] >= 0.85
    for name in ("int8", "int8:head", "fp8_e4m3", "fp8_e4m3:head"):
        assert by_format[name]["speedup"] >= 1.4, name


def test_every_exit_code_is_documented() -> None:
    line = re.search(r"Exit codes: (.*?)\.\n", README, re.DOTALL)
    assert line
    named = {int(n) for n in re.findall(r"(\d+) ", line.group(1))}
    assert named == {int(c) for c in ExitCode} - {int(ExitCode.INTERNAL)}


def test_no_other_place_is_named() -> None:
    assert not re.search(r"/(work|tmp|root)/", README)
