"""The compiled copy of the shipped specs: current, complete, and never believed over an edited YAML file."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from kvplan.errors import InputError
from kvplan.specs import compiled, find
from kvplan.specs.device import DeviceSpec
from kvplan.specs.load import list_devices, list_models, load_device, load_model
from kvplan.specs.model import ModelSpec
from kvplan.specs.yamlfile import read_yaml

REPO = Path(__file__).resolve().parents[2]


def _tool() -> ModuleType:
    place = importlib.util.spec_from_file_location("compile_specs", REPO / "tools" / "compile_specs.py")
    assert place and place.loader
    module = importlib.util.module_from_spec(place)
    place.loader.exec_module(module)
    return module


def test_the_committed_file_is_current() -> None:
    """After a change of a spec: python tools/compile_specs.py."""
    expected: str = _tool().compile_specs(REPO / "model_specs")
    assert (REPO / "model_specs" / compiled.COMPILED).read_text(encoding="utf-8") == expected


def test_every_spec_comes_from_it_and_equals_its_yaml() -> None:
    for name in list_models():
        path = find.specs_root() / "models" / f"{name}.yaml"
        assert compiled.compiled("models", name) is not None
        assert load_model(name) == ModelSpec.model_validate(read_yaml(path).data)
    for name in list_devices():
        path = find.specs_root() / "devices" / f"{name}.yaml"
        assert compiled.compiled("devices", name) is not None
        assert load_device(name) == DeviceSpec.model_validate(read_yaml(path).data)


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the spec folder, compiled file included, that a test may edit."""
    shutil.copytree(REPO / "model_specs", tmp_path / "model_specs")
    (tmp_path / "pyproject.toml").touch()
    monkeypatch.setattr(find, "_PACKAGE", tmp_path / "kvplan")
    yield tmp_path / "model_specs" / "models"


def test_an_edited_yaml_file_counts(checkout: Path) -> None:
    path = checkout / "llama-3.1-8b.yaml"
    path.write_text(path.read_text().replace("kv_heads: 8", "kv_heads: 4").replace("NousResearch/", "edited/"))
    assert load_model("llama-3.1-8b").layer_groups[0].kv_heads == 4
    assert load_model("edited/Meta-Llama-3.1-8B-Instruct").id == "llama-3.1-8b"
    with pytest.raises(InputError):
        load_model("NousResearch/Meta-Llama-3.1-8B-Instruct")


def test_new_and_removed_yaml_files_count(checkout: Path) -> None:
    text = (checkout / "llama-3.1-8b.yaml").read_text()
    (checkout / "mine.yaml").write_text(text.replace("id: llama-3.1-8b", "id: mine").replace("meta-llama/", "me/"))
    (checkout / "qwen3-32b.yaml").unlink()
    assert "mine" in list_models() and "qwen3-32b" not in list_models()
    assert load_model("mine").id == load_model("me/Llama-3.1-8B").id == "mine"
    with pytest.raises(InputError):
        load_model("qwen3-32b")


def test_a_broken_edit_is_shown_with_its_line(checkout: Path) -> None:
    path = checkout / "llama-3.1-8b.yaml"
    path.write_text(path.read_text().replace("layers: 32", "layers: thirty"))
    with pytest.raises(InputError, match=r"llama-3.1-8b.yaml:\d+:\d+: layers: expected a whole number"):
        load_model("llama-3.1-8b")


def test_other_line_ends_are_no_edit(checkout: Path) -> None:
    path = checkout / "llama-3.1-8b.yaml"
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert compiled.compiled("models", "llama-3.1-8b") is not None


@pytest.mark.parametrize("content", [None, b"", b"[1]", b"{", b"\xff"])
def test_an_unusable_compiled_file_is_replaced_by_the_yaml(content: bytes | None, checkout: Path) -> None:
    path = checkout.parent / compiled.COMPILED
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    assert compiled.compiled("models", "llama-3.1-8b") is None
    assert load_model("llama-3.1-8b").layers == 32
    assert load_model("zai-org/glm-5.2").id == "glm-5.2"


@pytest.mark.parametrize("model", ["llama-3.1-8b", "zai-org/GLM-5.2", "DeepSeek-V4-Flash"])
def test_planning_a_shipped_model_reads_no_yaml(model: str) -> None:
    code = (
        "import sys; from kvplan.cli.main import main; "
        f"code = main(['estimate', {model!r}, '--gpu', 'h200', '--json']); "
        "print(code, 'yaml' in sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=REPO, capture_output=True, text=True, check=True)
    assert done.stderr.split() == ["0", "False"]
    assert json.loads(done.stdout)


def test_names_that_are_no_hf_id_open_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "_tables", lambda: pytest.fail("read"))
    for name in ("llama", "./a/b", "/a/b", "a/b/c", "../b", "a b/c"):
        assert compiled.by_hf_id(name) == ()
