"""Exact weight bytes from an index, from headers, or not at all."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from kvplan.errors import InputError
from kvplan.specs.importers.result import Imported
from kvplan.specs.importers.safetensors_index import INDEX, weight_bytes
from kvplan.specs.load import import_model, load_model

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data" / "smollm2_kv_small.safetensors"


def _write(path: Path, header: Any, data: int = 0) -> None:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + b"\0" * data)


def _tensor(begin: int, end: int) -> dict[str, Any]:
    return {"dtype": "BF16", "shape": [(end - begin) // 2], "data_offsets": [begin, end]}


@pytest.mark.parametrize("size", [16060522496, 16060522496.0])
def test_the_index_counts(size: Any, tmp_path: Path) -> None:
    (tmp_path / INDEX).write_text(json.dumps({"metadata": {"total_size": size}, "weight_map": {}}))
    assert weight_bytes(tmp_path) == 16060522496


def test_one_file_without_an_index(tmp_path: Path) -> None:
    header = {"__metadata__": {"format": "pt"}, "a": _tensor(0, 100), "b": _tensor(100, 164)}
    _write(tmp_path / "model.safetensors", header, 164)
    assert weight_bytes(tmp_path) == 164


def test_a_second_copy_does_not_count(tmp_path: Path) -> None:
    _write(tmp_path / "consolidated.safetensors", {"a": _tensor(0, 64)}, 64)
    assert weight_bytes(tmp_path) == 64
    for number in (1, 2):
        _write(tmp_path / f"model-0000{number}-of-00002.safetensors", {"a": _tensor(0, 32)}, 32)
    assert weight_bytes(tmp_path) == 64


def test_nothing_there(tmp_path: Path) -> None:
    assert weight_bytes(tmp_path) is None
    assert weight_bytes(tmp_path / "absent") is None


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        "{}",
        '{"metadata": 3}',
        '{"metadata": {}}',
        '{"metadata": {"total_size": "12"}}',
        '{"metadata": {"total_size": -1}}',
        '{"metadata": {"total_size": true}}',
        '{"metadata": {"total_size": 1.5}}',
    ],
)
def test_bad_indices(content: str, tmp_path: Path) -> None:
    (tmp_path / INDEX).write_text(content)
    with pytest.raises(InputError) as caught:
        weight_bytes(tmp_path)
    assert INDEX in caught.value.message and "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a safetensors file"),
        (b"short", "not a safetensors file"),
        (struct.pack("<Q", 2**40), "not a safetensors file"),
        (struct.pack("<Q", 2) + b"{", "not a safetensors file"),
        (struct.pack("<Q", 2) + b"{[", "not JSON"),
        (struct.pack("<Q", 2) + b"\xff\xff", "not JSON"),
        (struct.pack("<Q", 2) + b"[]", "no JSON object"),
        (struct.pack("<Q", 7) + b'{"a":1}', "expected data_offsets"),
        (struct.pack("<Q", 27) + b'{"a":{"data_offsets":[2,1]}', "not JSON"),
        (struct.pack("<Q", 28) + b'{"a":{"data_offsets":[2,1]}}', "are impossible"),
        (struct.pack("<Q", 28) + b'{"a":{"data_offsets":[0,9]}}', "truncated"),
        (struct.pack("<Q", 31) + b'{"a":{"data_offsets":[0,true]}}', "expected data_offsets"),
    ],
)
def test_bad_files(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(InputError) as caught:
        weight_bytes(tmp_path)
    assert message in caught.value.message and "model.safetensors" in caught.value.message


def test_a_real_file(tmp_path: Path) -> None:
    if not SHARED.is_file():
        pytest.skip("the facts folder ../shared is not here")
    (tmp_path / "model.safetensors").symlink_to(SHARED)
    size = SHARED.stat().st_size
    found = weight_bytes(tmp_path)
    assert found is not None and 0 < size - found < 10**5


def test_a_model_folder_is_planned_with_its_own_weights(tmp_path: Path) -> None:
    config = {
        "model_type": "llama",
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "hidden_size": 256,
        "max_position_embeddings": 4096,
        "torch_dtype": "bfloat16",
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert load_model(str(tmp_path)).weights is None
    _write(tmp_path / "model.safetensors", {"a": _tensor(0, 100)}, 100)
    imported = import_model(str(tmp_path))
    assert isinstance(imported, Imported) and imported.spec.weights is not None
    assert (imported.spec.weights.bytes, imported.spec.weights.dtype) == (100, "bfloat16")
    assert imported.origins[-1].field == "weights.bytes"
