"""Read a config.json from a stranger: bounded in size and depth, every failure in one line."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

from kvplan.errors import InputError
from kvplan.specs.yamlfile import one_line

MAX_FILE_BYTES = 16 * 2**20
MAX_DEPTH = 40
_HINT = "give the config.json of a model as Hugging Face publishes it, or a YAML spec"


def read_config(path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        InputError: not readable, too large, not JSON, a key given twice, nested too deep, or no object at the top.
    """
    shown = one_line(str(path))
    try:
        data = json.loads(_text(path, shown), object_pairs_hook=_object)
    except InputError as error:
        raise InputError(f"{shown}: {error.message}", error.hint) from None
    except json.JSONDecodeError as error:
        what = f"{shown}:{error.lineno}:{error.colno}: not valid JSON: {one_line(error.msg)}"
        raise InputError(what, _HINT) from None
    except RecursionError:
        raise InputError(f"{shown}: nested deeper than {MAX_DEPTH} levels", _HINT) from None
    except ValueError as error:
        # Whole numbers of more digits than Python converts.
        raise InputError(f"{shown}: not valid JSON: {one_line(str(error))}", _HINT) from None
    if not isinstance(data, dict):
        raise InputError(f"{shown}: expected a JSON object at the top level, got {_kind(data)}", _HINT)
    if _deeper(data, MAX_DEPTH):
        raise InputError(f"{shown}: nested deeper than {MAX_DEPTH} levels", _HINT)
    return data


def _text(path: Path, shown: str) -> str:
    try:
        # O_NONBLOCK: opening a pipe must not wait for a writer.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | getattr(os, "O_NONBLOCK", 0))) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise InputError("not a regular file", _HINT)
            raw = file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror or "unknown reason" if isinstance(error, OSError) else str(error)
        raise InputError(f"cannot read it: {one_line(reason)}", "check the path") from None
    if len(raw) > MAX_FILE_BYTES:
        raise InputError(f"larger than {MAX_FILE_BYTES >> 20} MiB, which no model config is", _HINT)
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError("not UTF-8 text", _HINT) from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise InputError(f"the key {one_line(key, 60)!r} is given twice", "keep one of them")
        found[key] = value
    return found


def _deeper(value: Any, levels: int) -> bool:
    if not isinstance(value, dict | list):
        return False
    if levels == 0:
        return True
    return any(_deeper(item, levels - 1) for item in (value.values() if isinstance(value, dict) else value))


def _kind(value: Any) -> str:
    return "a list" if isinstance(value, list) else "null" if value is None else f"a {type(value).__name__}"
