"""Without a GPU the kernels run in Triton's interpreter, which must be chosen before Triton is imported.

Without torch or Triton there is nothing to test here; under KVPLAN_CI=1 that is a failure.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

collect_ignore_glob: list[str] = []

if find_spec("torch") and find_spec("triton"):
    import torch

    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"
        from kvplan_kernels.interpreter import replace_builtins_once

        replace_builtins_once()
    # Small tensors: more threads only spin, and other test processes want the cores.
    torch.set_num_threads(1)
elif os.environ.get("KVPLAN_CI") == "1":
    raise ImportError("torch and triton are needed under KVPLAN_CI=1: pip install the gpu extra of this checkout")
else:
    collect_ignore_glob.append("test_*.py")

REPO = Path(__file__).resolve().parents[2]
INSTALLED = "installed"


def tritons() -> list[str]:
    """The installed Triton and folders that hold another: KVPLAN_TRITON_DIRS, else what `make` put under .triton."""
    named = os.environ.get("KVPLAN_TRITON_DIRS")
    folders = named.split(os.pathsep) if named else [str(p) for p in sorted((REPO / ".triton").glob("*"))]
    found = [f for f in folders if (Path(f) / "triton").is_dir()]
    if os.environ.get("KVPLAN_CI") == "1" and len(found) < 2:
        raise RuntimeError(f"under KVPLAN_CI=1 the oldest and the newest Triton must be there, found {found}")
    return [INSTALLED, *found]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "triton_folder" in metafunc.fixturenames:
        metafunc.parametrize("triton_folder", tritons())


@pytest.fixture(scope="session")
def compile_ahead() -> Callable[..., dict[str, Any]]:
    """`compile_ahead(module, folder, options)`: what an ahead-of-time check prints with a folder's Triton, run once."""
    return cache(_compile_ahead)


def _compile_ahead(module: str, folder: str = INSTALLED, options: tuple[str, ...] = ()) -> dict[str, Any]:
    path = [] if folder == INSTALLED else [folder]
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join([*path, str(REPO), str(REPO / "kernels")])
    with tempfile.TemporaryDirectory() as fresh:
        environment["TRITON_CACHE_DIR"] = fresh
        done = subprocess.run([sys.executable, "-m", module, *options], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)
