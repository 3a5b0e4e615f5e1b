"""Defaults of options that a user sets once: environment variables, then a small TOML file.

KVPLAN_GPU, KVPLAN_ENGINE, KVPLAN_UTIL and KVPLAN_WEIGHTS_DTYPE; the file is config.toml in kvplan's folder of the usual
place for configuration (on Linux ~/.config/kvplan), or where KVPLAN_CONFIG says. It holds gpu, engine, util and
weights_dtype. An option on the command line goes before both; `--gpu none` and `--engine none` switch a default off.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from kvplan.errors import InputError, did_you_mean

NAMES = ("gpu", "engine", "util", "weights_dtype")
COMMANDS = {
    "estimate": NAMES,
    "solve": NAMES,
    "recommend": NAMES,
    "layouts": ("gpu", "util", "weights_dtype"),
    "tui": ("gpu", "engine"),
}
"""Commands that take defaults, and which. A comparison and a log say themselves what they are of."""


@dataclass(frozen=True, slots=True)
class Default:
    """A value and where it was set."""

    value: str
    source: str


def config_path() -> Path:
    """The file of defaults, whether or not it exists."""
    named = os.environ.get("KVPLAN_CONFIG")
    return Path(named) if named else Path(click.get_app_dir("kvplan")) / "config.toml"


def defaults() -> dict[str, Default]:
    """Option to its default and where that was set.

    Raises:
        InputError: the file cannot be read, or holds something else.
    """
    path = config_path()
    found = {name: Default(str(value), str(path)) for name, value in _read(path).items()}
    for name in NAMES:
        variable = f"KVPLAN_{name.upper()}"
        if value := os.environ.get(variable, ""):
            found[name] = Default(value, variable)
    return found


def default_map(command: str | None) -> dict[str, dict[str, str]]:
    """What click takes for options that are not given; nothing is read for a command without defaults."""
    names = COMMANDS.get(command or "", ())
    found = defaults() if names else {}
    return {str(command): {name: found[name].value for name in names if name in found}}


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    # Imported here: most people have no such file.
    import tomllib

    hint = f"correct or remove {path}"
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"the file of defaults cannot be read: {error}", hint) from None
    for name, value in data.items():
        if name not in NAMES:
            raise InputError(f"{path.name} sets {name!r}, which has no default", did_you_mean(name, NAMES))
        if isinstance(value, bool) or not isinstance(value, str | float | int):
            raise InputError(f"{path.name} sets {name} to {value!r}, which is no text or number", hint)
    return data
