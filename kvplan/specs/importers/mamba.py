"""Mamba layers, first and second version, and the words of the hybrids around them."""

from __future__ import annotations

from kvplan.specs.importers.attention import attention, full, hidden_size, kv_heads, q_heads
from kvplan.specs.importers.family import FULL, HYBRID, LINEAR, NONE, Part, Words, fitted
from kvplan.specs.importers.fields import Fields
from kvplan.specs.importers.figure import HEAD_DIM, HEADS, LAYERS, WIDTH, Figure, derived
from kvplan.specs.importers.linear import KERNEL, state
from kvplan.specs.importers.rules import indices

HEAD_NAMES = ("mamba_num_heads", "mamba_n_heads", "n_mamba_heads")
DIM_NAMES = ("mamba_head_dim", "mamba_d_head", "mamba_headdim")
STATE_NAMES = ("ssm_state_size", "mamba_d_state", "state_size")
GROUP_NAMES = ("mamba_n_groups", "mamba_ngroups", "n_groups")
KERNEL_NAMES = ("mamba_d_conv", "conv_kernel", "d_conv")
EXPAND_NAMES = ("mamba_expand", "expand")
LETTERS = {"M": LINEAR, "*": FULL, "-": NONE, "E": NONE}
"""Characters of hybrid_override_pattern: Mamba, attention, dense and expert feed-forward."""


def mamba1(cfg: Fields, layer: int) -> tuple[Part, ...]:
    """Jamba, Mamba, FalconMamba: `expand` times the hidden size, unless the config gives the inner width itself."""
    # Jamba's intermediate_size is its feed-forward width; FalconMamba's expand is wrong, its intermediate_size right.
    if cfg.model_type in ("mamba", "falcon_mamba"):
        inner = cfg.whole("intermediate_size", high=WIDTH, default=False, absent=lambda: _expanded(cfg, instead=True))
    else:
        inner = _expanded(cfg)
    shape = {"type": "mamba1", "inner": inner, "d_state": _state_size(cfg), "conv_kernel": _kernel(cfg)}
    return (state(cfg, "mamba", shape),)


def mamba2(cfg: Fields, layer: int) -> tuple[Part, ...]:
    """The inner width is heads x head_dim, whatever `expand` says."""
    return (_mamba2(cfg, cfg.whole(*HEAD_NAMES, high=HEADS)),)


def pure_mamba2(cfg: Fields, layer: int) -> tuple[Part, ...]:
    """Mamba 2 without attention: its heads have plain names, and fill the inner width."""

    def filled() -> Figure:
        inner, dim = _expanded(cfg), cfg.whole("head_dim", high=HEAD_DIM)
        return derived(inner // dim, inner, dim, rule=f"{inner.source} / {dim.source}", instead=True)

    return (_mamba2(cfg, cfg.whole("num_heads", high=HEADS, default=False, absent=filled), "head_dim"),)


def attention_and_mamba2(cfg: Fields, layer: int) -> tuple[Part, ...]:
    """Falcon-H1: both in every layer, side by side."""
    return (*full(cfg, layer), *mamba2(cfg, layer))


def mamba2_and_attention(cfg: Fields, layer: int) -> tuple[Part, ...]:
    """Zamba 2: a Mamba layer that also calls a shared attention block, which keeps a cache per call."""
    return (*mamba2(cfg, layer), *_doubled(cfg))


def mamba1_and_attention(cfg: Fields, layer: int) -> tuple[Part, ...]:
    """Zamba: likewise, with the first version."""
    return (*mamba1(cfg, layer), *_doubled(cfg))


def _doubled(cfg: Fields) -> tuple[Part, ...]:
    """The shared block sees the hidden state beside the embedding: its heads share out twice the hidden size."""
    heads = q_heads(cfg)

    def shared_out() -> Figure:
        hidden = hidden_size(cfg)
        return derived(2 * hidden // heads, hidden, heads, rule=f"2 x {hidden.source} / {heads.source}", instead=True)

    dim = cfg.whole("attention_head_dim", high=HEAD_DIM, null=shared_out, absent=shared_out)
    return (attention("full", heads, kv_heads(cfg, heads), dim),)


def pattern_length(cfg: Fields) -> Figure:
    """Nemotron-H: the pattern gives the number of layers, and a number beside it must agree."""
    for name in ("layers_block_type", "layer_types", "hybrid_override_pattern"):
        found = cfg.word(name) if name == "hybrid_override_pattern" else cfg.words(name)
        if found is None:
            continue
        if cfg.has("num_hidden_layers"):
            count = cfg.whole("num_hidden_layers", high=LAYERS)
            fitted(cfg, name, list(found), count)
            return count
        if not 0 < len(found) <= LAYERS:
            cfg.refuse(name, f"expected 1 to {LAYERS:,} layers, got {len(found):,}")
        return Figure(len(found), "read", f"length of {cfg.prefix}{name}")
    return cfg.refuse("hybrid_override_pattern", "this field (or layers_block_type) is missing")


def pattern_words(cfg: Fields, layers: int) -> Words:
    """Nemotron-H: one character per layer."""
    letters = fitted(cfg, "hybrid_override_pattern", list(cfg.word("hybrid_override_pattern") or ""), layers)
    for i, letter in enumerate(letters):
        if letter not in LETTERS:
            known = " ".join(LETTERS)
            cfg.refuse(f"hybrid_override_pattern[{i}]", f"unknown layer {letter!r}, expected one of {known}")
    return Words([LETTERS[x] for x in letters], "read", cfg.prefix + "hybrid_override_pattern")


def periodic_words(cfg: Fields, layers: int) -> Words:
    """Jamba: attention at `attn_layer_offset` of every `attn_layer_period` layers."""
    period = cfg.whole("attn_layer_period", high=LAYERS)
    offset = cfg.whole("attn_layer_offset", low=0, high=LAYERS)
    words = [FULL if i % period == offset else LINEAR for i in range(layers)]
    return Words(words, period.how, f"{period.source} and attn_layer_offset")


def indexed_words(cfg: Fields, layers: int) -> Words:
    """Bamba: a list of the attention layers; the class has none by default."""
    given = cfg.numbers("attn_layer_indices", high=LAYERS)
    if given is None:
        return cfg.refuse("attn_layer_indices", "this field is missing: it says which layers are attention")
    inside = indices(cfg, "attn_layer_indices", given, layers)
    return Words([FULL if i in inside else LINEAR for i in range(layers)], "read", cfg.prefix + "attn_layer_indices")


def shared_block_words(cfg: Fields, layers: int) -> Words:
    """Zamba 2: a list of the layers that call the shared attention block."""
    given = cfg.numbers("hybrid_layer_ids", high=LAYERS)
    if given is None:
        return cfg.refuse("layers_block_type", "this field (or hybrid_layer_ids) is missing")
    inside = indices(cfg, "hybrid_layer_ids", given, layers)
    return Words([HYBRID if i in inside else LINEAR for i in range(layers)], "read", cfg.prefix + "hybrid_layer_ids")


def _mamba2(cfg: Fields, heads: Figure, *dims: str) -> Part:
    shape = {"type": "mamba2", "heads": heads, "head_dim": _dim(cfg, heads, dims or DIM_NAMES)}
    groups = cfg.whole(*GROUP_NAMES, high=HEADS)
    return state(cfg, "mamba", {**shape, "d_state": _state_size(cfg), "n_groups": groups, "conv_kernel": _kernel(cfg)})


def _dim(cfg: Fields, heads: Figure, names: tuple[str, ...]) -> Figure:
    """Channels of a state head; "auto", null and absent: the inner width over the heads."""

    def shared_out() -> Figure:
        ssm = cfg.maybe("mamba_d_ssm", high=WIDTH, default=False)
        inner = ssm or _expanded(cfg)
        if inner % heads:
            cfg.refuse(names[0], f"{inner.source} = {int(inner)} does not divide by {int(heads)} state heads")
        return derived(inner // heads, inner, heads, rule=f"{inner.source} / {heads.source}", instead=True)

    if any(cfg.data.get(name) == "auto" for name in names):
        return shared_out()
    return cfg.whole(*names, high=HEAD_DIM, null=shared_out, absent=shared_out)


def _expanded(cfg: Fields, instead: bool = False) -> Figure:
    hidden = hidden_size(cfg)
    expand = cfg.whole(*EXPAND_NAMES, high=1024)
    return derived(expand * hidden, expand, hidden, rule=f"{expand.source} x {hidden.source}", instead=instead)


def _state_size(cfg: Fields) -> Figure:
    return cfg.whole(*STATE_NAMES, high=HEAD_DIM)


def _kernel(cfg: Fields) -> Figure:
    return cfg.whole(*KERNEL_NAMES, high=KERNEL)
