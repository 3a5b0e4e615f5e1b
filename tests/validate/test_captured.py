"""`kvplan validate --tensors`: format errors on captured tensors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from kvplan_kernels.attention.reference import format_error
from kvplan_kernels.codecs.grid import decode, encode

from kvplan.captured import SCHEMA
from kvplan.cli.main import main
from kvplan.errors import ExitCode
from kvplan.specs.load import load_model
from kvplan.validate.captured import load
from kvplan.validate.subject import choose_group, planned

TOKENS, QUERIES = 48, 4


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two layers of the geometry of SmolLM2-135M; the second with another scale and a window."""
    from safetensors.torch import save_file

    g = torch.Generator().manual_seed(0)
    tensors = {}
    for layer in (3, 7):
        for role, shape in (("q", (9, QUERIES, 64)), ("k", (3, TOKENS, 64)), ("v", (3, TOKENS, 64))):
            tensors[f"layers.{layer}.{role}"] = torch.randn(*shape, generator=g)
    layers = [{"layer": 3, "scale": 0.125, "sliding_window": None}, {"layer": 7, "scale": 0.25, "sliding_window": 16}]
    manifest = {"schema": SCHEMA, "model": "m", "layers": layers, "text": {"name": "t"}}
    path = tmp_path_factory.mktemp("captured") / "kv.safetensors"
    save_file(tensors, path, {"kvplan": json.dumps(manifest)})
    return path


def test_errors_are_those_of_each_query_on_the_rows_it_sees(file: Path) -> None:
    from safetensors.torch import load_file

    spec = load_model("smollm2-135m")
    group = choose_group(spec)
    layout = planned(spec, "int8", TOKENS, 1, None).group(group.name).layout
    captured = load(file, group)
    assert len(captured.requests) == 2 * QUERIES and "layers 3, 7" in captured.label
    raw = load_file(file)
    means = []
    for layer, scale, window in ((3, 0.125, TOKENS), (7, 0.25, 16)):
        q, k, v = (raw[f"layers.{layer}.{role}"] for role in "qkv")
        kh, vh = (decode(layout, role, encode(layout, role, x)) for role, x in (("k", k), ("v", v)))
        for n in range(QUERIES):
            stop = TOKENS - QUERIES + n + 1
            part = slice(max(stop - window, 0), stop)
            rows = [x[None, :, part] for x in (k, v, kh, vh)]
            length = torch.tensor([rows[0].shape[2]])
            means.append(format_error(q[None, :, n], *rows, length, scale).both.output.mean)  # type: ignore[arg-type]
    assert captured.error(layout).both.output.mean == pytest.approx(sum(means) / len(means), rel=1e-5)


@pytest.mark.slow
def test_the_report_says_which_tensors(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["validate", "smollm2-135m", "--device", "cpu", "--context", "40", "--batch", "1", "--kv", "int8"]
    assert main([*argv, "--tensors", str(file), "--json"]) == ExitCode.OK
    report = json.loads(capsys.readouterr().out)
    assert "synthetic" in report["tensors"] and "format errors on captured Q, K and V of m" in report["tensors"]
    group = choose_group(load_model("smollm2-135m"))
    layout = planned(load_model("smollm2-135m"), "int8", TOKENS, 1, None).group(group.name).layout
    want = load(file, group).error(layout).both.output.mean
    assert report["results"][1]["format_error"]["both"]["output"]["mean"] == pytest.approx(want)


@pytest.mark.parametrize(
    ("model", "name", "message"),
    [
        ("llama-3.1-8b", "", "9 query heads on 3 KV heads of 64 and 64 channels, the model 32"),
        ("smollm2-135m", "no.safetensors", "cannot read"),
        ("smollm2-135m", "plain", "no capture file"),
    ],
)
def test_bad_input(
    model: str, name: str, message: str, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from safetensors.torch import save_file

    save_file({"x": torch.zeros(1)}, tmp_path / "plain")
    path = file if not name else tmp_path / name
    argv = ["validate", model, "--device", "cpu", "--context", "40", "--batch", "1", "--tensors", str(path)]
    assert main(argv) == ExitCode.INPUT
    error, hint = capsys.readouterr().err.strip().splitlines()
    assert message in error and hint.startswith("hint: ")


@pytest.mark.slow
def test_the_shipped_tensors_are_the_default_of_their_model(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["validate", "smollm2-135m", "--device", "cpu", "--context", "40", "--batch", "1", "--kv", "int8"]
    assert main([*argv, "--phase", "append", "--json"]) == ExitCode.OK
    report = json.loads(capsys.readouterr().out)
    assert "smollm2-135m (layers 1, 5, 9, 13, 16, 20, 24, 28; 512 tokens" in report["tensors"]
    assert report["request"]["tensors_file"] is None
    # What end-to-end KL of 7e-4 goes with; synthetic tensors give another size.
    assert 0.01 < report["results"][1]["format_error"]["both"]["output"]["mean"] < 0.02
