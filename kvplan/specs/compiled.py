"""The shipped specs as one JSON file, so that planning a shipped id reads no YAML.

`tools/compile_specs.py` writes the file, and a test keeps the committed copy current. Each spec stands there with the
checksum of its YAML text: where the YAML lies next to it and has been edited since, the YAML counts, never the copy.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from functools import cache
from pathlib import Path
from typing import Any

from kvplan.specs.find import specs_root

COMPILED = "compiled.json"
"""The file's name; it lies in the folder of the YAML files, in a wheel, an sdist and a checkout alike."""
FOLDERS = ("models", "devices")
_HF_ID = re.compile(r"[^/\s.][^/\s]*/[^/\s]+")


def checksum(text: bytes) -> int:
    """Of a YAML file: enough to see an edit. Line ends do not count, since a checkout may convert them."""
    return zlib.crc32(text.replace(b"\r\n", b"\n"))


def stems(folder: str) -> tuple[str, ...]:
    """Ids of the shipped specs of a folder (`models` or `devices`), sorted.

    Raises:
        InputError: the installation lacks the folder.
    """
    files = os.listdir(specs_root() / folder)
    return tuple(sorted(name.removesuffix(".yaml") for name in files if name.endswith(".yaml")))


def compiled(folder: str, stem: str) -> dict[str, Any] | None:
    """The parsed values of a shipped YAML file; None where only the file itself can tell.

    Raises:
        InputError: the installation lacks the folder.
    """
    entry = _tables().get(folder, {}).get(stem)
    if entry is None:
        return None
    try:
        text = (specs_root() / folder / f"{stem}.yaml").read_bytes()
    except OSError:
        return None
    data: dict[str, Any] = entry["data"]
    return data if checksum(text) == entry["checksum"] else None


def by_hf_id(wanted: str) -> tuple[str, ...]:
    """Ids of shipped models whose file may name this Hugging Face id (lower case); the caller checks.

    Raises:
        InputError: the installation lacks the folder.
    """
    if not _HF_ID.fullmatch(wanted):
        return ()
    for stem, entry in _tables().get("models", {}).items():
        if any(wanted == known.lower() for known in entry["data"].get("hf_ids", ())):
            return (stem,)
    # Files that are new or edited since the compilation: look for the text before reading any as YAML.
    changed = [stem for stem in stems("models") if compiled("models", stem) is None]
    root = specs_root() / "models"
    return tuple(stem for stem in changed if wanted in (root / f"{stem}.yaml").read_text(encoding="utf-8").lower())


def _tables() -> dict[str, Any]:
    return _read(specs_root() / COMPILED)


@cache
def _read(path: Path) -> dict[str, Any]:
    """Folder to id to {checksum, data}; empty when the file is missing or unusable, since the YAML files are there."""
    try:
        tables = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return tables if isinstance(tables, dict) else {}
