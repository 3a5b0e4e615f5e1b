"""DeepSeek V4 and V4.1: a sliding latent in every layer, and compressed rows of the whole context over some.

A compressor gathers tokens until a row is complete: until then they stand in a ring of float32 rows, which holds the
values and their weights. Compression by 4 overlaps two groups, so its rows are twice as wide and twice as many.
"""

from __future__ import annotations

from typing import Any

from kvplan.specs.importers.attention import q_heads, window
from kvplan.specs.importers.family import SLIDING, Part, Words, fitted
from kvplan.specs.importers.fields import Fields
from kvplan.specs.importers.figure import HEAD_DIM, LAYERS, TOKENS, Figure, derived
from kvplan.specs.importers.mla import index_part

SPARSE = "compressed_sparse_attention"
HEAVY = "heavily_compressed_attention"
REUSED = "reused"
RATIOS = {0: SLIDING, 4: SPARSE, 128: HEAVY}
"""compress_ratios of DeepSeek V4 to its layer types."""


def window_only(cfg: Fields, layer: int) -> tuple[Part, ...]:
    """The latent of the last tokens; its first part is the head dimension without the rotary channels."""
    rows = window(cfg)
    if rows is None:
        return cfg.refuse("sliding_window", "this field is missing: every layer keeps a window of its latent")
    return (Part("swa", {**_row(cfg), "retain": {"window": rows}}),)


def sparse(cfg: Fields, layer: int) -> tuple[Part, ...]:
    """Window, compressed rows with index keys, and both compressors' open groups."""
    rate = _rate(cfg, SPARSE)
    row, index = _dim(cfg), _index_dim(cfg)
    return (
        *window_only(cfg, layer),
        Part("csa", {**_row(cfg), "stride": rate}),
        index_part(index, rate, name="csa-index"),
        _ring(cfg, "csa-open", derived(4 * row, row, rule=f"4 x {row.source}"), _twice(rate)),
        _ring(cfg, "csa-index-open", derived(4 * index, index, rule=f"4 x {index.source}"), _twice(rate)),
    )


def heavy(cfg: Fields, layer: int) -> tuple[Part, ...]:
    """Window, heavily compressed rows, and the open group."""
    rate = _rate(cfg, HEAVY)
    row = _dim(cfg)
    return (
        *window_only(cfg, layer),
        Part("hca", {**_row(cfg), "stride": rate}),
        _ring(cfg, "hca-open", derived(2 * row, row, rule=f"2 x {row.source}"), rate),
    )


def ratio_words(cfg: Fields, layers: int) -> Words:
    """V4: a list of compression ratios, 0 for the window alone."""
    given = cfg.numbers("compress_ratios", high=TOKENS)
    if given is None:
        return cfg.refuse("compress_ratios", "this field (or layer_types) is missing: it says which layers compress")
    words = []
    for i, ratio in enumerate(fitted(cfg, "compress_ratios", given, layers, tail=True)):
        if ratio not in RATIOS:
            cfg.refuse(f"compress_ratios[{i}]", f"unknown ratio {ratio}, expected one of 0, 4, 128")
        words.append(RATIOS[ratio])
    return Words(words, "read", cfg.prefix + "compress_ratios")


def source_words(cfg: Fields, layers: int) -> Words:
    """V4.1: only the layers in `kv_source_layer_ids` store compressed rows, the later ones read theirs."""
    sources = cfg.numbers("kv_source_layer_ids", high=LAYERS)
    if sources is None:
        cfg.refuse("kv_source_layer_ids", "this field is missing: it says which layers store compressed rows")
    if cfg.numbers("index_source_layer_ids", high=LAYERS) is None:
        cfg.refuse("index_source_layer_ids", "this field is missing: it says which layers have an indexer")
    ratios = _ratios(cfg, layers)
    for place, layer in enumerate(sources):
        if layer >= layers or not ratios[layer]:
            cfg.refuse(f"kv_source_layer_ids[{place}]", f"layer {layer} does not exist or does not compress")
    words = [SPARSE if i in sources else REUSED if ratios[i] else SLIDING for i in range(layers)]
    return Words(words, "read", f"{cfg.prefix}compress_ratios, kv_source_layer_ids, index_source_layer_ids")


def stored(cfg: Fields, layer: int) -> tuple[Part, ...]:
    """V4.1: window, the compressed rows that later layers read too, and index keys where this layer has an indexer."""
    ratio = _ratios(cfg, cfg.whole("num_hidden_layers", high=LAYERS, default=False))[layer]
    rate = Figure(ratio, "read", f"{cfg.prefix}compress_ratios[{layer}]")
    row = _dim(cfg)
    parts = [*window_only(cfg, layer), Part(f"c{ratio}", {**_row(cfg), **({"stride": rate} if rate > 1 else {})})]
    if layer in (cfg.numbers("index_source_layer_ids", high=LAYERS) or ()):
        parts.append(index_part(_index_dim(cfg), rate, name=f"c{ratio}-index"))
    if rate > 1:
        parts.append(_ring(cfg, f"c{ratio}-open", derived(2 * row, row, rule=f"2 x {row.source}"), rate))
    return tuple(parts)


def _ratios(cfg: Fields, layers: int) -> list[int]:
    given = cfg.numbers("compress_ratios", high=TOKENS)
    if given is None:
        cfg.refuse("compress_ratios", "this field is missing: it says which layers compress")
    return fitted(cfg, "compress_ratios", given, layers, tail=True)


def _rate(cfg: Fields, word: str) -> Figure:
    """The compression rate of a kind of layers: by kind, by its older name, else as the kind is defined."""
    rates = cfg.child("compress_rates")
    if rates and rates.has(word):
        return rates.whole(word, high=TOKENS)
    known = next(ratio for ratio, kind in RATIOS.items() if kind == word)
    usual = Figure(known, "defaulted", f"{cfg.model_type}: {word} compresses by {known}")
    older = {SPARSE: "compress_rate_csa", HEAVY: "compress_rate_hca"}[word]
    return cfg.whole(older, high=TOKENS, null=lambda: usual, absent=lambda: usual)


def _dim(cfg: Fields) -> Figure:
    return cfg.whole("head_dim", high=HEAD_DIM)


def _index_dim(cfg: Fields) -> Figure:
    return cfg.whole("index_head_dim", high=HEAD_DIM, default=False)


def _row(cfg: Fields) -> dict[str, Any]:
    dim = _dim(cfg)
    rope = cfg.whole("qk_rope_head_dim", low=0, high=HEAD_DIM, absent=lambda: _eighth(cfg, dim))
    if rope >= dim:
        cfg.refuse("qk_rope_head_dim", f"{int(rope)} is not below head_dim = {int(dim)}")
    nope = derived(dim - rope, dim, rope, rule=f"{dim.source} - {rope.source}")
    return {"kind": "latent", "q_heads": q_heads(cfg), "width": {"nope": nope, "rope": rope} if rope else dim}


def _eighth(cfg: Fields, dim: Figure) -> Figure:
    return Figure(dim // 8, "defaulted", f"{cfg.model_type}'s config class: an eighth of head_dim is rotary")


def _ring(cfg: Fields, name: str, width: Figure, rows: Figure) -> Part:
    role: dict[str, Any] = {"role": "index"} if "index" in name else {"q_heads": q_heads(cfg)}
    return Part(name, {"kind": "latent", **role, "width": width, "retain": {"ring": rows}, "dtype": "float32"})


def _twice(rate: Figure) -> Figure:
    return derived(2 * rate, rate, rule=f"2 x {rate.source}")
