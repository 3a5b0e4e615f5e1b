"""Exact weight bytes of a model folder: from the safetensors index or the headers of the files, never tensor data."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path
from typing import Any

from kvplan.errors import InputError
from kvplan.specs.importers.jsonfile import read_config
from kvplan.specs.importers.result import Imported, Origin
from kvplan.specs.model import Weights
from kvplan.specs.yamlfile import one_line

INDEX = "model.safetensors.index.json"
MAX_HEADER_BYTES = 100_000_000
"""Longest header that the format allows."""
_HINT = "download the file again, or leave it out of the folder: the weights are then computed from params"


def weight_bytes(folder: Path) -> int | None:
    """Bytes of all tensors of a model; None where the folder holds neither an index nor safetensors files.

    Raises:
        InputError: an index or a file is damaged.
    """
    index = folder / INDEX
    if index.is_file():
        return index_bytes(read_config(index), one_line(str(index)))
    # Some repositories carry a second copy of the weights under another name.
    files = sorted(folder.glob("model*.safetensors")) or sorted(folder.glob("*.safetensors"))
    return sum(file_bytes(file) for file in files) if files else None


def index_bytes(data: dict[str, Any], shown: str) -> int:
    """`metadata.total_size` of a parsed index.

    Raises:
        InputError: it is missing or no positive whole number.
    """
    metadata = data.get("metadata")
    size = metadata.get("total_size") if isinstance(metadata, dict) else None
    # Some writers give a float with a whole value.
    if isinstance(size, float) and size.is_integer():
        size = int(size)
    if type(size) is not int or not 0 < size < 10**18:
        raise InputError(f"{shown}: metadata.total_size: expected a number of bytes", _HINT)
    return size


def file_bytes(path: Path) -> int:
    """Bytes of the tensors of one .safetensors file, by its header.

    Raises:
        InputError: it is unreadable, truncated or no safetensors file.
    """
    shown = one_line(str(path))
    try:
        with path.open("rb") as file:
            prefix = file.read(8)
            length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
            if not 2 <= length <= min(MAX_HEADER_BYTES, path.stat().st_size - 8):
                raise InputError(f"{shown}: not a safetensors file, or truncated inside its header", _HINT)
            header = json.loads(file.read(length))
    except OSError as error:
        raise InputError(f"{shown} cannot be read: {error.strerror}", "check the path and its rights") from None
    except (ValueError, RecursionError):
        raise InputError(f"{shown}: its header is not JSON", _HINT) from None
    if not isinstance(header, dict):
        raise InputError(f"{shown}: its header is no JSON object", _HINT)
    total = sum(_tensor_bytes(name, info, shown) for name, info in header.items() if name != "__metadata__")
    if 8 + length + total != path.stat().st_size:
        raise InputError(f"{shown}: truncated, or its tensors overlap", _HINT)
    return total


def with_weights(imported: Imported, nbytes: int, source: str) -> Imported:
    """The same model with exact bytes of its published weights."""
    dtype = _published_dtype(imported)
    spec = imported.spec.model_copy(update={"weights": Weights(bytes=nbytes, dtype=dtype)})
    origin = Origin("weights.bytes", str(nbytes), "read", source)
    return Imported(spec, (*imported.origins, origin), imported.notes)


def _tensor_bytes(name: str, info: Any, shown: str) -> int:
    offsets = info.get("data_offsets") if isinstance(info, dict) else None
    if not isinstance(offsets, list) or len(offsets) != 2 or any(type(x) is not int for x in offsets):
        raise InputError(f"{shown}: tensor {one_line(name, 60)}: expected data_offsets of two numbers", _HINT)
    begin, end = offsets
    if not 0 <= begin <= end < 10**18:
        raise InputError(f"{shown}: tensor {one_line(name, 60)}: data_offsets {begin}, {end} are impossible", _HINT)
    return int(end - begin)


def _published_dtype(imported: Imported) -> str:
    """The quantisation that the importer found, else the native type."""
    for note in imported.notes:
        found = re.search(r"weights are quantised \(([^)]*)\)", note)
        if found:
            return re.sub(r"[^a-z0-9_]+", "_", found[1].lower()).strip("_")[:40] or imported.spec.native_dtype
    return imported.spec.native_dtype
