"""Searched launch shapes, kept in the user's cache folder: one small JSON file for each GPU, format and shape.

A file is written as a whole or not at all, so processes may search at once: the last one wins. What cannot be read or
written is said and never fatal. The folder can be deleted at any time.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from kvplan_kernels.attention.config import DecodeConfig
from kvplan_kernels.tuning.key import Key
from kvplan_kernels.tuning.search import Found, Say

SCHEMA = "kvplan.launch/1"


def folder() -> Path:
    """`kvplan/launches` in $XDG_CACHE_HOME, by default in ~/.cache (XDG base directories: a relative one is ignored).

    Raises:
        RuntimeError: the user has no home.
    """
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (named if named.is_absolute() else Path.home() / ".cache") / "kvplan" / "launches"


def read(key: Key, tried: Sequence[DecodeConfig], say: Say) -> DecodeConfig | None:
    """What an earlier search with this key found: one of the shapes that it tried; None if there is none."""
    try:
        path = _path(key)
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, RuntimeError) as error:
        say(f"the cache folder of launch shapes cannot be read: {error}")
        return None
    except ValueError:
        data = None
    known = isinstance(data, dict) and (data.get("schema"), data.get("key")) == (SCHEMA, key)
    found = next((c for c in tried if known and data.get("config") == asdict(c)), None)
    if found is None:
        say(f"the kept launch shape in {path} is damaged, searching again")
    return found


def keep(key: Key, found: Found, say: Say) -> None:
    """Write what was found."""
    data = {"schema": SCHEMA, "key": key, "config": asdict(found.config)}
    data |= {"seconds": found.seconds, "table_seconds": found.table_seconds}
    try:
        path = _path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as own:
            partial = Path(own) / path.name
            partial.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
            partial.replace(path)
    except (OSError, RuntimeError) as error:
        say(f"the launch shape is used but not kept: {error}")


def _path(key: Key) -> Path:
    return folder() / f"{hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:24]}.json"
