"""Capture files that are damaged, of something else or not what they say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from kvplan.captured import read_capture
from kvplan.errors import InputError


def write(path: Path, manifest: dict[str, Any] | None = None, **other: torch.Tensor) -> Path:
    from safetensors.torch import save_file

    tensors = {"q": torch.ones(4, 3, 32), "k": torch.ones(2, 9, 32), "v": torch.ones(2, 9, 16)} | other
    whole = {
        "schema": "kvplan.capture/1", "model": "m", "text": {"name": "t"}, "query_step": 4,
        "layers": [{"layer": 1, "scale": 0.5, "sliding_window": None}],
    } | (manifest or {})  # fmt: skip
    save_file({f"layers.1.{name}": x for name, x in tensors.items()}, path, {"kvplan": json.dumps(whole)})
    return path


def test_positions_are_spread(tmp_path: Path) -> None:
    found = read_capture(write(tmp_path / "x"))
    assert found.layers[0].positions == (0, 4, 8) and found.tokens == 9
    assert found.source == "m (layers 1; 9 tokens of t)"


@pytest.mark.parametrize(
    ("manifest", "tensors", "message"),
    [
        ({"query_step": 5}, {}, "layer 1 has wrong shapes: q (4, 3, 32)"),
        ({}, {"k": torch.ones(3, 9, 32)}, "wrong shapes"),
        ({}, {"v": torch.ones(2, 8, 16)}, "wrong shapes"),
        ({}, {"q": torch.ones(4, 3, 16)}, "wrong shapes"),
        ({}, {"k": torch.ones(9, 32)}, "wrong shapes"),
        ({}, {"v": torch.full((2, 9, 16), torch.nan)}, "layers.1.v holds NaN"),
        ({"layers": [{"layer": 1}]}, {}, "manifest is damaged ('scale')"),
        ({"layers": [{"layer": 2, "scale": 1.0, "sliding_window": None}]}, {}, "cannot read"),
        ({"layers": []}, {}, "has no layers"),
        ({"schema": "other"}, {}, "no capture file"),
    ],
)
def test_contradictions(
    manifest: dict[str, Any], tensors: dict[str, torch.Tensor], message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError) as caught:
        read_capture(write(tmp_path / "x", manifest, **tensors))
    assert message in caught.value.message and caught.value.hint


def test_pickles_and_truncated_files(tmp_path: Path) -> None:
    for legacy in (False, True):
        torch.save({"k": torch.ones(2)}, tmp_path / "p.pt", _use_new_zipfile_serialization=not legacy)
        with pytest.raises(InputError, match="is a pickle"):
            read_capture(tmp_path / "p.pt")
    whole = write(tmp_path / "x").read_bytes()
    for size in (0, 5, 100, len(whole) - 1):
        (tmp_path / "cut").write_bytes(whole[:size])
        with pytest.raises(InputError, match="cannot read"):
            read_capture(tmp_path / "cut")
