"""`kvplan specs`, and commands that are given a config.json instead of a name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvplan.cli.main import main
from kvplan.errors import ExitCode
from kvplan.specs.load import list_models, load_model

CONFIG = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 8, "num_hidden_layers": 6,
          "max_position_embeddings": 512, "torch_dtype": "bfloat16", "use_sliding_window": False}  # fmt: skip


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A folder with a config.json."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    return folder


def printed(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(list(argv)) == ExitCode.OK
    return capsys.readouterr().out


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "specs", "list")
    assert all(name in text for name in list_models())
    rows = json.loads(printed(capsys, "specs", "list", "--json"))["models"]
    assert [row["id"] for row in rows] == list(list_models())
    row = next(row for row in rows if row["id"] == "gemma-3-27b")
    assert row == {
        "id": "gemma-3-27b",
        "layers": 62,
        "kinds": "10 full, 52 sliding",
        "max_context": 131072,
        "confidence": "verified",
    }


@pytest.mark.parametrize("form", ["folder", "file"])
def test_import_writes_yaml_with_origins(form: str, config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = config if form == "folder" else config / "config.json"
    text = printed(capsys, "specs", "import", str(source))
    assert "id: tiny\n" in text
    assert "    q_heads: 8  # read: num_attention_heads\n" in text
    assert "    kv_heads: 8  # defaulted: no KV head count: one KV head for each query head\n" in text
    file = config / "spec.yaml"
    file.write_text(text, encoding="utf-8")
    assert load_model(str(file)) == load_model(str(source))


def test_show(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "spec.yaml"
    file.write_text(printed(capsys, "specs", "show", "gemma-3n-e4b"), encoding="utf-8")
    assert load_model(str(file)) == load_model("gemma-3n-e4b")


def test_check(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "specs", "check", str(config / "config.json"))
    assert text.startswith(f"{config / 'config.json'}: good: tiny, 6 layers, 6 full\n")
    assert "note: Not in the config, filled in: layer_groups.full.kv_heads = 8" in text
    (config / "config.json").write_text(json.dumps({**CONFIG, "num_hidden_layers": -1}), encoding="utf-8")
    assert main(["specs", "check", str(config / "config.json")]) == ExitCode.INPUT
    assert "num_hidden_layers: expected a number from 1 to" in capsys.readouterr().err


def test_estimate_of_a_config(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan: dict[str, Any] = json.loads(printed(capsys, "estimate", str(config), "--context", "512", "--json"))
    assert plan["kv"]["logical_bytes"] == 512 * 6 * 8 * (8 + 8) * 2
    assert plan["model"]["params_total"] is None
    assert any(note.startswith("Not in the config, filled in: ") for note in plan["notes"])
    from kvplan.plan import Plan

    assert Plan.load(json.dumps(plan)).to_dict() == plan


def test_weights_of_a_config_are_not_guessed(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", str(config), "--gpu", "h200"]) == ExitCode.USAGE
    assert "states no parameter count" in capsys.readouterr().err


def test_an_unknown_gguf_or_name_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF")
    for name in (str(file), str(tmp_path / "nothing.json"), str(tmp_path)):
        assert main(["specs", "show", name]) in (ExitCode.INPUT, ExitCode.UNSUPPORTED)
        assert [line.split(":")[0] for line in capsys.readouterr().err.splitlines()] == ["error", "hint"]


STATES = {"model_type": "mamba2", "hidden_size": 64, "num_hidden_layers": 3, "num_heads": 8, "head_dim": 16,
          "state_size": 8, "n_groups": 1, "conv_kernel": 4, "expand": 2, "dtype": "bfloat16"}  # fmt: skip


@pytest.mark.parametrize(
    ("options", "recurrent", "conv"),
    [((), 4, 2), (("--state-dtype", "bf16"), 2, 2), (("--state-dtype", "fp32", "--conv-dtype", "fp32"), 4, 4)],
)
def test_state_dtypes(
    options: tuple[str, ...], recurrent: int, conv: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(STATES), encoding="utf-8")
    plan = json.loads(printed(capsys, "estimate", str(file), "--context", "9", "--json", *options))
    assert plan["kv"]["state_bytes"] == 3 * (8 * 16 * 8 * recurrent + (128 + 2 * 8) * 3 * conv)


def test_state_dtypes_that_do_not_apply(capsys: pytest.CaptureFixture[str]) -> None:
    plan = json.loads(printed(capsys, "estimate", "llama-3.1-8b", "--state-dtype", "bf16", "--json"))
    assert any("have no effect: llama-3.1-8b has no states" in note for note in plan["notes"])
    assert main(["estimate", "llama-3.1-8b", "--conv-dtype", "int8"]) == ExitCode.USAGE
    assert "unknown conv-dtype 'int8'" in capsys.readouterr().err
