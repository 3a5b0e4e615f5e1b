"""Metadata of the runtime's own measurements: what the importer makes of it takes the bytes that the runtime took."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import gguf
import pytest

from kvplan.formats.grammar import parse_any
from kvplan.memory.figures import kv_figures
from kvplan.memory.groups import CacheFormats, cache_groups
from kvplan.specs.importers.gguf import import_gguf

F16 = CacheFormats(*[parse_any("fp16")] * 4, recurrent="fp32", conv="fp32")
GROWING = ("kv/", "base/", "attn/", "mla/", "main/")


def _write(path: Path, arch: str, keys: dict[str, Any]) -> Path:
    writer = gguf.GGUFWriter(path, arch)
    for key, value in keys.items():
        if isinstance(value, bool):
            writer.add_bool(f"{arch}.{key}", value)
        elif isinstance(value, int):
            writer.add_uint32(f"{arch}.{key}", value)
        elif isinstance(value, float):
            writer.add_float32(f"{arch}.{key}", value)
        else:
            writer.add_array(f"{arch}.{key}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _measured(record: dict[str, Any]) -> dict[str, int]:
    """Bytes of what grows with the context, of index keys, and of states; windows are rounded by the runtime."""
    found: dict[str, int] = defaultdict(int)
    for role, nbytes in record["bytes_by_role"].items():
        if role == "indexer/cache_k":
            found["index"] += nbytes
        elif role.startswith(GROWING):
            found["kv"] += nbytes
        elif role.startswith("recr/") or "_state/" in role:
            found["state"] += nbytes
    return found


@pytest.fixture(scope="session")
def records(shared: Path) -> list[dict[str, Any]]:
    """One sequence, 16 bit, flash attention: no choice of the runtime but the context is left."""
    found = json.loads((shared / "data" / "llamacpp_golden.json").read_text(encoding="utf-8"))["records"]
    plain = {"type_k": "f16", "type_v": "f16", "n_seq_max": 1, "flash_attn": 1, "swa_full": 0, "n_rs_seq": 0}
    return [r for r in found if r.get("ok") and all(r.get(key, 0) == value for key, value in plain.items())]


def test_bytes_equal_the_measured_ones(records: list[dict[str, Any]], tmp_path: Path) -> None:
    models = {}
    for record in records:
        name, context = record["model"], record["n_ctx_seq"]
        if name not in models:
            models[name] = import_gguf(_write(tmp_path / f"{len(models)}.gguf", record["arch"], record["gguf_kv"])).spec
        spec = models[name]
        groups = cache_groups(spec, F16)
        figures = kv_figures(groups, groups, 1, context, 1, 128).by_group
        found: dict[str, int] = defaultdict(int)
        for group, figure in zip(groups, figures, strict=True):
            if group.law.grows and group.law.stride == 1:
                found["index" if group.role == "index" else "kv"] += figure.logical_bytes
            elif group.role == "state":
                found["state"] += figure.logical_bytes
        measured = _measured(record)
        assert {k: v for k, v in found.items() if v} == {k: v for k, v in measured.items() if v}, (name, context)
    assert len(models) >= 26
