"""Models whose layers differ one by one: block lists of architecture search, and lists of head counts."""

from __future__ import annotations

from kvplan.specs.importers.attention import attention, head_dim, keep, q_heads
from kvplan.specs.importers.family import LAYER_NAMES, NO_CACHE, Part, fitted, layer_count
from kvplan.specs.importers.fields import Fields
from kvplan.specs.importers.figure import HEADS, LAYERS, TOKENS, Figure, derived


def block_count(cfg: Fields) -> Figure:
    """The number of layers, or the length of the block list."""
    blocks = cfg.items("block_configs")
    if cfg.has(*LAYER_NAMES) or not blocks:
        return layer_count(cfg)
    if len(blocks) > LAYERS:
        cfg.refuse("block_configs", f"expected at most {LAYERS:,} layers, got {len(blocks):,}")
    return Figure(len(blocks), "read", f"length of {cfg.prefix}block_configs")


def searched(cfg: Fields, layer: int) -> tuple[Part, ...]:
    """Nemotron NAS: each block states how many query heads share a KV head, or that it has no attention."""
    blocks = cfg.items("block_configs")
    if blocks is None:
        return _counted(cfg, layer, "num_key_value_heads_per_layer")
    layers = block_count(cfg)
    name = f"block_configs[{layer}]"
    block = Fields({name: fitted(cfg, "block_configs", blocks, layers)[layer]}, cfg.where, "", prefix=cfg.prefix)
    inner = block.child(name)
    own = inner.child("attention") if inner else None
    if own is None:
        return cfg.refuse(f"{name}.attention", "this field is missing: it says whether the layer has a cache")
    if own.flag("no_op", False) or own.flag("replace_with_linear", False):
        return (NO_CACHE,)
    heads = q_heads(cfg)
    group = own.whole("n_heads_in_group", high=HEADS)
    if heads % group:
        own.refuse("n_heads_in_group", f"{int(group)} does not divide the {int(heads)} query heads")
    kv = derived(heads // group, heads, group, rule=f"{heads.source} / {group.source}")
    rows = own.maybe("window_length", high=TOKENS)
    return (attention("sliding" if rows else "full", heads, kv, head_dim(cfg, heads), retain=keep(rows)),)


def counted(cfg: Fields, layer: int) -> tuple[Part, ...]:
    """OpenELM: lists of query heads and KV heads, one entry per layer."""
    return _counted(cfg, layer, "num_kv_heads", "num_query_heads")


def _counted(cfg: Fields, layer: int, kv_name: str, q_name: str | None = None) -> tuple[Part, ...]:
    layers = cfg.whole(*LAYER_NAMES, "num_transformer_layers", high=LAYERS, default=False)
    heads = _entry(cfg, q_name, layers, layer) if q_name else q_heads(cfg)
    kv = _entry(cfg, kv_name, layers, layer)
    if heads % kv:
        cfg.refuse(f"{kv_name}[{layer}]", f"{int(kv)} does not divide the {int(heads)} query heads")
    return (attention("full", heads, kv, head_dim(cfg, heads)),)


def _entry(cfg: Fields, name: str, layers: int, layer: int) -> Figure:
    given = cfg.numbers(name, low=1, high=HEADS)
    if given is None:
        cfg.refuse(name, "this field is missing: it gives the heads of each layer")
    return Figure(fitted(cfg, name, given, layers)[layer], "read", f"{cfg.prefix}{name}[{layer}]")


def transformer_count(cfg: Fields) -> Figure:
    """OpenELM's name for the number of layers."""
    return cfg.whole(*LAYER_NAMES, "num_transformer_layers", high=LAYERS, default=False)
