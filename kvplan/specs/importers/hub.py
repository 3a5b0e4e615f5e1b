"""From a Hugging Face id to a spec: downloads config.json and the weight index, a few kilobytes, and nothing else."""

from __future__ import annotations

import re
import threading
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from kvplan.errors import InputError
from kvplan.specs.base import HF_PATTERN
from kvplan.specs.importers.config import import_config
from kvplan.specs.importers.jsonfile import read_config
from kvplan.specs.importers.result import Imported
from kvplan.specs.importers.safetensors_index import INDEX, index_bytes, with_weights
from kvplan.specs.yamlfile import one_line

TIMEOUT_SECONDS = 20.0
"""Longest wait for one file, retries of the client included."""
_HINT = "download the model's config.json yourself and give its path"


def import_hub(hf_id: str) -> Imported:
    """The spec of a model on the Hugging Face hub, by its config.json; exact weight bytes where it has an index.

    Files already in the local cache are used as the client decides; HF_HUB_OFFLINE is respected.

    Raises:
        InputError: no such id, `huggingface_hub` is not installed, the network does not allow it (after at most
            `TIMEOUT_SECONDS` for each file), or the config cannot be imported.
    """
    if not re.match(HF_PATTERN, hf_id):
        raise InputError(f"{one_line(hf_id, 100)!r} is no Hugging Face id", "expected owner/name")
    client = _client()
    found = import_config(read_config(_fetched(client, hf_id, "config.json")), hf_id)
    imported = Imported(found.spec.model_copy(update={"hf_ids": (hf_id,)}), found.origins, found.notes)
    try:
        path = _fetched(client, hf_id, INDEX)
    except _MissingError:
        # One small file of weights has no index; its size would need the file itself.
        return imported
    return with_weights(imported, index_bytes(read_config(path), f"{hf_id}: {INDEX}"), f"{INDEX}: total_size")


class _MissingError(InputError):
    """The model has no such file (or, offline, the cache has not)."""


def _client() -> ModuleType:
    try:
        client = import_module("huggingface_hub")
    except ImportError:
        text = "reading a model from the Hugging Face hub needs the huggingface_hub package"
        raise InputError(text, f"pip install 'kvplan-advisor[hub]', or {_HINT}") from None
    return client


def _fetched(client: ModuleType, hf_id: str, name: str) -> Path:
    """A file of the model. However long the client waits and retries, kvplan gives up after its own time."""
    answer: list[Any] = []

    def work() -> None:
        try:
            answer.append(Path(client.hf_hub_download(hf_id, name, etag_timeout=TIMEOUT_SECONDS / 2)))
        except BaseException as error:
            answer.append(error)

    # A daemon: a connection that never answers must not keep the process alive either.
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(TIMEOUT_SECONDS)
    if not answer:
        raise InputError(f"{hf_id}: no answer from the hub within {TIMEOUT_SECONDS:g} seconds", _HINT)
    found = answer[0]
    if isinstance(found, Path):
        return found
    raise _worded(found, hf_id, name)


def _worded(error: BaseException, hf_id: str, name: str) -> InputError:
    # By name: the classes moved between modules of the client, and some derive from each other.
    kinds = [kind.__name__ for kind in type(error).__mro__]
    if "GatedRepoError" in kinds:
        return InputError(
            f"{hf_id}: the model is gated", f"accept its licence and log in with the hub's client, or {_HINT}"
        )
    if "RepositoryNotFoundError" in kinds:
        return InputError(f"{hf_id}: no such model on the hub, or it is private", f"check the id, or {_HINT}")
    if "EntryNotFoundError" in kinds:
        offline = "LocalEntryNotFoundError" in kinds
        text = "not in the local cache, and the hub cannot be reached" if offline else "the model has no such file"
        return _MissingError(f"{hf_id}: {name}: {text}", _HINT)
    text = one_line(str(error), 200) or type(error).__name__
    return InputError(f"{hf_id}: {name} cannot be downloaded: {text}", _HINT)
