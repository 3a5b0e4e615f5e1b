"""`kvplan capture`: the file holds what the model computes, and says where it comes from."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from kvplan.cli.main import main
from kvplan.errors import ExitCode
from kvplan.quality.manifest import Manifest


@pytest.fixture(scope="module")
def file(tiny: Path, prose: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("capture") / "kv.safetensors"
    argv = ["capture", str(tiny), "--text", str(prose), "--out", str(out), "--tokens", "50", "--queries", "4"]
    assert main([*argv, "--layers", "1", "--dtype", "fp32"]) == ExitCode.OK
    assert [p.name for p in out.parent.iterdir()] == [out.name]
    return out


def test_the_tensors_are_the_model_s(file: Path, tiny: Path, prose: Path) -> None:
    """K and V as the model's own cache keeps them."""
    from safetensors.torch import load_file
    from transformers import AutoTokenizer, LlamaForCausalLM

    found = load_file(file)
    assert {name: tuple(x.shape) for name, x in found.items()} == {
        "layers.1.q": (4, 4, 32), "layers.1.k": (2, 50, 32), "layers.1.v": (2, 50, 32)
    }  # fmt: skip
    ids = AutoTokenizer.from_pretrained(tiny)(prose.read_text()).input_ids[:50]
    model: Any = LlamaForCausalLM.from_pretrained(tiny, attn_implementation="eager")
    with torch.inference_mode():
        done = model(torch.tensor([ids]), output_attentions=True)
    layer = done.past_key_values.layers[1]
    torch.testing.assert_close(found["layers.1.k"], layer.keys[0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found["layers.1.v"], layer.values[0], rtol=1e-4, atol=1e-4)
    keys = found["layers.1.k"].repeat_interleave(2, 0)
    last = (keys @ found["layers.1.q"][:, -1, :, None])[..., 0] * 32**-0.5
    torch.testing.assert_close(last.softmax(-1), done.attentions[1][0, :, -1], rtol=1e-3, atol=1e-4)


def test_the_manifest(file: Path, prose: Path) -> None:
    from safetensors import safe_open

    with safe_open(file, "pt") as opened:
        text = opened.metadata()["kvplan"]
    manifest = Manifest.model_validate_json(text)
    assert manifest.text.sha256 == hashlib.sha256(prose.read_bytes()).hexdigest()
    assert manifest.layers[0].layer == 1 and manifest.layers[0].scale == pytest.approx(32**-0.5)
    raw = file.read_bytes()
    data = raw[8 + int.from_bytes(raw[:8], "little") :]
    assert manifest.tensors_sha256 == hashlib.sha256(data).hexdigest()
    assert manifest.queries == 4 and manifest.query_step == 11
    assert "square" not in json.dumps(manifest.model_dump())


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (["--layers", "2"], ExitCode.USAGE, "0 to 1"),
        (["--layers", "x"], ExitCode.USAGE, "no layer"),
        (["--first-token", "99999"], ExitCode.USAGE, "50 are needed"),
        (["--queries", "99"], ExitCode.USAGE, "99 queries, each 1 apart"),
    ],
)
def test_bad_input(
    argv: list[str], code: ExitCode, message: str, tiny: Path, prose: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    out = tmp_path / "x.safetensors"
    base = ["capture", str(tiny), "--text", str(prose), "--tokens", "50", "--queries", "4", "--out", str(out)]
    assert main([*base, *argv]) == code
    captured = capsys.readouterr()
    assert message in captured.err.splitlines()[0] and captured.err.splitlines()[1].startswith("hint: ")
    assert list(tmp_path.iterdir()) == []
