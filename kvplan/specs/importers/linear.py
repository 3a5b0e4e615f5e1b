"""Linear attention: gated DeltaNet, KDA, lightning, RWKV-7; and the words of the hybrids that mix them in."""

from __future__ import annotations

from typing import Any

from kvplan.specs.importers.attention import HIDDEN_NAMES, hidden_size, q_heads
from kvplan.specs.importers.family import FULL, LINEAR, Part, Words, fitted
from kvplan.specs.importers.fields import Fields
from kvplan.specs.importers.figure import HEAD_DIM, HEADS, LAYERS, WIDTH, Fallback, Figure, derived

KERNEL = 1024
"""Widest convolution that is believed, in tokens."""
STATE_DTYPE_NAMES = ("mamba_ssm_dtype", "mamba_ssm_cache_dtype", "linear_attn_state_dtype")


def state(cfg: Fields, name: str, shape: dict[str, Any]) -> Part:
    """A state layer: recurrent in float32 unless the config says otherwise, convolution rows in the model's type."""
    recurrent = "float32"
    for key in STATE_DTYPE_NAMES:
        given = cfg.word(key)
        if given in ("float32", "bfloat16", "float16"):
            recurrent = given
        elif given is not None:
            cfg.refuse(key, f"expected float32, bfloat16 or float16, got {given[:40]!r}")
    return Part(name, {"kind": "state", "state": shape, "dtype": {"recurrent": recurrent, "conv": "model"}})


def gated_deltanet(cfg: Fields, layer: int) -> tuple[Part, ...]:
    """Qwen3-Next, Qwen3.5, OLMo hybrid."""
    # OLMo hybrid leaves its four numbers open; elsewhere null means nothing.
    open_ended = cfg.model_type == "olmo_hybrid"

    def like_queries() -> Figure:
        heads = q_heads(cfg)
        return derived(heads, heads, rule=heads.source, instead=True)

    def pick(name: str, high: int, fallback: Fallback) -> Figure:
        return cfg.whole(name, high=high, null=fallback if open_ended else None)

    k_heads = pick("linear_num_key_heads", HEADS, like_queries)
    v_heads = pick("linear_num_value_heads", HEADS, like_queries)
    k_dim = pick("linear_key_head_dim", HEAD_DIM, lambda: _three_quarters(cfg, k_heads))
    v_dim = pick(
        "linear_value_head_dim",
        HEAD_DIM,
        lambda: derived(2 * k_dim, k_dim, rule=f"2 x {k_dim.source}", instead=True),
    )
    kernel = cfg.whole("linear_conv_kernel_dim", high=KERNEL)
    shape = {"type": "gated_deltanet", "k_heads": k_heads, "v_heads": v_heads, "k_dim": k_dim, "v_dim": v_dim}
    return (state(cfg, "gdn", {**shape, "conv_kernel": kernel}),)


def kda(cfg: Fields, layer: int) -> tuple[Part, ...]:
    """Kimi delta attention: its own mapping `linear_attn_config`, or the flat names of transformers."""
    given = cfg.child("linear_attn_config") or Fields({}, cfg.where, "")

    def pick(inner: str, outer: str, high: int) -> Figure:
        return given.whole(inner, high=high) if given.has(inner) else cfg.whole(outer, high=high)

    shape = {
        "type": "kda",
        "heads": pick("num_heads", "linear_num_heads", HEADS),
        "head_dim": pick("head_dim", "linear_head_dim", HEAD_DIM),
        "conv_kernel": pick("short_conv_kernel_size", "linear_conv_kernel_dim", KERNEL),
    }
    return (state(cfg, "kda", shape),)


def lightning(cfg: Fields, layer: int) -> tuple[Part, ...]:
    """MiniMax, Ring, Ling: as many state heads as query heads, no convolution."""
    heads = q_heads(cfg)

    def shared_out() -> Figure:
        hidden = hidden_size(cfg)
        return derived(hidden // heads, hidden, heads, rule=f"{hidden.source} / {heads.source}", instead=True)

    dim = cfg.whole("head_dim", high=HEAD_DIM, null=shared_out, absent=shared_out)
    return (state(cfg, "lightning", {"type": "lightning", "heads": heads, "head_dim": dim}),)


def bailing(cfg: Fields, layer: int) -> tuple[Part, ...]:
    """Bailing hybrids: delta attention where the config has its convolution, else lightning."""
    if not cfg.has("short_conv_kernel_size", "linear_attn_config"):
        return lightning(cfg, layer)
    heads = q_heads(cfg)
    dim = cfg.whole("linear_head_dim", "head_dim", high=HEAD_DIM)
    kernel = cfg.whole("short_conv_kernel_size", high=KERNEL)
    return (state(cfg, "kda", {"type": "kda", "heads": heads, "head_dim": dim, "conv_kernel": kernel}),)


def rwkv7(cfg: Fields, layer: int) -> tuple[Part, ...]:
    """RWKV-7: a matrix per head, and two rows for the token shift."""
    hidden = cfg.whole(*HIDDEN_NAMES, high=WIDTH)
    dim = cfg.whole("head_dim", "head_size", high=HEAD_DIM)
    if hidden % dim:
        cfg.refuse("head_dim", f"{int(dim)} does not divide the hidden size {int(hidden)}")
    return (state(cfg, "rwkv7", {"type": "rwkv7", "hidden": hidden, "head_dim": dim}),)


def rwkv4(cfg: Fields, layer: int) -> tuple[Part, ...]:
    """RWKV-4: five vectors per layer."""
    hidden = hidden_size(cfg)

    def same() -> Figure:
        return derived(hidden, hidden, rule=hidden.source, instead=True)

    attention = cfg.whole("attention_hidden_size", high=WIDTH, null=same, absent=same)
    return (state(cfg, "rwkv4", {"type": "rwkv4", "hidden": hidden, "attention": attention}),)


def kimi_words(cfg: Fields, layers: int) -> Words:
    """Kimi lists both kinds of layers, counted from one."""
    given = cfg.child("linear_attn_config")
    kda_layers = given.numbers("kda_layers", low=1, high=LAYERS) if given else None
    full_layers = given.numbers("full_attn_layers", low=1, high=LAYERS) if given else None
    if given is None or kda_layers is None or full_layers is None:
        return cfg.refuse("linear_attn_config", "kda_layers and full_attn_layers are missing: they say which is which")
    words: list[str | None] = [None] * layers
    for name, word, listed in (("kda_layers", LINEAR, kda_layers), ("full_attn_layers", FULL, full_layers)):
        for number in listed:
            if number > layers:
                given.refuse(name, f"layer {number} does not exist, the model has {layers} (counted from 1)")
            if words[number - 1] is not None:
                given.refuse(name, f"layer {number} is listed twice")
            words[number - 1] = word
    if None in words:
        given.refuse("kda_layers", f"layer {words.index(None) + 1} is in neither list (counted from 1)")
    source = f"{given.prefix}kda_layers and full_attn_layers"
    return Words([word for word in words if word], "read", source)


def grouped_words(cfg: Fields, layers: int) -> Words:
    """Bailing: the last layer of every `layer_group_size` is full attention."""
    size = cfg.whole("layer_group_size", high=LAYERS, default=False)
    words = [LINEAR if (i + 1) % size else FULL for i in range(layers)]
    return Words(words, size.how, size.source)


def typed_words(cfg: Fields, layers: int) -> Words:
    """MiniMax: `attn_type_list` has 0 for lightning and 1 for full attention."""
    given = cfg.numbers("attn_type_list", high=1)
    if given is None:
        return cfg.refuse("attn_type_list", "this field is missing: it says which layers are full attention")
    given = fitted(cfg, "attn_type_list", given, layers)
    return Words([FULL if one else LINEAR for one in given], "read", cfg.prefix + "attn_type_list")


def _three_quarters(cfg: Fields, heads: Figure) -> Figure:
    hidden = hidden_size(cfg)
    return derived(
        3 * hidden // (4 * heads), hidden, heads, rule=f"3/4 x {hidden.source} / {heads.source}", instead=True
    )
