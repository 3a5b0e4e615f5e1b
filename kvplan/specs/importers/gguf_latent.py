"""Latents, index keys and compressed rows of GGUF models."""

from __future__ import annotations

from typing import Any

from kvplan.specs.importers.family import Part, Words
from kvplan.specs.importers.fields import Fields
from kvplan.specs.importers.figure import HEAD_DIM, HEADS, LAYERS, TOKENS, Figure, derived
from kvplan.specs.importers.gguf_fields import gguf_fields
from kvplan.specs.importers.gguf_layers import full

WINDOW_ONLY, SPARSE, HEAVY = "window", "sparse", "heavy"
RATIOS = {0: WINDOW_ONLY, 4: SPARSE, 128: HEAVY}
"""Compression ratios of DeepSeek V4 to its kinds of layers."""


def _heads(cfg: Fields, layer: int) -> Figure:
    return gguf_fields(cfg).at("attention.head_count", layer, low=1, high=HEADS)


def latent(cfg: Fields, layer: int) -> tuple[Part, ...]:
    """Multi-head latent attention, with index keys where the layer has an indexer.

    Files made before the `_mla` keys existed are run with expanded keys and values, so that is what they keep.
    """
    here = gguf_fields(cfg)
    if not here.has("attention.key_length_mla"):
        here.note("The file has no attention.key_length_mla: the runtime keeps expanded keys and values of every head.")
        return full(cfg, layer)
    rank = here.whole("attention.kv_lora_rank", high=HEAD_DIM)
    rope = here.whole("rope.dimension_count", low=0, high=HEAD_DIM)
    width: Any = {"nope": rank, "rope": rope} if rope else rank
    body: dict[str, Any] = {"kind": "latent", "q_heads": _heads(cfg, layer), "width": width}
    if here.has("attention.value_length_mla"):
        lengths = ("attention.key_length_mla", "attention.value_length_mla")
        k, v = (here.whole(name, high=HEAD_DIM) for name in lengths)
        body["expanded"] = {"k": k, "v": v}
    own = Part("latent", body)
    # Without tensor infos (a header made by hand) every layer is taken to have an indexer.
    if not here.has("attention.indexer.key_length") or (here.tensors and not here.any_tensor(layer, "indexer")):
        return (own,)
    return own, _index_keys(cfg)


def indexed_full(cfg: Fields, layer: int) -> tuple[Part, ...]:
    """MiniMax M3: full attention, and index keys beyond the leading dense layers."""
    dense = cfg.whole("leading_dense_block_count", low=0, high=LAYERS)
    return full(cfg, layer) if layer < dense else (*full(cfg, layer), _index_keys(cfg))


def ratio_words(cfg: Fields, layers: int) -> Words:
    """DeepSeek V4: how far each layer compresses."""
    name = "attention.compress_ratios"
    given = cfg.numbers(name, high=TOKENS) or []
    if len(given) < layers:
        cfg.refuse(name, f"expected one entry for each of {layers} layers, got {len(given)}")
    for i, ratio in enumerate(given[:layers]):
        if ratio not in RATIOS:
            cfg.refuse(f"{name}[{i}]", f"unknown ratio {ratio}, expected one of 0, 4, 128")
    return Words([RATIOS[ratio] for ratio in given[:layers]], "read", cfg.prefix + name)


def window_only(cfg: Fields, layer: int) -> tuple[Part, ...]:
    """DeepSeek V4: the latent of the last tokens."""
    rows = cfg.whole("attention.sliding_window", high=TOKENS)
    return (Part("swa", {**_row(cfg, layer), "retain": {"window": rows}}),)


def sparse(cfg: Fields, layer: int) -> tuple[Part, ...]:
    """DeepSeek V4: one row and one index key for four tokens, and the groups that are still open."""
    ratio = Figure(4, "read", cfg.prefix + "attention.compress_ratios")
    row, index = _dim(cfg), cfg.whole("attention.indexer.key_length", high=HEAD_DIM)
    keys = _index_keys(cfg)
    return (
        *window_only(cfg, layer),
        Part("csa", {**_row(cfg, layer), "stride": ratio}),
        Part("csa-index", {**keys.body, "stride": ratio}),
        _open(cfg, layer, "csa-open", derived(4 * row, row, rule=f"4 x {row.source}"), 8),
        _open(cfg, layer, "csa-index-open", derived(4 * index, index, rule=f"4 x {index.source}"), 8),
    )


def heavy(cfg: Fields, layer: int) -> tuple[Part, ...]:
    """DeepSeek V4: one row for 128 tokens, and the group that is still open."""
    row = _dim(cfg)
    return (
        *window_only(cfg, layer),
        Part("hca", {**_row(cfg, layer), "stride": Figure(128, "read", cfg.prefix + "attention.compress_ratios")}),
        _open(cfg, layer, "hca-open", derived(2 * row, row, rule=f"2 x {row.source}"), 128),
    )


def _index_keys(cfg: Fields) -> Part:
    keys = {
        "kind": "latent",
        "role": "index",
        "q_heads": cfg.whole("attention.indexer.head_count", high=HEADS),
        "width": cfg.whole("attention.indexer.key_length", high=HEAD_DIM),
    }
    return Part("indexer", keys)


def _dim(cfg: Fields) -> Figure:
    return cfg.whole("attention.key_length", high=HEAD_DIM)


def _row(cfg: Fields, layer: int) -> dict[str, Any]:
    dim, rope = _dim(cfg), cfg.whole("rope.dimension_count", low=0, high=HEAD_DIM)
    if rope >= dim:
        cfg.refuse("rope.dimension_count", f"{int(rope)} is not below attention.key_length = {int(dim)}")
    nope = derived(dim - rope, dim, rope, rule=f"{dim.source} - {rope.source}")
    width: Any = {"nope": nope, "rope": rope} if rope else dim
    return {"kind": "latent", "q_heads": _heads(cfg, layer), "width": width}


def _open(cfg: Fields, layer: int, name: str, width: Figure, rows: int) -> Part:
    """Values and weights of tokens that no compressed row holds yet."""
    ring = Figure(rows, "defaulted", f"{cfg.model_type}: rows of an open group")
    role: dict[str, Any] = {"role": "index"} if "index" in name else {"q_heads": _heads(cfg, layer)}
    return Part(name, {"kind": "latent", **role, "width": width, "retain": {"ring": ring}, "dtype": "float32"})
