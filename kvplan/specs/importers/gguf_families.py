"""The GGUF architectures that kvplan knows: which layer is of which kind, and what such a layer keeps."""

from __future__ import annotations

from collections.abc import Callable

from kvplan.specs.importers.family import CHUNKED, CONV, FULL, HYBRID, LINEAR, NONE, SLIDING, Family, Maker, Rule, Words
from kvplan.specs.importers.fields import Fields
from kvplan.specs.importers.figure import HEADS, LAYERS, TOKENS, WIDTH, Figure
from kvplan.specs.importers.gguf_fields import gguf_fields
from kvplan.specs.importers.gguf_latent import (
    HEAVY,
    SPARSE,
    WINDOW_ONLY,
    heavy,
    indexed_full,
    latent,
    ratio_words,
    sparse,
    window_only,
)
from kvplan.specs.importers.gguf_layers import (
    both,
    chunked,
    conv,
    deltanet,
    full,
    kda,
    mamba1,
    mamba2,
    no_cache,
    rwkv7,
    sliding,
)

PLAIN = (
    "apertus", "arcee", "baichuan", "bailingmoe", "bailingmoe2", "bloom", "chatglm", "command-r", "dbrx",
    "deepseek", "dots1", "ernie4_5", "ernie4_5-moe", "exaone", "falcon", "gemma", "glm4", "glm4moe", "gpt2",
    "gptneox", "granite", "granitemoe", "hunyuan-dense", "hunyuan-moe", "internlm2", "llama", "minicpm",
    "minimax-m2", "mistral3", "mpt", "nemotron", "olmo", "olmoe", "orion", "phi2", "phimoe", "qwen", "qwen2",
    "qwen2moe", "qwen2vl", "qwen3", "qwen3moe", "qwen3vl", "qwen3vlmoe", "seed_oss", "smollm3", "stablelm",
    "starcoder", "xverse",
)  # fmt: skip
"""Every layer full attention."""
PATTERNS = {
    "afmoe": (4, 3),
    "cohere2": (4, 3),
    "exaone-moe": (4, 3),
    "exaone4": (4, 3),
    "gemma2": (2, 1),
    "gemma3": (6, 5),
    "gemma3n": (5, 4),
    "gpt-oss": (2, 1),
    "olmo2": (4, 3),
}
"""Period of the layer pattern and the place of its full layer, as the runtime has it where the file is silent."""
STATED = ("gemma4", "mimo2", "step35")
"""Architectures whose files must state the pattern."""


def _all(word: str) -> Rule:
    return lambda cfg, layers: Words([word] * layers, "defaulted", f"architecture {cfg.model_type}")


def _plain_words(cfg: Fields, layers: int) -> Words:
    rows = cfg.data.get("attention.sliding_window")
    if rows:
        cfg.note(f"attention.sliding_window {rows} is ignored: the runtime keeps every token for {cfg.model_type}.")
    return Words([FULL] * layers, "defaulted", f"architecture {cfg.model_type}")


def _window_words(cfg: Fields, layers: int) -> Words:
    """Phi-3, StarCoder 2: every layer slides if the file names a window below the context."""
    rows = cfg.maybe("attention.sliding_window", high=TOKENS)
    slides = rows is not None and rows < cfg.whole("context_length", high=TOKENS)
    source = "attention.sliding_window" if slides else "no window below context_length"
    return Words([SLIDING if slides else FULL] * layers, "read", cfg.prefix + source)


def _pattern_words(cfg: Fields, layers: int) -> Words:
    """A list (true: sliding), a period whose last layer is full, or the architecture's own pattern."""
    name = "attention.sliding_window_pattern"
    if cfg.maybe("attention.sliding_window", high=TOKENS) is None:
        return Words([FULL] * layers, "read", f"no {cfg.prefix}attention.sliding_window")
    given = cfg.data.get(name)
    if isinstance(given, list):
        if len(given) < layers or not all(isinstance(x, bool | int) and x in (0, 1) for x in given):
            cfg.refuse(name, f"expected true or false for each of {layers} layers")
        return Words([SLIDING if x else FULL for x in given[:layers]], "read", cfg.prefix + name)
    if given is not None:
        period = cfg.whole(name, high=LAYERS)
        return Words([FULL if i % period == period - 1 else SLIDING for i in range(layers)], "read", cfg.prefix + name)
    if cfg.model_type not in PATTERNS:
        cfg.refuse(name, "this key is missing: it says which layers slide")
    every, place = PATTERNS[cfg.model_type]
    words = [FULL if i % every == place else SLIDING for i in range(layers)]
    return Words(words, "defaulted", f"architecture {cfg.model_type}: one of {every} layers is full")


def _chunk_words(cfg: Fields, layers: int) -> Words:
    """Llama 4: every fourth layer is full."""
    words = [FULL if i % 4 == 3 else CHUNKED for i in range(layers)]
    return Words(words, "defaulted", f"architecture {cfg.model_type}: one of 4 layers is full")


def _by_kv_heads(other: str) -> Rule:
    """Layers with KV heads are attention, those with 0 are of the `other` kind."""

    def rule(cfg: Fields, layers: int) -> Words:
        name = "attention.head_count_kv"
        if not isinstance(cfg.data.get(name), list):
            cfg.refuse(name, "expected a list: it says which layers are attention")
        words = [FULL if gguf_fields(cfg).at(name, i, high=HEADS) else other for i in range(layers)]
        return Words(words, "read", cfg.prefix + name)

    return rule


def _nemotron_words(cfg: Fields, layers: int) -> Words:
    """No KV heads: Mamba where the layer has no feed-forward network, else feed-forward only."""
    found = _by_kv_heads(NONE)(cfg, layers)
    here = gguf_fields(cfg)

    def recurrent(layer: int) -> bool:
        if here.tensors:
            return here.any_tensor(layer, "ssm_")
        return not here.at("feed_forward_length", layer, high=WIDTH)

    words = [LINEAR if word == NONE and recurrent(i) else word for i, word in enumerate(found.words)]
    return Words(words, found.how, found.source)


def _interval_words(cfg: Fields, layers: int) -> Words:
    """Qwen3-Next, Qwen3.5: the last of every few layers is attention."""
    name = "full_attention_interval"
    period = cfg.whole(name, high=LAYERS, absent=lambda: Figure(4, "defaulted", f"{name} of {cfg.model_type}"))
    words = [FULL if i % period == period - 1 else LINEAR for i in range(layers)]
    return Words(words, period.how, period.source)


def _shared_layers(cfg: Fields, words: list[str]) -> dict[int, tuple[int, ...]]:
    """Gemma 3n and 4: the last layers read the last earlier layer of their own kind."""
    name = "attention.shared_kv_layers"
    own = 20

    def rest() -> Figure:
        count = max(len(words) - own, 0) if cfg.model_type == "gemma3n" else 0
        return Figure(count, "defaulted", f"{cfg.model_type}: the first {own} layers keep a cache")

    first = len(words) - cfg.whole(name, low=0, high=LAYERS, absent=rest)
    found: dict[int, tuple[int, ...]] = {}
    for layer in range(max(first, 0), len(words)):
        owner = next((i for i in range(first - 1, -1, -1) if words[i] == words[layer]), None)
        if owner is None:
            cfg.refuse(name, f"no layer before layer {first} keeps the cache that layer {layer} would read")
        found[layer] = (owner,)
    return found


def _families() -> dict[str, Family]:
    plain: dict[str, Maker] = {FULL: full}
    windows: dict[str, Maker] = {FULL: full, SLIDING: sliding}
    made = {arch: _family(_plain_words, plain) for arch in PLAIN}
    made |= {arch: _family(_pattern_words, windows) for arch in (*PATTERNS, *STATED)}
    made |= {arch: _family(_window_words, windows) for arch in ("phi3", "starcoder2")}
    made |= {arch: _family(_all(FULL), {FULL: latent}) for arch in ("deepseek2", "deepseek32", "glm-dsa", "mistral4")}
    made |= {arch: _family(_interval_words, {FULL: full, LINEAR: deltanet}) for arch in _DELTANET}
    for arch, other, maker in _BY_KV_HEADS:
        made[arch] = _family(_by_kv_heads(other), {FULL: latent if arch == "kimi-linear" else full, other: maker})
    layered: dict[str, Maker] = {FULL: full, LINEAR: mamba2, NONE: no_cache}
    made |= {arch: _family(_nemotron_words, layered) for arch in ("nemotron_h", "nemotron_h_moe")}
    made |= {arch: _family(_pattern_words, windows, _shared_layers) for arch in ("gemma3n", "gemma4")}
    made["deepseek4"] = _family(ratio_words, {WINDOW_ONLY: window_only, SPARSE: sparse, HEAVY: heavy})
    made["minimax-m3"] = _family(_plain_words, {FULL: indexed_full})
    made["llama4"] = _family(_chunk_words, {FULL: full, CHUNKED: chunked})
    made["mamba"] = _family(_all(LINEAR), {LINEAR: mamba1})
    made["mamba2"] = _family(_all(LINEAR), {LINEAR: mamba2})
    made["rwkv7"] = _family(_all(LINEAR), {LINEAR: rwkv7})
    made["falcon-h1"] = _family(_all(HYBRID), {HYBRID: both})
    return made


_DELTANET = ("qwen3next", "qwen35", "qwen35moe")
_BY_KV_HEADS: tuple[tuple[str, str, Maker], ...] = (
    ("deci", NONE, no_cache),
    ("granitehybrid", LINEAR, mamba2),
    ("jamba", LINEAR, mamba1),
    ("kimi-linear", LINEAR, kda),
    ("lfm2", CONV, conv),
    ("lfm2moe", CONV, conv),
)


def _family(
    rule: Rule,
    makers: dict[str, Maker],
    sharing: Callable[[Fields, list[str]], dict[int, tuple[int, ...]]] | None = None,
) -> Family:
    return Family(rule, makers, lists=(), sharing=sharing)


GGUF_FAMILIES = _families()
"""Architecture to its family; any other is refused by name."""
