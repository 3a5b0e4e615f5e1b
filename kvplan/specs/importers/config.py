"""From a transformers-style config.json to a spec."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvplan.specs.importers.result import Imported


def import_config(data: dict[str, Any], where: str) -> Imported:
    """The spec of a parsed config.json.

    Args:
        data: the parsed JSON object.
        where: the file's name (or the hub id), for messages and for the spec's id.

    Raises:
        InputError: an unknown architecture, or a field that is missing or impossible, by its name.
    """
    raise NotImplementedError


def import_path(path: Path) -> Imported:
    """The spec of a config.json file, or of a folder that holds one.

    Raises:
        InputError: see `import_config`; also an unreadable file or one that is no JSON object.
    """
    raise NotImplementedError
