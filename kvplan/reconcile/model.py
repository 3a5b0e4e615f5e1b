"""Which model a log is about: as the user says, as the log repeats its file's header, or by its name."""

from __future__ import annotations

import json
import re
from typing import Any

from kvplan.errors import InputError
from kvplan.reconcile.types import StartUp
from kvplan.specs.load import HUB_ID, list_models, load_model
from kvplan.specs.model import ModelSpec

# What makers of quantised weights put behind a model's name; it changes no byte of the cache.
_QUANTISED = re.compile(
    r"[-_. ](?:(?:UD-)?I?Q\d\w*|[BF]?F?(?:16|32)|MXFP\d\w*|NVFP4\w*|FP8\w*|W\dA\d+\w*|AWQ\w*|GPTQ\w*|INT\d+\w*|\d-?bit"
    r"|GGUF|bnb|dynamic|quantized|AutoRound|\d{5}-of-\d{5})(?=[-_. ]|$)",
    re.I,
)
_INFO = {
    "n_layer": "block_count", "trained": "context_length", "n_embd": "embedding_length",
    "n_embd_head_k": "attention.key_length", "n_embd_head_v": "attention.value_length",
    "n_swa": "attention.sliding_window", "ssm_d_conv": "ssm.conv_kernel", "ssm_d_inner": "ssm.inner_size",
    "ssm_d_state": "ssm.state_size", "ssm_dt_rank": "ssm.time_step_rank", "ssm_n_group": "ssm.group_count",
}  # fmt: skip
"""Figure of llama.cpp's print_info lines to the key of the file's header."""


def find_model(start: StartUp, asked: str | None) -> tuple[ModelSpec, str]:
    """The spec, and where it comes from in words.

    Args:
        asked: what the user gave: an id, a Hugging Face id or a path; None: the log must say.

    Raises:
        InputError: the log names no model that kvplan can read.
    """
    if asked is not None:
        return load_model(asked), "as given"
    values = {key: _value(text) for key, text in start.header}
    if "general.architecture" in values:
        return _imported(start, values), "from the header of the model file that the log repeats"
    if values := _printed_info(start):
        try:
            return _imported(start, values), "from the dimensions that the log prints"
        except InputError:
            pass
    return _by_name(start)


def _by_name(start: StartUp) -> tuple[ModelSpec, str]:
    if start.model is None:
        raise InputError(f"the log of {start.title} does not name its model", "give it: kvplan reconcile LOG MODEL")
    why = ""
    try:
        # A log's text opens no file: only names of shipped models and of the hub are looked up.
        if (known := _known(start.model)) or HUB_ID.fullmatch(start.model):
            return load_model(known or start.model), "by the name in the log"
    except InputError as error:
        why = f": {error.message}"
    raise InputError(
        f"the log's model {start.model!r} is not known{why}",
        "give its id, config.json or .gguf file: kvplan reconcile LOG MODEL",
    )


def _known(name: str) -> str | None:
    """The shipped spec of a name, in whatever spelling and however its weights are quantised; None if not just one."""
    base = re.sub(r"\.(?:gguf|bin)$", "", name.rsplit("/", 1)[-1], flags=re.I)
    bare = _QUANTISED.sub("", base)
    for wanted in dict.fromkeys((_letters(base), _letters(bare))):
        found = {model for model, names in _names().items() if wanted in names}
        if len(found) == 1:
            return found.pop()
    return None


def _names() -> dict[str, set[str]]:
    """Every shipped spec with its own name and those on the hub, letters and digits only."""
    made = {}
    for model in list_models():
        spec = load_model(model)
        hub = {_letters(name.rsplit("/", 1)[-1]) for name in spec.hf_ids}
        made[model] = {_letters(model), *hub}
    return made


def _letters(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


def _printed_info(start: StartUp) -> dict[str, Any]:
    """The header that llama.cpp's print_info lines stand for; empty without an architecture."""
    arch = start.option("arch")
    if not arch:
        return {}
    values: dict[str, Any] = {"general.architecture": arch}
    for name, key in _INFO.items():
        figure = next((p for p in start.printed if p.name == name and not p.rank), None)
        if figure is not None and figure.value:
            values[f"{arch}.{key}"] = int(figure.value)
    for name, key in (("n_head", "attention.head_count"), ("n_head_kv", "attention.head_count_kv")):
        if text := start.option(name):
            values[f"{arch}.{key}"] = _value(text)
    return values


def _imported(start: StartUp, values: dict[str, Any]) -> ModelSpec:
    from kvplan.specs.importers.gguf import import_header
    from kvplan.specs.importers.gguf_file import GgufHeader

    name = (start.model or "model in the log").replace("/", "-")
    return import_header(GgufHeader(name, values, ())).spec


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
