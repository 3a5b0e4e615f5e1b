"""Find a model or a device by name or path, and read it.

A model: the id or a Hugging Face id of a shipped spec; a spec file (.yaml); a folder or a config.json; a .gguf file;
else a Hugging Face id to look up. Importers are loaded only when one of them is asked for.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pydantic import ValidationError

from kvplan.errors import InputError, did_you_mean
from kvplan.specs.base import Spec
from kvplan.specs.device import DeviceSpec
from kvplan.specs.explain import schema_error
from kvplan.specs.find import specs_root
from kvplan.specs.model import ModelSpec, Weights
from kvplan.specs.yamlfile import one_line, read_yaml

if TYPE_CHECKING:
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
        return _read(_path("models", wanted), ModelSpec)
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
    wanted = name_or_path.lower()
    if wanted in list_devices():
        return _read(_path("devices", wanted), DeviceSpec)
    return _from_path(name_or_path, DeviceSpec, "GPU", list_devices())


def _from_folder(folder: Path) -> ModelSpec | Imported:
    """The config.json of a model folder, with the exact bytes of its weights if their index lies beside it."""
    from kvplan.specs.importers.config import import_path

    imported = import_path(folder)
    try:
        weight_bytes = import_module("kvplan.specs.importers.safetensors_index").weight_bytes(folder)
    except ModuleNotFoundError:
        return imported
    if not weight_bytes:
        return imported
    weights = Weights(bytes=weight_bytes, dtype=imported.spec.native_dtype)
    return replace(imported, spec=imported.spec.model_copy(update={"weights": weights}))


def _from_hub(name: str) -> Imported:
    unknown = _unknown(name, "model", list_models())
    try:
        hub = import_module("kvplan.specs.importers.hub")
    except ModuleNotFoundError:
        raise unknown from None
    try:
        found: Imported = hub.import_hub(name)
        return found
    except InputError as error:
        raise InputError(f"{unknown.message}; {error.message}", f"{error.hint}; {unknown.hint}") from None


def _from_gguf(path: Path) -> Imported:
    try:
        gguf = import_module("kvplan.specs.importers.gguf")
    except ModuleNotFoundError as error:
        raise InputError(
            f"{one_line(str(path))}: cannot read a GGUF file: {error.name} is not installed",
            "give the model's config.json or a YAML spec",
        ) from None
    found: Imported = gguf.import_gguf(path)
    return found


def _list(folder: str) -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in (specs_root() / folder).glob("*.yaml")))


def _path(folder: str, stem: str) -> Path:
    return specs_root() / folder / f"{stem}.yaml"


def _by_hf_id(wanted: str) -> ModelSpec | None:
    if "/" not in wanted:
        return None
    for stem in list_models():
        path = _path("models", stem)
        # Reading every file as YAML would cost more than the whole plan; look for the text first.
        if wanted in path.read_text(encoding="utf-8").lower():
            spec = _read(path, ModelSpec)
            if wanted in (known.lower() for known in spec.hf_ids):
                return spec
    return None


def _from_path(name: str, kind: type[S], noun: str, known: tuple[str, ...]) -> S:
    if name.lower().endswith((".yaml", ".yml")) or (name and _exists(name)):
        return _read(Path(name), kind)
    raise _unknown(name, noun, known)


def _unknown(name: str, noun: str, known: tuple[str, ...]) -> InputError:
    shown = one_line(name, 100)
    short = name.replace("\\", "/").rsplit("/", 1)[-1]
    what = f"no file and no {noun} is called" if _has_separator(name) else f"unknown {noun}"
    # `h100` means h100-80gb, although h200 is closer in spelling.
    longer = next((one for one in known if short and one.startswith(short.lower())), None)
    hint = f"did you mean {longer}? known: {', '.join(known)}" if longer else did_you_mean(short, known)
    return InputError(f"{what} {shown!r}", f"{hint}; or give the path of a .yaml file")


def _has_separator(name: str) -> bool:
    return any(mark in name for mark in (os.sep, os.altsep) if mark)


def _exists(name: str) -> bool:
    try:
        return Path(name).exists()
    except (OSError, ValueError):
        return False


def _read(path: Path, kind: type[S]) -> S:
    file = read_yaml(path)
    try:
        return kind.model_validate(file.data)
    except ValidationError as error:
        raise schema_error(file, error) from None
