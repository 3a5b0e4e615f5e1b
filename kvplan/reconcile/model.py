"""Which model a log is about: as the user says, as the log's own copy of the file's header says, or by its name."""

from __future__ import annotations

import json
from typing import Any

from kvplan.errors import InputError
from kvplan.reconcile.types import StartUp
from kvplan.specs.load import load_model
from kvplan.specs.model import ModelSpec


def find_model(start: StartUp, asked: str | None) -> tuple[ModelSpec, str]:
    """The spec, and where it comes from in words.

    Args:
        asked: what the user gave: an id, a Hugging Face id or a path; None: the log must say.

    Raises:
        InputError: the log names no model that kvplan can read.
    """
    if asked is not None:
        return load_model(asked), "as given"
    if dict(start.header).get("general.architecture"):
        return _from_header(start), "from the header of the model file that the log repeats"
    if start.model is None:
        raise InputError(f"the log of {start.title} does not name its model", "give it: kvplan reconcile LOG MODEL")
    try:
        return load_model(start.model), "by the name in the log"
    except InputError as error:
        raise InputError(
            f"the log's model {start.model!r} is not known: {error.message}",
            "give its id, config.json or .gguf file: kvplan reconcile LOG MODEL",
        ) from None


def _from_header(start: StartUp) -> ModelSpec:
    from kvplan.specs.importers.gguf import import_header
    from kvplan.specs.importers.gguf_file import GgufHeader

    values = {key: _value(text) for key, text in start.header}
    name = (start.model or "model in the log").replace("/", "-")
    return import_header(GgufHeader(name, values, ())).spec


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
