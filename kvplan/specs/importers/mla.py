"""Multi-head latent attention: one vector per token, with or without the keys of a sparse-attention indexer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvplan.specs.importers.attention import full, q_heads
from kvplan.specs.importers.family import FULL, INDEXED, Part, Words, fitted
from kvplan.specs.importers.fields import Fields
from kvplan.specs.importers.figure import HEAD_DIM, HEADS, LAYERS, TOKENS, Figure, derived
from kvplan.specs.importers.result import How

WITHOUT_ROPE = frozenset(["glm5_next_text"])
"""Model types whose latents may have no rotary part; elsewhere a 0 is a mistake."""


def latent(cfg: Fields, layer: int) -> tuple[Part, ...]:
    """The latent and its rotary part; q_lora_rank and v_head_dim are never cached.

    Small DeepSeek-V2 models inside vision models say `use_mla: false` and cache keys and values.
    """
    return (latent_part(cfg, "latent"),) if cfg.flag("use_mla", True) else full(cfg, layer)


def latent_or_full(cfg: Fields, layer: int) -> tuple[Part, ...]:
    """Families that ship both: latent where the config has a rank."""
    return latent(cfg, layer) if cfg.has("kv_lora_rank") else full(cfg, layer)


def latent_part(cfg: Fields, name: str) -> Part:
    """The latent of one layer."""
    rank = cfg.whole("kv_lora_rank", high=HEAD_DIM, default=False)
    low = 0 if cfg.model_type in WITHOUT_ROPE else 1
    rope = cfg.whole("qk_rope_head_dim", low=low, high=HEAD_DIM, default=False)
    width: Any = {"nope": rank, "rope": rope} if rope else rank
    heads = q_heads(cfg)
    return Part(name, {"kind": "latent", "q_heads": heads, "width": width, **_expanded(cfg, rope)})


def _expanded(cfg: Fields, rope: Figure) -> dict[str, Any]:
    """Keys and values of a head before compression, where the config has both: some engines cache these."""
    if not cfg.has("qk_nope_head_dim") or not cfg.has("v_head_dim"):
        return {}
    nope = cfg.whole("qk_nope_head_dim", high=HEAD_DIM)
    k = derived(nope + rope, nope, rope, rule=f"{nope.source} + {rope.source}")
    return {"expanded": {"k": k, "v": cfg.whole("v_head_dim", high=HEAD_DIM)}}


def indexed_latent(cfg: Fields, layer: int) -> tuple[Part, ...]:
    """A latent, and the layer's own index keys unless it shares an earlier layer's."""
    return (latent_part(cfg, "latent"), *index_keys(cfg, layer))


def index_keys(cfg: Fields, layer: int) -> tuple[Part, ...]:
    """One key per token (or per pooled group of tokens) for all index heads; the top-k shrinks nothing."""
    runs, how, source = indexer_schedule(cfg)
    if layer not in runs:
        return ()
    width = cfg.whole("index_head_dim", high=HEAD_DIM, default=False)
    pool = cfg.maybe("index_kpool", high=TOKENS)
    keys = index_part(width, pool, cfg.maybe("index_n_heads", high=HEADS))
    parts = [replace(keys, placed=(how, source))]
    if pool is not None and pool > 1:
        tail = {"kind": "latent", "role": "index", "width": width, "retain": {"ring": pool}}
        parts.append(Part("index-tail", tail, placed=parts[0].placed))
    elif "index_kpool" in cfg.data:
        cfg.note("index_kpool is off: one index key for every token.")
    return tuple(parts)


def index_part(width: Figure, stride: Figure | None = None, heads: Figure | None = None, name: str = "indexer") -> Part:
    """Index keys of `width` elements, one for every `stride` tokens."""
    body: dict[str, Any] = {"kind": "latent", "role": "index"}
    if heads:
        body["q_heads"] = heads
    body["width"] = width
    if stride and stride > 1:
        body["stride"] = stride
    return Part(name, body)


def indexer_schedule(cfg: Fields) -> tuple[set[int], How, str]:
    """Layers with index keys of their own (`shared` ones reuse the last full one's choice), and who says so."""
    layers = cfg.whole("num_hidden_layers", "num_layers", high=LAYERS, default=False)
    for name in ("indexer_types", "index_topk_pattern"):
        given = cfg.data.get(name)
        if given is None:
            continue
        words = [{"F": "full", "S": "shared"}.get(x, x) for x in given] if isinstance(given, str) else cfg.words(name)
        listed = fitted(cfg, name, words or [], layers)
        for layer, word in enumerate(listed):
            if word not in ("full", "shared"):
                cfg.refuse(f"{name}[{layer}]", f"expected full or shared, got {word[:40]!r}")
        return {i for i, word in enumerate(listed) if word == "full"}, "read", cfg.prefix + name
    if cfg.has("index_topk_freq"):
        period = max(1, cfg.whole("index_topk_freq", low=0, high=LAYERS))
        offset = cfg.whole("index_skip_topk_offset", low=0, high=LAYERS, absent=lambda: _OFFSET)
        source = f"{cfg.prefix}index_topk_freq and index_skip_topk_offset"
        return {i for i in range(layers) if max(i - offset + 1, 0) % period == 0}, offset.how, source
    if cfg.model_type in FOUR_LAYER_SCHEDULE:
        source = f"{cfg.model_type}'s config class: layers 0, 1, 5, 9 and so on"
        return {i for i in range(layers) if i == 0 or (i - 1) % 4 == 0}, "defaulted", source
    return set(range(layers)), "defaulted", "no schedule of indexers (indexer_types, index_topk_freq): every layer"


_OFFSET = Figure(2, "defaulted", "index_skip_topk_offset of the config class")
FOUR_LAYER_SCHEDULE = frozenset(["hy_v4", "hy_v4_vl_text"])
"""Model types whose class runs the indexer in layers 0, 1, 5, 9 and so on."""


def twice_per_layer(cfg: Fields) -> Figure:
    """LongCat: every block has two attention layers, each with its own cache."""
    blocks = cfg.whole("num_layers", "num_hidden_layers", high=LAYERS // 2, default=False)
    return Figure(2 * blocks, blocks.how, f"2 caches in each of {blocks.source} = {int(blocks)} blocks")


def reused_latents(cfg: Fields, words: list[str]) -> dict[int, tuple[int, ...]]:
    """Mistral Large 4: `kv_source_layers` gives for each layer the layer whose latent it reads."""
    given = cfg.numbers("kv_source_layers", high=LAYERS)
    if given is None:
        if cfg.model_type == "mistral_large4_text":
            cfg.note("kv_source_layers is not given: every layer keeps a latent of its own.")
        return {}
    given = fitted(cfg, "kv_source_layers", given, len(words))
    for layer, source in enumerate(given):
        if source > layer or given[source] != source:
            cfg.refuse(f"kv_source_layers[{layer}]", f"layer {source} is no earlier layer with a cache of its own")
    return {layer: (source,) for layer, source in enumerate(given) if source != layer}


def sparse_attention(cfg: Fields, layer: int) -> tuple[Part, ...]:
    """MiniMax-M3: grouped-query attention in full, and one index key per token."""
    given = cfg.child("sparse_attention_config")
    if given and given.has("sparse_index_dim"):
        width = given.whole("sparse_index_dim", high=HEAD_DIM)
    else:
        width = cfg.whole("index_head_dim", high=HEAD_DIM, default=False)
    return (*full(cfg, layer), index_part(width))


def sparse_words(cfg: Fields, layers: int) -> Words:
    """MiniMax-M3: `sparse_attention_freq` has 1 for layers with an indexer."""
    given = cfg.child("sparse_attention_config")
    flags = given.numbers("sparse_attention_freq", high=1) if given else None
    if given is None or flags is None:
        return cfg.refuse("layer_types", "this field is missing (or sparse_attention_config.sparse_attention_freq)")
    flags = fitted(given, "sparse_attention_freq", flags, layers)
    return Words([INDEXED if flag else FULL for flag in flags], "read", given.prefix + "sparse_attention_freq")


def indexed_if_given(cfg: Fields, layer: int) -> tuple[Part, ...]:
    """Qwen 4: full attention, with index keys where the config has an indexer."""
    if not cfg.has("indexer_n_heads", "indexer_head_dim"):
        cfg.note("No indexer is given (indexer_n_heads, indexer_head_dim): no index keys are counted.")
        return full(cfg, layer)
    if cfg.has("ple_layer_ids"):
        cfg.note("The convolution rows of per-layer embeddings (ple_layer_ids) are not counted.")
    width = cfg.whole("indexer_head_dim", high=HEAD_DIM)
    pool = cfg.whole("indexer_compress_ratio", high=TOKENS)
    return (*full(cfg, layer), index_part(width, pool, cfg.maybe("indexer_n_heads", high=HEADS)))
