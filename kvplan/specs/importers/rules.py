"""Which layers slide, where a config has no list of layer types: one rule per way of saying it.

Sources: the config classes of transformers 5.24.0 and the table of field names in the project's facts.
"""

from __future__ import annotations

from collections.abc import Callable

from kvplan.specs.importers.family import CHUNKED, FULL, SLIDING, Rule, Words, fitted
from kvplan.specs.importers.fields import Fields
from kvplan.specs.importers.figure import LAYERS
from kvplan.specs.importers.result import How


def constant(word: str) -> Rule:
    """Every layer alike."""

    def rule(cfg: Fields, layers: int) -> Words:
        return Words([word] * layers, "read", f"model_type: every layer of {cfg.model_type}")

    return rule


all_full = constant(FULL)


def every_window(cfg: Fields, layers: int) -> Words:
    """Every layer slides, if there is a window."""
    return Words([SLIDING] * layers, "read", f"model_type: every layer of {cfg.model_type}, if there is a window")


def later_window(cfg: Fields, layers: int) -> Words:
    """Layers from `max_window_layers` on slide."""
    first = cfg.whole("max_window_layers", low=0, high=LAYERS, absent=None)
    return Words(_where(layers, lambda i: i >= first), first.how, first.source)


def gated_later_window(cfg: Fields, layers: int) -> Words:
    """Layers from `max_window_layers` on slide, but only with `use_sliding_window: true` (Qwen)."""
    if not cfg.flag("use_sliding_window", False):
        return _switched_off(cfg, layers)
    return later_window(cfg, layers)


def gated_window(cfg: Fields, layers: int) -> Words:
    """All layers slide, but only with `use_sliding_window: true`."""
    return every_window(cfg, layers) if cfg.flag("use_sliding_window", False) else _switched_off(cfg, layers)


def gated_early_window(cfg: Fields, layers: int) -> Words:
    """Even layers below `max_window_layers` slide, but only with `use_sliding_window: true` (Qwen2-MoE)."""
    if not cfg.flag("use_sliding_window", False):
        return _switched_off(cfg, layers)
    end = cfg.whole("max_window_layers", low=0, high=LAYERS, absent=None)
    return Words(_where(layers, lambda i: i % 2 == 0 and i < end), end.how, end.source)


def every(period: int, *names: str, other: str = SLIDING, word: str = FULL) -> Rule:
    """Of every `period` layers the last is `word`; the file may give another period, or letters such as LLLG."""

    def rule(cfg: Fields, layers: int) -> Words:
        for name in names:
            if isinstance(cfg.data.get(name), str):
                return _letters(cfg, name, layers)
            if cfg.has(name):
                n = cfg.whole(name, low=1, high=LAYERS)
                return Words(_last_of(n, layers, other, word), "read", cfg.prefix + name)
        source = f"{cfg.model_type}'s config class: layer {period} of every {period} is {word}"
        return Words(_last_of(period, layers, other, word), "defaulted", source)

    return rule


def first_of(period: int) -> Rule:
    """Of every `period` layers the first is full."""

    def rule(cfg: Fields, layers: int) -> Words:
        source = f"{cfg.model_type}'s config class: layer 1 of every {period} is full"
        return Words(_where(layers, lambda i: i % period != 0), "defaulted", source)

    return rule


def first_and_every(period: int) -> Rule:
    """The first layer is full, and the last of every `period`."""

    def rule(cfg: Fields, layers: int) -> Words:
        source = f"{cfg.model_type}'s config class: layer 1, and the last of every {period}, are full"
        return Words(_where(layers, lambda i: i != 0 and (i + 1) % period != 0), "defaulted", source)

    return rule


def needed(name: str) -> Rule:
    """No rule: without the list nobody knows."""

    def rule(cfg: Fields, layers: int) -> Words:
        return cfg.refuse(name, "this field is missing: it says what each layer is")

    return rule


def last_is_full(period: int) -> Rule:
    """Counted from the last layer, every `period`-th is full."""

    def rule(cfg: Fields, layers: int) -> Words:
        source = f"{cfg.model_type}'s config class: every {period}th layer from the last one is full"
        return Words(_where(layers, lambda i: (layers - 1 - i) % period != 0), "defaulted", source)

    return rule


def flagged(*names: str, otherwise: Rule) -> Rule:
    """A list with one number per layer: 1 slides, 0 is full."""

    def rule(cfg: Fields, layers: int) -> Words:
        for name in names:
            given = cfg.numbers(name, high=1)
            if given is not None:
                flags = fitted(cfg, name, given, layers)
                return Words([SLIDING if flag else FULL for flag in flags], "read", cfg.prefix + name)
        return otherwise(cfg, layers)

    return rule


def listed(name: str, word: str, other: str, otherwise: Rule | None = None) -> Rule:
    """A list of the zero-based layers that are `word`."""

    def rule(cfg: Fields, layers: int) -> Words:
        given = cfg.numbers(name, high=LAYERS)
        if given is None:
            if otherwise:
                return otherwise(cfg, layers)
            cfg.refuse(name, f"this field is missing: it says which layers are {word}")
        inside = indices(cfg, name, given, layers)
        return Words([word if i in inside else other for i in range(layers)], "read", cfg.prefix + name)

    return rule


def indices(cfg: Fields, name: str, given: list[int], layers: int) -> set[int]:
    """Layer indices that exist, none given twice."""
    for place, i in enumerate(given):
        if i >= layers:
            cfg.refuse(f"{name}[{place}]", f"layer {i} does not exist, the model has {layers} (counted from 0)")
        if i in given[:place]:
            cfg.refuse(f"{name}[{place}]", f"layer {i} is listed twice")
    return set(given)


def chunked(cfg: Fields, layers: int) -> Words:
    """Llama 4: layers with rotary position attend in chunks, those without see everything."""
    given = cfg.numbers("no_rope_layers", high=1)
    if given:
        given = fitted(cfg, "no_rope_layers", given, layers)
        return Words([CHUNKED if rope else FULL for rope in given], "read", cfg.prefix + "no_rope_layers")
    interval = cfg.whole("no_rope_layer_interval", high=LAYERS, null=None)
    return Words(_last_of(interval, layers, CHUNKED, FULL), interval.how, interval.source)


def rope_free_window(cfg: Fields, layers: int) -> Words:
    """SmolLM3: layers without rotary position slide, if sliding is switched on at all."""
    if not cfg.flag("use_sliding_window", False):
        return _switched_off(cfg, layers)
    given = cfg.numbers("no_rope_layers", high=1)
    if given:
        given = fitted(cfg, "no_rope_layers", given, layers)
        return Words(_where(layers, lambda i: given[i] == 0), "read", cfg.prefix + "no_rope_layers")
    interval = cfg.whole("no_rope_layer_interval", high=LAYERS)
    return Words(_last_of(interval, layers, FULL, SLIDING), interval.how, interval.source)


def dense_prefix(cfg: Fields, layers: int) -> Words:
    """Cohere 2 MoE: the dense layers at the start have a pattern of their own, then the usual one begins anew."""
    dense = min(cfg.maybe("first_k_dense_replace", high=LAYERS) or 0, layers)
    before = cfg.maybe("prefix_dense_sliding_window_pattern", high=LAYERS) or 1
    period = cfg.whole("sliding_window_pattern", high=LAYERS)
    words = _last_of(before, dense, SLIDING, FULL) + _last_of(period, layers - dense, SLIDING, FULL)
    return Words(words, period.how, period.source)


def local_pairs(cfg: Fields, layers: int) -> Words:
    """GPT-Neo: attention_types is a list of [pattern, repeats]."""
    words: list[str] = []
    for item in cfg.items("attention_types") or []:
        if not isinstance(item, list) or len(item) != 2 or not isinstance(item[0], list) or type(item[1]) is not int:
            cfg.refuse("attention_types", "expected pairs of a pattern and a count")
        if not 0 < item[1] <= LAYERS or len(item[0]) * item[1] > LAYERS:
            cfg.refuse("attention_types", f"expected a pattern of at most {LAYERS:,} layers in all")
        words += [str(word) for word in item[0]] * item[1]
    if not words:
        cfg.refuse("attention_types", "this field is missing: it says which layers are local")
    return Words(fitted(cfg, "attention_types", words, layers), "read", cfg.prefix + "attention_types")


def _switched_off(cfg: Fields, layers: int) -> Words:
    how: How = "read" if cfg.has("use_sliding_window") else "defaulted"
    return Words([FULL] * layers, how, "use_sliding_window: false")


def _letters(cfg: Fields, name: str, layers: int) -> Words:
    """A pattern such as LLLG: L slides, G is full."""
    letters = cfg.word(name) or ""
    if not letters or set(letters) - {"L", "G"}:
        cfg.refuse(name, f"expected letters L (sliding) and G (full), got {letters[:40]!r}")
    words = [SLIDING if letters[i % len(letters)] == "L" else FULL for i in range(layers)]
    return Words(words, "read", cfg.prefix + name)


def _last_of(period: int, layers: int, other: str, word: str) -> list[str]:
    return [other if (i + 1) % period else word for i in range(layers)]


def _where(layers: int, slides: Callable[[int], bool]) -> list[str]:
    return [SLIDING if slides(i) else FULL for i in range(layers)]
