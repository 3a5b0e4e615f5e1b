"""Static scales: from one text, margin and clipping from another, named as engines read them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from kvplan.cli.main import main
from kvplan.errors import ExitCode
from kvplan.report.answers import ANSWERS

LAYERS = 2


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Calibration rows within 1, held-out rows within 1.3, so that without a margin many are clipped."""
    from safetensors.torch import save_file

    g, folder = torch.Generator().manual_seed(0), tmp_path_factory.mktemp("scales")
    paths = folder / "a.safetensors", folder / "b.safetensors"
    for path, most in zip(paths, (1.0, 1.3), strict=True):
        tensors = {}
        for layer in range(LAYERS):
            for role, shape in (("q", (4, 8, 32)), ("k", (2, 64, 32)), ("v", (2, 64, 32))):
                x = torch.rand(*shape, generator=g) * 2 - 1
                tensors[f"layers.{layer}.{role}"] = x if role == "q" else x * most * (layer + 1)
        layers = [{"layer": i, "scale": 0.2, "sliding_window": None} for i in range(LAYERS)]
        manifest = {"schema": "kvplan.capture/1", "model": "m", "layers": layers, "text": {"name": path.stem}}
        save_file(tensors, path, {"kvplan": json.dumps(manifest)})
    return paths


def test_the_margin_is_what_the_other_text_needs(
    files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from safetensors.torch import load_file

    out = tmp_path / "s.safetensors"
    argv = ["calibrate", str(files[0]), "--held-out", str(files[1]), "--kv", "int8:tensor", "--out", str(out)]
    assert main([*argv, "--json"]) == ExitCode.OK
    found = json.loads(capsys.readouterr().out)
    assert found.pop("schema") == ANSWERS["scales"][0]
    ANSWERS["scales"][1].model_validate(found)
    tried = {t["margin"]: t for t in found["tried"]}
    assert found["margin"] == 1.5 and tried[1.0]["clipped_k"] > 0.2 and tried[1.5]["clipped_k"] == 0
    assert tried[1.5]["kl"] < tried[2.0]["kl"] < tried[1.0]["kl"]
    scales = load_file(out)
    assert set(scales) == {f"model.layers.{i}.self_attn.{r}_scale" for i in range(LAYERS) for r in "kv"}
    k = load_file(files[0])["layers.1.k"]
    assert scales["model.layers.1.self_attn.k_scale"].shape == ()
    assert float(scales["model.layers.1.self_attn.k_scale"]) == pytest.approx(float(k.abs().max()) * 1.5 / 127)


@pytest.mark.parametrize(("kv", "shape"), [("int8:head", (2, 1)), ("int8:channel", (2, 32)), ("fp8_e4m3", (1, 1))])
def test_shapes(kv: str, shape: tuple[int, int], files: tuple[Path, Path], tmp_path: Path) -> None:
    out = tmp_path / "s.json"
    assert main(["calibrate", str(files[0]), "--held-out", str(files[1]), "--kv", kv, "--out", str(out)]) == 0
    rows = json.loads(out.read_text())["scales"]["model.layers.0.self_attn.v_scale"]
    assert (len(rows), len(rows[0])) == shape


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (["{a}", "--held-out", "{a}"], ExitCode.INPUT, "are those that scales come from"),
        (["{a}", "--held-out", "{b}", "--kv", "int8"], ExitCode.USAGE, "int8 has no static scales"),
        (["{a}", "--held-out", "{b}", "--kv", "int8:head,asym"], ExitCode.USAGE, "which no engine reads"),
        (["{a}", "--held-out", "no"], ExitCode.INPUT, "cannot read no"),
        (["{a}", "--held-out", "{b}", "--out", "x.txt"], ExitCode.USAGE, ".safetensors or .json"),
        (["{a}", "--held-out", "{shipped}"], ExitCode.INPUT, "different models or layers"),
    ],
)
def test_bad_input(
    argv: list[str], code: ExitCode, message: str, files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    from kvplan.captured import SHIPPED

    places = {"{a}": str(files[0]), "{b}": str(files[1]), "{shipped}": str(SHIPPED)}
    assert main(["calibrate", *(places.get(word, word) for word in argv)]) == code
    assert message in capsys.readouterr().err.splitlines()[0]
