"""Layers that read another layer's cache instead of keeping one."""

from __future__ import annotations

from kvplan.specs.importers.attention import full, window
from kvplan.specs.importers.family import FULL, LINEAR, NONE, SLIDING, Part, Words
from kvplan.specs.importers.fields import Fields
from kvplan.specs.importers.figure import LAYERS, TOKENS, Figure

SHARED = "shared"


def last_layers(cfg: Fields, words: list[str]) -> dict[int, tuple[int, ...]]:
    """Gemma 3n and 4: the last `num_kv_shared_layers` read the last earlier layer of their own type."""
    count = cfg.whole("num_kv_shared_layers", low=0, high=LAYERS)
    if count.how != "read":
        cfg.note(f"num_kv_shared_layers is not given: {int(count)}, as in {count.source}.")
    first = len(words) - count
    found: dict[int, tuple[int, ...]] = {}
    for layer in range(max(first, 0), len(words)):
        owner = next((i for i in range(first - 1, -1, -1) if words[i] == words[layer]), None)
        if owner is None:
            text = f"no layer before layer {first} keeps the {words[layer]} cache that layer {layer} would read"
            cfg.refuse("num_kv_shared_layers", text)
        found[layer] = (owner,)
    return found


def cross_layer(cfg: Fields, words: list[str]) -> dict[int, tuple[int, ...]]:
    """Hunyuan: with `use_cla`, the first of every `cla_share_factor` layers owns the cache of all of them."""
    if not cfg.flag("use_cla", False):
        return {}
    factor = cfg.whole("cla_share_factor", high=LAYERS, default=False)
    return {i: (i - i % factor,) for i in range(len(words)) if i % factor}


def decoder_decoder(cfg: Fields, layers: int) -> Words:
    """Phi-4 flash (SambaY): the second half reads the one full layer, and its Mamba layers become gates."""
    period = cfg.whole("mb_per_layer", high=LAYERS, absent=lambda: Figure(2, "defaulted", "mb_per_layer of phi4flash"))
    half = layers // 2
    words = []
    for i in range(layers):
        recurrent = i % period == 0
        if i < half + 2:
            words.append(LINEAR if recurrent else FULL if i == half + 1 else SLIDING)
        else:
            words.append(NONE if recurrent else SHARED)
    return Words(words, period.how, period.source)


def flash_sliding(cfg: Fields, layer: int) -> tuple[Part, ...]:
    """Phi-4 flash: the window is one number, or a list with one for each layer (null: none)."""
    part = full(cfg, layer)[0]
    given = cfg.data.get("sliding_window")
    if isinstance(given, list):
        entry = Fields({"sliding_window": given[layer] if layer < len(given) else None}, cfg.where, "")
        rows = entry.maybe("sliding_window", high=TOKENS)
    else:
        rows = window(cfg)
    return (Part("sliding", {**part.body, "retain": {"window": rows}}) if rows else part,)


def reads_full(cfg: Fields, words: list[str]) -> dict[int, tuple[int, ...]]:
    """Phi-4 flash: shared layers read the full layer."""
    owner = tuple(i for i, word in enumerate(words) if word == FULL)
    return {i: owner for i, word in enumerate(words) if word == SHARED}
