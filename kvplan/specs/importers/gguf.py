"""From a GGUF header to a spec: metadata for the shapes, tensor infos for exact weight bytes and for traits."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from kvplan.errors import InputError, nearest
from kvplan.specs.explain import schema_error
from kvplan.specs.importers.assemble import layer_groups, origins, prediction_groups, written
from kvplan.specs.importers.config import assumptions, spec_id
from kvplan.specs.importers.fields import YAML_HINT
from kvplan.specs.importers.figure import LAYERS, TOKENS, WIDTH, Figure, derived, plain
from kvplan.specs.importers.gguf_families import GGUF_FAMILIES
from kvplan.specs.importers.gguf_fields import GgufFields
from kvplan.specs.importers.gguf_file import GgufHeader, LongList, read_header
from kvplan.specs.importers.result import Imported, Origin
from kvplan.specs.model import ModelSpec
from kvplan.specs.yamlfile import YamlFile, one_line


def import_gguf(path: Path) -> Imported:
    """The spec of a GGUF file (or of a split model, by any of its parts), from its header alone.

    Raises:
        InputError: the `gguf` package is missing; the file is no little-endian GGUF, truncated, or lacks a part; its
            architecture is unknown; or a key is missing or impossible, by its name.
    """
    return import_header(read_header(path))


def import_header(header: GgufHeader) -> Imported:
    """The spec of a header that was read already; without tensors the spec has no weights.

    Raises:
        InputError: the architecture is unknown; or a key is missing or impossible, by its name.
    """
    cfg = _fields(header)
    family = GGUF_FAMILIES[cfg.model_type]
    layers, extra = _layers(cfg)
    words = family.layer_words(cfg, layers)
    groups = layer_groups(cfg, family, words)
    context = cfg.whole("context_length", high=TOKENS)
    hidden = cfg.whole("embedding_length", high=WIDTH)
    dtype, how = _native_dtype(header)
    found = [
        Origin("layers", str(int(layers)), layers.how, layers.source),
        Origin("max_context", str(int(context)), context.how, context.source),
        Origin("native_dtype", dtype, how, "tensor types" if how == "read" else "the runtime's 16-bit cache type"),
        Origin("hidden_size", str(int(hidden)), hidden.how, hidden.source),
        *origins(groups, words, layers),
    ]
    body: dict[str, Any] = {
        "kvplan_spec": 1,
        "id": spec_id(header.where.removesuffix(".gguf"), cfg.model_type),
        "model_type": cfg.model_type,
        "max_context": context,
        "layers": layers,
        "native_dtype": dtype,
        "hidden_size": hidden,
        "layer_groups": written(groups, layers),
    }
    vocabulary = _vocabulary(cfg, header)
    if vocabulary:
        body["vocab_size"] = vocabulary
        found.append(Origin("vocab_size", str(int(vocabulary)), vocabulary.how, vocabulary.source))
    if extra:
        body["mtp"] = {"layers": extra, "cache_like": prediction_groups(groups)}
        found.append(Origin("mtp.layers", str(int(extra)), extra.how, extra.source))
    body |= _weights(header, found)
    body |= {
        "provenance": {"confidence": "single-source", "sources": [f"imported from {one_line(header.where, 300)}"]},
        "assumptions": assumptions(found),
        "notes": [one_line(note, 600) for note in cfg.notes],
    }
    return Imported(_validated(plain(body), header.where), tuple(found), tuple(cfg.notes))


def _fields(header: GgufHeader) -> GgufFields:
    """The metadata of the architecture, its prefix taken off."""
    arch = header.values.get("general.architecture")
    if not isinstance(arch, str):
        raise InputError(f"{header.where}: general.architecture is missing", YAML_HINT)
    if arch not in GGUF_FAMILIES:
        near = nearest(arch, GGUF_FAMILIES)
        text = f"{header.where}: general.architecture: unknown architecture {one_line(arch, 60)!r}"
        raise InputError(text, f"did you mean {near}? {YAML_HINT}" if near else YAML_HINT)
    data = {key.removeprefix(arch + "."): v for key, v in header.values.items() if key.startswith(arch + ".")}
    return GgufFields(data, header.where, arch, prefix=f"{arch}.", tensors=header.tensors)


def _layers(cfg: GgufFields) -> tuple[Figure, Figure | None]:
    """Layers and prediction layers: block_count counts both."""
    blocks = cfg.whole("block_count", high=LAYERS)
    extra = cfg.maybe("nextn_predict_layers", high=LAYERS)
    if extra is None:
        return blocks, None
    if extra >= blocks:
        cfg.refuse("nextn_predict_layers", f"expected less than block_count = {int(blocks)}, got {int(extra)}")
    cfg.note(f"The last {int(extra)} of {int(blocks)} blocks predict further tokens; they are no layers of the model.")
    return derived(blocks - extra, blocks, extra, rule=f"{blocks.source} - {extra.source}"), extra


def _native_dtype(header: GgufHeader) -> tuple[str, Any]:
    """The type of an unquantised cache: bfloat16 where most weights have it, else the runtime's own float16."""
    elements = Counter[str]()
    for tensor in header.tensors:
        elements[tensor.dtype] += tensor.elements
    most = elements.most_common(1)[0][0] if elements else ""
    known = {"bf16": "bfloat16", "f16": "float16"}
    return (known[most], "read") if most in known else ("float16", "assumed")


def _vocabulary(cfg: GgufFields, header: GgufHeader) -> Figure | None:
    number = cfg.maybe("vocab_size", high=2**30, default=False)
    tokens = header.values.get("tokenizer.ggml.tokens")
    if number is None and isinstance(tokens, list | LongList):
        length = tokens.length if isinstance(tokens, LongList) else len(tokens)
        return Figure(length, "read", "length of tokenizer.ggml.tokens") if length else None
    return number


def _weights(header: GgufHeader, found: list[Origin]) -> dict[str, Any]:
    """Exact bytes and elements of all tensors, and the number type that takes most of the bytes."""
    nbytes = Counter[str]()
    for tensor in header.tensors:
        nbytes[tensor.dtype] += tensor.nbytes
    if not nbytes.total():
        return {}
    source = f"the sum over {len(header.tensors):,} tensors"
    found.append(Origin("weights.bytes", str(nbytes.total()), "read", source))
    elements = sum(tensor.elements for tensor in header.tensors)
    found.append(Origin("params.total", str(elements), "read", source))
    weights = {"bytes": nbytes.total(), "dtype": nbytes.most_common(1)[0][0]}
    return {"params": {"total": elements}, "weights": weights}


def _validated(body: dict[str, Any], where: str) -> ModelSpec:
    try:
        return ModelSpec.model_validate(body)
    except ValidationError as error:
        problem = schema_error(YamlFile(where, body), error)
        raise InputError(f"{problem.message} (after import)", YAML_HINT) from None
