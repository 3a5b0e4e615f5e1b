"""From a transformers-style config.json to a spec."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from kvplan.errors import InputError, did_you_mean
from kvplan.specs.explain import schema_error
from kvplan.specs.importers.assemble import layer_groups, origins, prediction_groups, written
from kvplan.specs.importers.attention import HIDDEN_NAMES
from kvplan.specs.importers.context import max_context, native_dtype
from kvplan.specs.importers.family import mtp_layers
from kvplan.specs.importers.fields import YAML_HINT, Fields
from kvplan.specs.importers.figure import WIDTH, Figure, plain
from kvplan.specs.importers.hints import quantization_notes, unused_notes
from kvplan.specs.importers.jsonfile import read_config
from kvplan.specs.importers.result import Imported, Origin
from kvplan.specs.importers.table import FAMILIES, canonical
from kvplan.specs.model import ModelSpec
from kvplan.specs.yamlfile import YamlFile, one_line

TEXT_MODELS = ("text_config", "llm_config", "language_config", "thinker_config")
"""Where the language model of a larger model stands, in order; towers for images and sound are never read."""


def import_config(data: dict[str, Any], where: str) -> Imported:
    """The spec of a parsed config.json.

    Args:
        data: the parsed JSON object.
        where: the file's name (or the hub id), for messages and for the spec's id.

    Raises:
        InputError: an unknown architecture, or a field that is missing or impossible, by its name.
    """
    cfg = text_model(data, where)
    family = FAMILIES[cfg.model_type]
    layers = family.count(cfg)
    words = family.layer_words(cfg, layers)
    groups = layer_groups(cfg, family, words)
    context = max_context(cfg)
    dtype, stated, dtype_source = native_dtype(cfg)
    found = [
        Origin("layers", str(int(layers)), layers.how, layers.source),
        Origin("max_context", str(int(context)), context.how, context.source),
        Origin("native_dtype", dtype, "read" if stated else "assumed", dtype_source),
        *origins(groups, words, layers),
    ]
    body: dict[str, Any] = {
        "kvplan_spec": 1,
        "id": spec_id(where, cfg.model_type),
        "model_type": cfg.model_type,
        "max_context": context,
        "layers": layers,
        "native_dtype": dtype,
        "layer_groups": written(groups, layers),
    }
    for name, number in _sizes(cfg).items():
        body[name] = number
        found.append(Origin(name, str(int(number)), number.how, number.source))
    extra = mtp_layers(cfg)
    if extra:
        body["mtp"] = {"layers": extra, "cache_like": prediction_groups(groups)}
        found.append(Origin("mtp.layers", str(int(extra)), extra.how, extra.source))
    notes = (*cfg.notes, *unused_notes(cfg), *quantization_notes(cfg))
    body |= _about(where, found, notes)
    return Imported(_validated(plain(body), where), tuple(found), notes)


def import_path(path: Path) -> Imported:
    """The spec of a config.json file, or of a folder that holds one.

    Raises:
        InputError: see `import_config`; also an unreadable file or one that is no JSON object.
    """
    file = path / "config.json" if path.is_dir() else path
    if path.is_dir() and not file.exists():
        raise InputError(
            f"{one_line(str(path))}: no config.json in this folder", f"give a model folder, or {YAML_HINT}"
        )
    return import_config(read_config(file), str(file))


def text_model(data: dict[str, Any], where: str) -> Fields:
    """The fields of the language model inside a config, under a model type that is known."""
    cfg = Fields(data, where, "")
    outer = cfg.word("model_type")
    for name in TEXT_MODELS:
        inner = cfg.child(name)
        if inner and name == "thinker_config":
            inner = inner.child("text_config") or inner
        if inner and inner.data:
            cfg = inner
            break
    given = cfg.word("model_type") or outer
    if given is None:
        cfg.refuse("model_type", "this field is missing: it says which architecture this is")
    known = canonical(given)
    if known is None:
        near = did_you_mean(given, sorted(FAMILIES)).split("; known:")[0].split("? known:")[0]
        hint = f"did you mean {near.removeprefix('did you mean ')}? " if near.startswith("did you mean") else ""
        cfg.refuse("model_type", f"unknown architecture {given[:60]!r}", f"{hint}{YAML_HINT}")
    return Fields(cfg.data, where, known, prefix=cfg.prefix, top=data)


def spec_id(where: str, model_type: str) -> str:
    """A name for the spec: the file's, or its folder's where the file is called config.json."""
    parts = [part for part in where.replace("\\", "/").split("/") if part not in ("", ".", "..")]
    name = parts[-1] if parts else ""
    # The hub's cache: models--owner--name/snapshots/<hash>/config.json.
    cached = next((part for part in parts if part.startswith("models--")), None)
    if cached and name.lower() == "config.json":
        name = cached.split("--")[-1]
    elif name.lower() == "config.json":
        name = parts[-2] if len(parts) > 1 else model_type
    name = name.removesuffix(".json").lower()
    return re.sub(r"[^a-z0-9._-]+", "-", name).strip("-._")[:100] or re.sub(r"[^a-z0-9._-]+", "-", model_type)


def _sizes(cfg: Fields) -> dict[str, Figure]:
    """Numbers that change no cache byte, where they are given."""
    hidden = cfg.maybe(*HIDDEN_NAMES, high=WIDTH, default=False)
    vocab = cfg.maybe("vocab_size", "padded_vocab_size", high=2**30, default=False)
    return {name: number for name, number in (("hidden_size", hidden), ("vocab_size", vocab)) if number}


def _about(where: str, found: list[Origin], notes: tuple[str, ...]) -> dict[str, Any]:
    """Provenance, remarks, and what every plan of this spec must repeat."""
    return {
        "provenance": {"confidence": "single-source", "sources": [f"imported from {one_line(where, 300)}"]},
        "assumptions": assumptions(found),
        "notes": [one_line(note, 600) for note in notes],
    }


def assumptions(found: list[Origin]) -> list[str]:
    """One line each for what the file left open: defaulted numbers, then assumed ones."""
    lines = []
    for how, text in (("defaulted", "Not in the config, filled in"), ("assumed", "Assumed")):
        items = [f"{o.field} = {o.value} ({o.source})" for o in found if o.how == how]
        if items:
            more = f"; and {len(items) - 8} more" if len(items) > 8 else ""
            lines.append(one_line(f"{text}: {'; '.join(items[:8])}{more}.", 1900))
    return lines


def _validated(body: dict[str, Any], where: str) -> ModelSpec:
    try:
        return ModelSpec.model_validate(body)
    except ValidationError as error:
        problem = schema_error(YamlFile(one_line(where), body), error)
        raise InputError(f"{problem.message} (after import)", YAML_HINT) from None
