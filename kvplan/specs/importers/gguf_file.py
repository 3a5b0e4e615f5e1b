"""Read the header of a GGUF file: metadata and tensor infos, never tensor data.

The header is parsed here, since the reader of the `gguf` package maps the whole file and makes an object of every
tokenizer string. That package supplies what must not be kept twice: the block sizes of the tensor types.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from kvplan.errors import InputError
from kvplan.specs.yamlfile import one_line

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_ENTRIES = 2**20
MAX_TEXT = 2**26
KEPT_ITEMS = 4096
"""Longest list that is kept; of a longer one (the vocabulary) only the length is."""
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT, _LIST = 8, 9
_SPLIT = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")
_HINT = "give a complete .gguf file of a model (version 2 or 3, little-endian)"


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor: its name, elements per axis (fastest first), the name of its number type, and its bytes."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int

    @property
    def elements(self) -> int:
        """Number of elements."""
        count = 1
        for axis in self.shape:
            count *= axis
        return count


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """Metadata by key, and the tensors of all parts of the model."""

    where: str
    values: dict[str, Any]
    tensors: tuple[TensorInfo, ...]


@dataclass(frozen=True, slots=True)
class LongList:
    """Stands for a list that was skipped."""

    length: int


def read_header(path: Path) -> GgufHeader:
    """The header of a file, or of all parts of a split model.

    Raises:
        InputError: the `gguf` package is missing, a part is missing, or a file is no little-endian GGUF, truncated, or
            has an unknown number type.
    """
    shown = one_line(str(path))
    parts = split_parts(path)
    values, found = _read(parts[0])
    tensors = list(found)
    count = values.get("split.count", 1)
    if isinstance(count, int) and count > 1 and count != len(parts):
        raise InputError(
            f"{shown}: split.count is {count}, but the file is not named as one of {count} parts",
            f"keep the published names, such as model-00001-of-{count:05}.gguf, in one folder",
        )
    for part in parts[1:]:
        tensors += _read(part)[1]
    return GgufHeader(shown, values, tuple(tensors))


def split_parts(path: Path) -> list[Path]:
    """All parts of a split model in order; the path alone if its name is not that of a part."""
    match = _SPLIT.fullmatch(path.name)
    if not match:
        return [path]
    stem, _, count = match.groups()
    parts = [path.with_name(f"{stem}-{number:05}-of-{count}.gguf") for number in range(1, int(count) + 1)]
    missing = [part.name for part in parts if not part.is_file()]
    if missing or not parts:
        raise InputError(
            f"{one_line(str(path))}: {len(missing)} of {len(parts)} parts are missing: {one_line(missing[0], 100)}"
            if missing
            else f"{one_line(str(path))}: a model of no parts",
            "put all parts of the split model into one folder",
        )
    return parts


def _read(path: Path) -> tuple[dict[str, Any], list[TensorInfo]]:
    shown = one_line(str(path))
    sizes = _block_sizes()
    try:
        if not path.is_file():
            raise InputError(f"{shown}: no such file", "give the path of a .gguf file")
        with path.open("rb") as file:
            return _Cursor(file, shown, path.stat().st_size).header(sizes)
    except OSError as error:
        raise InputError(f"{shown} cannot be read: {error.strerror}", "check the path and its rights") from None


def _block_sizes() -> dict[int, tuple[str, int, int]]:
    """Number of a tensor type to (its name, elements of a block, bytes of a block)."""
    try:
        from gguf import GGML_QUANT_SIZES
    except ImportError:
        text = "reading a .gguf file needs the gguf package"
        raise InputError(text, "pip install 'kvplan-advisor[gguf]'") from None
    return {int(kind): (kind.name.lower(), block, nbytes) for kind, (block, nbytes) in GGML_QUANT_SIZES.items()}


class _Cursor:
    """Reads forward through one header."""

    def __init__(self, file: BinaryIO, shown: str, size: int) -> None:
        self.file = file
        self.shown = shown
        self.size = size

    def header(self, sizes: dict[int, tuple[str, int, int]]) -> tuple[dict[str, Any], list[TensorInfo]]:
        if self.file.read(4) != MAGIC:
            self._refuse("not a GGUF file")
        version = self._number("I")
        if version not in VERSIONS:
            big = version in (v << 24 for v in VERSIONS)
            self._refuse("a big-endian GGUF file" if big else f"GGUF version {version}, expected 2 or 3")
        tensors, entries = self._count("Q"), self._count("Q")
        values = dict(self._entry() for _ in range(entries))
        return values, list(self._tensors(tensors, sizes))

    def _entry(self) -> tuple[str, Any]:
        key = self._text()
        return key, self._value(self._number("I"))

    def _value(self, kind: int) -> Any:
        if kind in _SCALARS:
            return self._number(_SCALARS[kind])
        if kind == _TEXT:
            return self._text()
        if kind != _LIST:
            self._refuse(f"unknown metadata type {kind}")
        inner, length = self._number("I"), self._number("Q")
        if inner in _SCALARS:
            raw = self._bytes(length * struct.calcsize("<" + _SCALARS[inner]), skip=length > KEPT_ITEMS)
            return list(struct.unpack(f"<{length}{_SCALARS[inner]}", raw)) if length <= KEPT_ITEMS else LongList(length)
        if inner != _TEXT:
            self._refuse(f"unknown metadata type {inner} inside a list")
        if length <= KEPT_ITEMS:
            return [self._text() for _ in range(length)]
        for _ in range(length):
            self._bytes(self._number("Q"), skip=True)
        return LongList(length)

    def _tensors(self, count: int, sizes: dict[int, tuple[str, int, int]]) -> Iterator[TensorInfo]:
        for _ in range(count):
            name = self._text()
            axes = self._number("I")
            if not 1 <= axes <= 8:
                self._refuse(f"tensor {one_line(name, 60)} has {axes} axes")
            shape = tuple(self._number("Q") for _ in range(axes))
            kind = self._number("I")
            self._number("Q")
            if kind not in sizes:
                self._refuse(
                    f"tensor {one_line(name, 60)} has the unknown number type {kind}", "update the gguf package"
                )
            dtype, block, nbytes = sizes[kind]
            info = TensorInfo(name, shape, dtype, 0)
            if shape[0] % block:
                self._refuse(f"tensor {one_line(name, 60)}: rows of {shape[0]} do not divide by blocks of {block}")
            yield TensorInfo(name, shape, dtype, info.elements // block * nbytes)

    def _count(self, code: str) -> int:
        count = int(self._number(code))
        if count > MAX_ENTRIES:
            self._refuse(f"{count:,} entries, more than any model has")
        return count

    def _text(self) -> str:
        length = self._number("Q")
        if length > MAX_TEXT:
            self._refuse(f"a text of {length:,} bytes")
        return self._bytes(length).decode("utf-8", "replace")

    def _number(self, code: str) -> Any:
        return struct.unpack("<" + code, self._bytes(struct.calcsize("<" + code)))[0]

    def _bytes(self, length: int, *, skip: bool = False) -> bytes:
        # Checked before reading: a damaged length must not ask for memory.
        if length > self.size - self.file.tell():
            self._refuse("the file ends inside its header")
        if skip:
            self.file.seek(length, 1)
            return b""
        return self.file.read(length)

    def _refuse(self, text: str, hint: str = _HINT) -> NoReturn:
        raise InputError(f"{self.shown}: {text}", hint)
