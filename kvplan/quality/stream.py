"""A safetensors file written tensor by tensor, so that one layer at most is held in memory.

The header comes first in the file, so the shapes are declared before; the hash of the data is known last, and takes the
place of as many zeros.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from types import TracebackType

import torch
from torch import Tensor

from kvplan.errors import InputError, UsageError

UNKNOWN_HASH = "0" * 64
DTYPES = {"fp16": ("F16", torch.float16), "bf16": ("BF16", torch.bfloat16), "fp32": ("F32", torch.float32)}


class TensorStream:
    """Writes declared tensors in their order; the file appears under its name when all are there.

    Args:
        shapes: name to shape, in the order of writing.
        dtype: fp16, bf16 or fp32, of all tensors.
        metadata: strings of the header; `UNKNOWN_HASH` in them becomes the hash of the data.
    """

    def __init__(self, path: Path, shapes: dict[str, tuple[int, ...]], dtype: str, metadata: dict[str, str]) -> None:
        self._path, self._partial = path, path.with_suffix(path.suffix + ".partial")
        self._dtype, self._left = dtype, list(shapes.items())
        self._hash = hashlib.sha256()
        self._header = _header(shapes, dtype, metadata)
        try:
            self._file = self._partial.open("wb")
        except OSError as error:
            raise InputError(f"cannot write {path}: {error.strerror}", "choose another --out") from None
        self._file.write(len(self._header).to_bytes(8, "little") + self._header)

    def write(self, name: str, x: Tensor) -> None:
        """The next declared tensor.

        Raises:
            UsageError: a value that the dtype cannot hold.
        """
        assert self._left and self._left[0] == (name, tuple(x.shape)), (name, x.shape, self._left[:1])
        self._left.pop(0)
        stored = x.detach().to(DTYPES[self._dtype][1]).cpu().contiguous()
        if not stored.isfinite().all():
            raise UsageError(f"{name} has values beyond {self._dtype}", "use --dtype fp32")
        data = stored.view(torch.uint8).numpy().tobytes()
        self._hash.update(data)
        self._file.write(data)

    def __enter__(self) -> TensorStream:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is None:
            assert not self._left, self._left
            self._file.seek(8)
            self._file.write(self._header.replace(UNKNOWN_HASH.encode(), self._hash.hexdigest().encode()))
        self._file.close()
        if kind is None:
            self._partial.replace(self._path)
        else:
            self._partial.unlink(missing_ok=True)


def _header(shapes: dict[str, tuple[int, ...]], dtype: str, metadata: dict[str, str]) -> bytes:
    label, torch_dtype = DTYPES[dtype]
    entries: dict[str, object] = {"__metadata__": metadata}
    at = 0
    for name, shape in shapes.items():
        end = at + torch.Size(shape).numel() * torch_dtype.itemsize
        entries[name] = {"dtype": label, "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(entries).encode()
    return text + b" " * (-len(text) % 8)
