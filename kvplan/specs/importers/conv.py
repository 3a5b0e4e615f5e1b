"""Short convolutions, and the recurrence of RecurrentGemma: rows that never grow."""

from __future__ import annotations

from dataclasses import replace

from kvplan.specs.importers.attention import (
    attention,
    full,
    head_dim,
    hidden_size,
    keep,
    kv_heads,
    plain_attention,
    q_heads,
    traits,
    window,
)
from kvplan.specs.importers.family import CONV, FULL, LINEAR, SLIDING, Part, Words
from kvplan.specs.importers.fields import Fields
from kvplan.specs.importers.figure import LAYERS, WIDTH, Fallback, Figure, derived
from kvplan.specs.importers.linear import KERNEL, state
from kvplan.specs.importers.rules import indices


def short_conv(cfg: Fields, layer: int) -> tuple[Part, ...]:
    """LFM: convolution rows only; conv_L_cache counts the current token too."""
    whole = _hidden_instead(cfg)
    dim = cfg.whole("conv_dim", "block_dim", high=WIDTH, default=False, null=whole, absent=whole)
    kernel = cfg.whole("conv_L_cache", high=KERNEL)
    return (_rows(cfg, "conv", dim, kernel),)


def lfm_words(cfg: Fields, layers: int) -> Words:
    """LFM 2: a list of the attention layers."""
    given = cfg.numbers("full_attn_idxs", high=LAYERS)
    if given is None:
        return cfg.refuse("layer_types", "this field (or full_attn_idxs) is missing: it says which layers are conv")
    inside = indices(cfg, "full_attn_idxs", given, layers)
    return Words([FULL if i in inside else CONV for i in range(layers)], "read", cfg.prefix + "full_attn_idxs")


def lfm3_words(cfg: Fields, layers: int) -> Words:
    """LFM 3: conv, then full and sliding in turn at every second layer."""
    words = [FULL if i % 4 == 2 else SLIDING if i and i % 4 == 0 else CONV for i in range(layers)]
    return Words(words, "defaulted", f"{cfg.model_type}'s config class")


def rg_lru(cfg: Fields, layer: int) -> tuple[Part, ...]:
    """RecurrentGemma: a gated linear recurrence behind a short convolution."""
    width = cfg.whole("lru_width", high=WIDTH, null=_hidden_instead(cfg), absent=_hidden_instead(cfg))
    kernel = cfg.whole("conv1d_width", high=KERNEL)
    return (state(cfg, "rglru", {"type": "rglru", "width": width, "conv_kernel": kernel}),)


def cca(cfg: Fields, layer: int) -> tuple[Part, ...]:
    """Zaya: attention whose queries and keys pass two convolutions, and whose values come half from the last token."""
    return _with_cca(cfg, plain_attention(cfg, "full"))


def cca_sliding(cfg: Fields, layer: int) -> tuple[Part, ...]:
    """The same over a window."""
    rows = window(cfg)
    return _with_cca(cfg, plain_attention(cfg, "sliding", keep(rows)) if rows else plain_attention(cfg, "full"))


def _with_cca(cfg: Fields, part: Part) -> tuple[Part, ...]:
    heads, kv, dim = part.body["q_heads"], part.body["kv_heads"], part.body["head_dim"]
    if kv * dim % 2:
        cfg.refuse("head_dim", f"{int(kv)} x {int(dim)} value channels have no half")
    channels = derived((heads + kv) * dim, heads, kv, dim, rule=f"({heads.source} + {kv.source}) x {dim.source}")
    values = derived(kv * dim // 2, kv, dim, rule=f"half of {kv.source} x {dim.source}")
    first, second = (cfg.whole(f"cca_time{i}", high=KERNEL) for i in (0, 1))
    kernel = derived(first + second - 1, first, second, rule=f"{first.source} + {second.source} - 1")
    made = state(cfg, "cca", {"type": "cca", "channels": channels, "values": values, "conv_kernel": kernel})
    # The delayed values are rows of the model, not an accumulated state.
    return part, replace(made, body={**made.body, "dtype": {"recurrent": "model", "conv": "model"}})


def block_words(cfg: Fields, layers: int) -> Words:
    """RecurrentGemma: `block_types` repeats over the layers."""
    blocks = cfg.words("block_types")
    source = cfg.prefix + "block_types"
    if not blocks:
        blocks = ["recurrent", "recurrent", "attention"]
        source = f"{cfg.model_type}'s config class: {', '.join(blocks)}"
    known = {"recurrent": LINEAR, "attention": SLIDING}
    for i, block in enumerate(blocks):
        if block not in known:
            cfg.refuse(f"block_types[{i}]", f"unknown block {block[:40]!r}, expected one of {', '.join(known)}")
    words = [known[blocks[i % len(blocks)]] for i in range(layers)]
    return Words(words, "read" if cfg.has("block_types") else "defaulted", source)


def dual_full(cfg: Fields, layer: int) -> tuple[Part, ...]:
    """Baichuan M1: full layers, with a convolution over keys and values."""
    return _with_kv_conv(cfg, full(cfg, layer)[0])


def dual_sliding(cfg: Fields, layer: int) -> tuple[Part, ...]:
    """Baichuan M1: sliding layers have head counts of their own."""
    heads = q_heads(cfg, "num_swa_attention_heads")
    kv = kv_heads(cfg, heads, ("num_swa_key_value_heads",))
    rows = window(cfg)
    part = attention("sliding", heads, kv, head_dim(cfg, heads), retain=keep(rows))
    return _with_kv_conv(cfg, part)


def inkling_full(cfg: Fields, layer: int) -> tuple[Part, ...]:
    """Inkling: a full layer with its four short convolutions."""
    return _with_streams(cfg, full(cfg, layer)[0])


def inkling_sliding(cfg: Fields, layer: int) -> tuple[Part, ...]:
    """Inkling: a sliding layer with heads of its own and its four short convolutions."""
    heads = q_heads(cfg, "swa_num_attention_heads")
    kv = kv_heads(cfg, heads, ("swa_num_key_value_heads",))
    dim = head_dim(cfg, heads, ("swa_head_dim",))
    return _with_streams(cfg, attention("sliding", heads, kv, dim, retain=keep(window(cfg)), has=traits(cfg)))


def _hidden_instead(cfg: Fields) -> Fallback:
    """The hidden size, where a width of its own is not given."""

    def found() -> Figure:
        hidden = hidden_size(cfg)
        return derived(hidden, hidden, rule=hidden.source, instead=True)

    return found


def _with_kv_conv(cfg: Fields, part: Part) -> tuple[Part, ...]:
    heads, dim = part.body["kv_heads"], part.body["head_dim"]
    channels = derived(2 * heads * dim, heads, dim, rule=f"K and V of {heads.source} x {dim.source}")
    return part, _rows(cfg, "kv-conv", channels, cfg.whole("conv_window", high=KERNEL))


def _with_streams(cfg: Fields, part: Part) -> tuple[Part, ...]:
    """K, V, the attention's output and the feed-forward's output each pass a short convolution."""
    heads, dim, hidden = part.body["kv_heads"], part.body["head_dim"], hidden_size(cfg)
    channels = 2 * heads * dim + 2 * hidden
    width = Figure(channels, "assumed", "convolutions over K, V and two outputs of the hidden size")
    kernel = cfg.whole("conv_kernel_size", "sconv_kernel_size", high=KERNEL)
    cfg.note("The short-convolution state (K, V and two outputs of the hidden size) is derived from a description.")
    return part, _rows(cfg, "short-conv", width, kernel)


def _rows(cfg: Fields, name: str, dim: Figure, kernel: Figure) -> Part:
    return state(cfg, name, {"type": "short_conv", "dim": dim, "conv_kernel": kernel})
