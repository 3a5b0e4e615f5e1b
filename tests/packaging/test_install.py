"""The specs and both import names are found from wheel, sdist, editable install and checkout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
PROBE = """
import json, importlib.util, kvplan
from kvplan.specs.find import specs_root
root = specs_root()
print(json.dumps({
    "package": kvplan.__file__, "root": str(root), "llama": (root / "models" / "llama-3.1-8b.yaml").is_file(),
    "kernels": importlib.util.find_spec("kvplan_kernels").origin,
}))
"""


@pytest.fixture(scope="module")
def dists(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """sdist built from the checkout, wheel built from that sdist: what an index would serve."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(REPO)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


def probe(cwd: Path, path: str | None) -> dict[str, str | bool]:
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    if path is not None:
        env["PYTHONPATH"] = path
    done = subprocess.run([sys.executable, "-c", PROBE], cwd=cwd, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["llama"], found
    return found


@pytest.mark.slow
def test_wheel(dists: Path, tmp_path: Path) -> None:
    [wheel] = dists.glob("kvplan_advisor-*.whl")
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
        names = archive.namelist()
    found = probe(tmp_path, str(site))
    assert Path(str(found["root"])) == site / "kvplan" / "_model_specs"
    assert str(found["kernels"]).startswith(str(site))
    entry = next(n for n in names if n.endswith("entry_points.txt"))
    assert "kvplan = kvplan.cli.main:main" in (site / entry).read_text()
    assert not any(n.startswith("tests/") for n in names)
    assert "kvplan/specs/importers/class_defaults.json" in names


@pytest.mark.slow
def test_sdist(dists: Path, tmp_path: Path) -> None:
    [sdist] = dists.glob("kvplan_advisor-*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    [tree] = tmp_path.iterdir()
    found = probe(tmp_path, os.pathsep.join([str(tree), str(tree / "kernels")]))
    assert Path(str(found["root"])) == tree / "model_specs"
    assert (tree / "LICENSE").is_file()


def test_editable(tmp_path: Path) -> None:
    found = probe(tmp_path, None)
    assert Path(str(found["root"])) == REPO / "model_specs"
    assert Path(str(found["package"])) == REPO / "kvplan" / "__init__.py"
    assert Path(str(found["kernels"])).is_relative_to(REPO / "kernels")


def test_checkout(tmp_path: Path) -> None:
    found = probe(REPO, os.pathsep.join([str(REPO), str(REPO / "kernels")]))
    assert Path(str(found["root"])) == REPO / "model_specs"
