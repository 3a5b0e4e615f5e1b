"""Find a model or a device by name or path, and read it.

A model: the id or a Hugging Face id of a shipped spec; a spec file (.yaml); a folder or a config.json; a .gguf file;
else a Hugging Face id to look up. Importers are loaded only when one of them is asked for.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pydantic import ValidationError

from kvplan.errors import InputError, nearest
from kvplan.specs import compiled
from kvplan.specs.base import Spec
from kvplan.specs.find import specs_root
from kvplan.specs.model import ModelSpec

if TYPE_CHECKING:
    from kvplan.specs.device import DeviceSpec
    from kvplan.specs.importers.result import Imported

S = TypeVar("S", bound=Spec)
HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,95}/[A-Za-z0-9][A-Za-z0-9_.-]{0,95}")
"""Looks like owner/name on the Hugging Face hub."""


def list_models() -> tuple[str, ...]:
    """Ids of the shipped models, sorted."""
    return _list("models")


def list_devices() -> tuple[str, ...]:
    """Ids of the shipped devices, sorted."""
    return _list("devices")


def load_model(name_or_path: str) -> ModelSpec:
    """A model by id, by Hugging Face id (both in any case), or from a file or folder.

    Raises:
        InputError: unknown name, unreadable file, or the file breaks the schema.
    """
    imported = import_model(name_or_path)
    return imported if isinstance(imported, ModelSpec) else imported.spec


def import_model(name_or_path: str) -> ModelSpec | Imported:
    """Like `load_model`, but what an importer read comes with the origins of its numbers.

    Raises:
        InputError: unknown name, unreadable file, or the file breaks the schema.
    """
    wanted = name_or_path.lower()
    if wanted in list_models():
        data = compiled.compiled("models", wanted)
        if data is None:
            return _read(specs_root() / "models" / f"{wanted}.yaml", ModelSpec)
        from kvplan.specs.construct import construct_model

        return construct_model(data)
    shipped = _by_hf_id(wanted)
    if shipped:
        return shipped
    path = Path(name_or_path)
    if name_or_path and _exists(name_or_path):
        if wanted.endswith(".gguf"):
            return _from_gguf(path)
        if path.is_dir():
            return _from_folder(path)
        if wanted.endswith(".json"):
            from kvplan.specs.importers.config import import_path

            return import_path(path)
    elif HUB_ID.fullmatch(name_or_path) and not wanted.endswith((".yaml", ".yml", ".json", ".gguf")):
        return _from_hub(name_or_path)
    return _from_path(name_or_path, ModelSpec, "model", list_models())


def load_device(name_or_path: str) -> DeviceSpec:
    """A device by id (in any case) or from a YAML file.

    Raises:
        InputError: unknown name, unreadable file, or the file breaks the schema.
    """
    from kvplan.specs.device import DeviceSpec

    wanted = name_or_path.lower()
    if wanted in list_devices():
        return _shipped("devices", wanted, DeviceSpec)
    return _from_path(name_or_path, DeviceSpec, "GPU", list_devices())


def _from_folder(folder: Path) -> ModelSpec | Imported:
    """The config.json of a model folder, with the exact bytes of its weights if they (or their index) lie beside it."""
    from kvplan.specs.importers.config import import_path
    from kvplan.specs.importers.safetensors_index import weight_bytes, with_weights

    imported = import_path(folder)
    nbytes = weight_bytes(folder)
    return with_weights(imported, nbytes, "safetensors files of the folder") if nbytes else imported


def _from_hub(name: str) -> Imported:
    from kvplan.specs.importers.hub import import_hub

    try:
        return import_hub(name)
    except InputError as error:
        unknown = _unknown(name, "model", list_models())
        raise InputError(f"{unknown.message}; {error.message}", f"{error.hint}; {unknown.hint}") from None


def _from_gguf(path: Path) -> Imported:
    from kvplan.specs.importers.gguf import import_gguf

    return import_gguf(path)


def _list(folder: str) -> tuple[str, ...]:
    return compiled.stems(folder)


def _shipped(folder: str, stem: str, kind: type[S]) -> S:
    data = compiled.compiled(folder, stem)
    # Not current, or no valid spec any more: the YAML file tells, with the line of the mistake.
    if data is not None:
        try:
            return kind.model_validate(data)
        except ValidationError:
            pass
    return _read(specs_root() / folder / f"{stem}.yaml", kind)


def _by_hf_id(wanted: str) -> ModelSpec | None:
    for stem in compiled.by_hf_id(wanted):
        spec = _shipped("models", stem, ModelSpec)
        if wanted in (known.lower() for known in spec.hf_ids):
            return spec
    return None


def _from_path(name: str, kind: type[S], noun: str, known: tuple[str, ...]) -> S:
    if name.lower().endswith((".yaml", ".yml")) or (name and _exists(name)):
        return _read(Path(name), kind)
    raise _unknown(name, noun, known)


def _unknown(name: str, noun: str, known: tuple[str, ...]) -> InputError:
    # Imported where needed: yaml costs more than a whole plan of a shipped model.
    from kvplan.specs.yamlfile import one_line

    shown = one_line(name, 100)
    short = name.replace("\\", "/").rsplit("/", 1)[-1]
    what = f"no file and no {noun} is called" if _has_separator(name) else f"unknown {noun}"
    # `h100` means h100-80gb, although h200 is closer in spelling.
    longer = next((one for one in known if short and one.startswith(short.lower())), None)
    near = longer or nearest(short, known)
    listing = ", ".join(known) if len(known) <= 30 else f"{len(known)} ids, listed by `kvplan specs list`"
    hint = f"did you mean {near}? " if near else ""
    return InputError(f"{what} {shown!r}", f"{hint}known: {listing}; or give the path of a .yaml file")


def _has_separator(name: str) -> bool:
    return any(mark in name for mark in (os.sep, os.altsep) if mark)


def _exists(name: str) -> bool:
    try:
        return Path(name).exists()
    except (OSError, ValueError):
        return False


def _read(path: Path, kind: type[S]) -> S:
    from kvplan.specs.explain import schema_error
    from kvplan.specs.yamlfile import read_yaml

    file = read_yaml(path)
    try:
        return kind.model_validate(file.data)
    except ValidationError as error:
        raise schema_error(file, error) from None
