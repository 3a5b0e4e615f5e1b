"""Damaged, split, foreign and huge GGUF files: one line that says what is wrong, and never a traceback."""

from __future__ import annotations

import random
import struct
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from kvplan.errors import InputError
from kvplan.specs.importers.gguf import import_gguf
from kvplan.specs.importers.gguf_file import read_header

KEYS = {
    "context_length": 4096,
    "embedding_length": 4096,
    "block_count": 2,
    "attention.head_count": 32,
    "attention.head_count_kv": 8,
}


def _file(path: Path, tensors: int = 2, keys: dict[str, Any] = KEYS, **more: Any) -> Path:
    writer = gguf.GGUFWriter(path, "llama", **more)
    for key, value in keys.items():
        writer.add_uint16(key, value) if key.startswith("split.") else writer.add_uint32(f"llama.{key}", value)
    for i in range(tensors):
        writer.add_tensor(f"{path.name}.{i}", np.zeros((4, 8), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_every_truncation_of_the_header_is_refused(tmp_path: Path) -> None:
    raw = _file(tmp_path / "whole.gguf").read_bytes()
    cut = tmp_path / "cut.gguf"
    header = len(raw) - 2 * 4 * 32 - 32
    for length in range(header):
        cut.write_bytes(raw[:length])
        with pytest.raises(InputError, match=r"not a GGUF file|ends inside its header"):
            import_gguf(cut)


def test_tensor_data_is_not_needed(tmp_path: Path) -> None:
    whole = _file(tmp_path / "whole.gguf")
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(whole.read_bytes()[: -2 * 4 * 32])
    assert import_gguf(cut).spec.weights == import_gguf(whole).spec.weights


def test_damaged_headers_never_give_a_traceback(tmp_path: Path) -> None:
    raw = bytearray(_file(tmp_path / "whole.gguf").read_bytes())
    path = tmp_path / "damaged.gguf"
    rng = random.Random(1)
    for _ in range(400):
        copy = bytearray(raw)
        for _ in range(rng.randint(1, 4)):
            copy[rng.randrange(len(raw) - 256)] = rng.choice((0, 1, 255, rng.randrange(256)))
        path.write_bytes(copy)
        try:
            import_gguf(path)
        except InputError as error:
            assert "\n" not in error.message + error.hint


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a GGUF file"),
        (b"PK\x03\x04 archive", "not a GGUF file"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "GGUF version 1"),
        (b"GGUF" + struct.pack("<IQQ", 99, 0, 0), "GGUF version 99"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**60, 0), "more than any model has"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 2**40), "a text of"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q1sI", 1, b"a", 77), "unknown metadata type 77"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 0), "general.architecture is missing"),
    ],
)
def test_foreign_files(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "odd.gguf"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        import_gguf(path)
    assert message in caught.value.message


def test_big_endian_is_refused(tmp_path: Path) -> None:
    path = _file(tmp_path / "big.gguf", endianess=gguf.GGUFEndian.BIG)
    with pytest.raises(InputError, match="big-endian"):
        import_gguf(path)


def test_missing_files_and_folders(tmp_path: Path) -> None:
    for path in (tmp_path / "none.gguf", tmp_path):
        with pytest.raises(InputError, match="no such file"):
            import_gguf(path)


def _split(folder: Path, count: int) -> list[Path]:
    parts = []
    for number in range(count):
        keys = KEYS | {"split.no": number, "split.count": count} if number == 0 else {"split.no": number}
        parts.append(_file(folder / f"m-{number + 1:05}-of-{count:05}.gguf", 2 + number, keys))
    return parts


def test_split_models_are_summed_from_any_part(tmp_path: Path) -> None:
    parts = _split(tmp_path, 3)
    found = [import_gguf(part).spec for part in parts]
    assert {spec.weights.bytes for spec in found if spec.weights} == {(2 + 3 + 4) * 4 * 32}
    assert len(read_header(parts[2]).tensors) == 9


def test_split_models_need_all_parts_under_their_names(tmp_path: Path) -> None:
    parts = _split(tmp_path, 3)
    parts[1].rename(tmp_path / "elsewhere")
    with pytest.raises(InputError, match=r"1 of 3 parts are missing: m-00002-of-00003\.gguf"):
        import_gguf(parts[0])
    parts[0].rename(tmp_path / "first.gguf")
    with pytest.raises(InputError, match=r"split\.count is 3"):
        import_gguf(tmp_path / "first.gguf")


def test_without_the_package_the_hint_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _file(tmp_path / "whole.gguf")
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(InputError) as caught:
        import_gguf(path)
    assert caught.value.hint == "pip install 'kvplan-advisor[gguf]'"


def test_importing_the_importer_loads_neither_package() -> None:
    import subprocess

    code = "import sys, kvplan.specs.importers.gguf; print('gguf' in sys.modules, 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
