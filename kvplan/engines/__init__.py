"""Inference engines: how each one rounds, reserves and names its options. One module (or folder) per engine.

Every module here but `shared` is an engine and has an `ENGINE`; a hyphen in its name is an underscore in the file's.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING

from kvplan.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    from kvplan.engines.shared.types import Engine

_NOT_AN_ENGINE = "shared"


def engine_names() -> tuple[str, ...]:
    """Names of all engines, sorted."""
    found = (module.name for module in iter_modules(__path__))
    return tuple(sorted(name.replace("_", "-") for name in found if name != _NOT_AN_ENGINE))


def load_engine(name: str) -> Engine:
    """The engine of that name; only its own module is imported.

    Raises:
        UsageError: unknown, naming the nearest known one.
    """
    known = engine_names()
    if name not in known:
        raise UsageError(f"unknown engine {name!r}", did_you_mean(name, known))
    engine: Engine = import_module(f"{__name__}.{name.replace('-', '_')}").ENGINE
    assert engine.name == name, engine.name
    return engine
