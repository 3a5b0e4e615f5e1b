"""Names, folders and imports."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kvplan.errors import InputError
from kvplan.specs import find
from kvplan.specs.device import adhoc_device
from kvplan.specs.load import list_devices, list_models, load_device, load_model
from kvplan.units import GIB, parse_bandwidth, parse_bytes

REPO = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "name",
    ["llama-3.1-8b", "LLAMA-3.1-8B", "meta-llama/Llama-3.1-8B-Instruct", "META-LLAMA/llama-3.1-8b-instruct"],
)
def test_model_names_in_any_case(name: str) -> None:
    assert load_model(name).id == "llama-3.1-8b"


def test_device_names_in_any_case() -> None:
    assert load_device("RTX-4090").id == "rtx-4090"


def test_a_prefix_of_a_hf_id_is_not_enough() -> None:
    with pytest.raises(InputError, match="no file and no model"):
        load_model("meta-llama/Llama-3.1-8B-Instr")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("llama3.1-8b", "did you mean llama-3.1-8b?"),
        ("someone/Llama-3.1-8B-GGUF", "did you mean llama-3.1-8b?"),
        ("nothing-like-it", "known: "),
        ("", "known: "),
    ],
)
def test_unknown_model(name: str, hint: str) -> None:
    with pytest.raises(InputError) as caught:
        load_model(name)
    assert repr(name) in caught.value.message
    assert hint in caught.value.hint
    assert "\n" not in caught.value.message + caught.value.hint


@pytest.mark.parametrize(
    ("name", "hint"), [("h100", "mean h100-80gb?"), ("rtx4090", "mean rtx-4090?"), ("tpu", "known")]
)
def test_unknown_device(name: str, hint: str) -> None:
    with pytest.raises(InputError, match="unknown GPU") as caught:
        load_device(name)
    assert hint in caught.value.hint


def test_names_never_leave_the_folder() -> None:
    for name in ("../models/llama-3.1-8b", "..", "models/../llama-3.1-8b"):
        with pytest.raises(InputError):
            load_device(name)


def test_a_file_beats_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = find.specs_root() / "models" / "smollm2-135m.yaml"
    shutil.copy(source, tmp_path / "mine.yml")
    shutil.copy(source, tmp_path / "llama-3.1-8b")
    monkeypatch.chdir(tmp_path)
    assert load_model("mine.yml").id == "smollm2-135m"
    assert load_model("./mine.yml").id == "smollm2-135m"
    # An id stays that id, whatever lies in the working folder.
    assert load_model("llama-3.1-8b").id == "llama-3.1-8b"


def test_lists_are_sorted_ids() -> None:
    assert list(list_models()) == sorted(list_models())
    assert list(list_devices()) == sorted(list_devices())


def test_adhoc_device() -> None:
    memory = parse_bytes("24GiB", "--gpu-memory")
    device = adhoc_device(memory, parse_bandwidth("936GB/s", "--bandwidth"))
    assert device.memory_bytes == 24 * GIB
    assert device.bandwidth_bytes_per_second == 936 * 10**9
    assert device.hardware_formats == ()


def _tree(root: Path, *folders: str) -> Path:
    for folder in folders:
        (root / folder / "models").mkdir(parents=True)
        (root / folder / "devices").mkdir()
    (root / "kvplan").mkdir(exist_ok=True)
    return root


def _root(monkeypatch: pytest.MonkeyPatch, package: Path) -> Path:
    monkeypatch.setattr(find, "_PACKAGE", package)
    return find.specs_root()


def test_checkout_prefers_the_folder_beside_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = _tree(tmp_path, "model_specs", "kvplan/_model_specs")
    (root / "pyproject.toml").touch()
    assert _root(monkeypatch, root / "kvplan") == root / "model_specs"


def test_wheel_ignores_a_foreign_folder_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = _tree(tmp_path, "model_specs", "kvplan/_model_specs")
    assert _root(monkeypatch, root / "kvplan") == root / "kvplan" / "_model_specs"


def test_missing_folder_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="missing"):
        _root(monkeypatch, _tree(tmp_path) / "kvplan")


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("kvplan.specs", "pydantic yaml"),
        ("kvplan.specs.find", "pydantic yaml"),
        ("kvplan.specs.load", "torch triton numpy textual rich click"),
    ],
)
def test_imports_stay_light(module: str, absent: str) -> None:
    code = f"import sys, {module}; print([m for m in {absent.split()!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=REPO, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
