"""The append and dequantise kernels compile for sm_90 without a GPU, on every Triton at hand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
NAMED = os.environ.get("KVPLAN_TRITON_DIRS", "").split(os.pathsep)
# Folders that hold another Triton each, as in test_aot.py; "" is the installed one.
TRITONS = ["", *([f for f in NAMED if f] or map(str, sorted((REPO / ".triton").glob("*/"))))]


@pytest.mark.parametrize("folder", TRITONS)
def test_kernels_compile_ahead_of_time_for_sm_90(folder: str, tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    env["PYTHONPATH"] = os.pathsep.join([*([folder] if folder else []), str(REPO), str(REPO / "kernels")])
    env["TRITON_CACHE_DIR"] = str(tmp_path)
    command = [sys.executable, "-m", "kvplan_kernels.store.aot_check"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    rows = json.loads(done.stdout)["kernels"]
    assert len(rows) == 23
    assert all(row["spills"] == 0 for row in rows), rows
