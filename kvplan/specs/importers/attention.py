"""Attention layers: heads, channels per head and window, with all their names."""

from __future__ import annotations

from typing import Any

from kvplan.specs.importers.context import max_context
from kvplan.specs.importers.family import Part
from kvplan.specs.importers.fields import Fields
from kvplan.specs.importers.figure import HEAD_DIM, HEADS, TOKENS, WIDTH, Figure, derived

Q_NAMES = ("num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads", "attention_heads")
KV_NAMES = ("num_key_value_heads", "num_attention_groups", "num_kv_heads")
DIM_NAMES = ("head_dim", "attention_head_dim", "kv_channels", "d_kv")
HIDDEN_NAMES = ("hidden_size", "d_model", "n_embd", "n_embed")
WINDOW_NAMES = ("sliding_window", "sliding_window_size", "attention_window_size", "window_size")

_K_BIAS = (
    "bloom gpt2 gpt_bigcode gpt_neox gpt_oss mimo opt phi qwen2 qwen2_5_omni_text qwen2_5_vl_text qwen2_moe "
    "qwen2_vl_text starcoder2"
)
"""Model types whose key projection always has a bias."""
_QK_NORM = (
    "gemma3_text gemma3n_text gemma4_text gemma4_unified_text olmo2 olmo3 qwen3 qwen3_5_moe_text qwen3_5_text "
    "qwen3_moe qwen3_next qwen3_vl_moe_text qwen3_vl_text"
)
"""Model types that always normalise queries and keys per head."""
_SINKS = "gpt_oss"
"""Model types with learned sink logits in every layer."""


def q_heads(cfg: Fields, *first: str) -> Figure:
    """Query heads of a layer."""
    return _or_like_the_others(cfg, first, cfg.whole(*first, *Q_NAMES, high=HEADS))


def hidden_size(cfg: Fields) -> Figure:
    """Width of the residual stream."""
    return cfg.whole(*HIDDEN_NAMES, high=WIDTH, default=False)


def kv_heads(cfg: Fields, heads: Figure, first: tuple[str, ...] = ()) -> Figure:
    """KV heads: as given, else one for each query head."""

    def multi_head() -> Figure:
        return Figure(heads, "defaulted", "no KV head count: one KV head for each query head")

    found = cfg.whole(*first, *KV_NAMES, high=HEADS, null=multi_head, absent=multi_head)
    if heads % found:
        cfg.refuse(_named(cfg, *first, *KV_NAMES), f"{int(found)} does not divide the {int(heads)} query heads")
    return _or_like_the_others(cfg, first, found)


def head_dim(cfg: Fields, heads: Figure, first: tuple[str, ...] = ()) -> Figure:
    """Channels of a head: as given, as the class fills in, else hidden size over heads."""

    def shared_out() -> Figure:
        hidden = hidden_size(cfg)
        if hidden % heads:
            text = f"this field is missing, and {hidden.source} = {int(hidden)} does not divide by {int(heads)} heads"
            cfg.refuse("head_dim", text)
        return derived(hidden // heads, hidden, heads, rule=f"{hidden.source} / {heads.source}", instead=True)

    found = cfg.whole(*first, *DIM_NAMES, high=HEAD_DIM, null=shared_out, absent=shared_out)
    return _or_like_the_others(cfg, first, found)


def _or_like_the_others(cfg: Fields, first: tuple[str, ...], found: Figure) -> Figure:
    """A number that one kind of layers could have had of its own, and takes from all layers instead."""
    if not first or cfg.has(*first):
        return found
    return derived(found, found, rule=f"{found.source}, as {first[0]} is not given", instead=True)


def window(cfg: Fields) -> Figure | None:
    """The sliding window; None when it is off, or as long as the longest context."""
    found = cfg.maybe(*WINDOW_NAMES, high=TOKENS)
    if found is None or not cfg.flag("use_sliding_window", True):
        cfg.note("The sliding window is off: every token stays.")
        return None
    limit = max_context(cfg)
    if limit.how == "read" and found >= limit:
        cfg.note(f"The window of {int(found):,} tokens is not below the longest context, {int(limit):,}: no effect.")
        return None
    return found


def attention(
    name: str,
    heads: Figure,
    kv: Figure,
    k: Figure,
    v: Figure | None = None,
    *,
    retain: dict[str, Figure] | None = None,
    has: dict[str, Any] | None = None,
) -> Part:
    """An attention layer: `retain` as in a spec, `has` the traits of its keys and logits."""
    dim: Any = k if v is None or v == k else {"k": k, "v": v}
    body = {"kind": "attention", "q_heads": heads, "kv_heads": kv, "head_dim": dim, "retain": retain, **(has or {})}
    return Part(name, {key: value for key, value in body.items() if value})


def keep(rows: Figure | None) -> dict[str, Figure] | None:
    """`retain` of a sliding layer; None: it keeps everything."""
    return {"window": rows} if rows else None


def traits(cfg: Fields) -> dict[str, Any]:
    """What an attention layer says about its keys and logits; it changes no byte, but which format suits."""
    cap = cfg.data.get("attn_logit_softcapping")
    biased = cfg.data.get("attention_bias") is True or cfg.model_type in _K_BIAS.split()
    return {
        "softcap": float(cap) if isinstance(cap, int | float) and not isinstance(cap, bool) and 0 < cap < 1e9 else None,
        "sinks": cfg.model_type in _SINKS.split(),
        "k_bias": biased,
        "qk_norm": cfg.model_type in _QK_NORM.split() or cfg.data.get("use_qk_norm") is True,
    }


def full(cfg: Fields, layer: int) -> tuple[Part, ...]:
    """A layer that sees every token."""
    return (plain_attention(cfg, "full"),)


def sliding(cfg: Fields, layer: int) -> tuple[Part, ...]:
    """A layer that keeps a window, or everything where the window is off."""
    rows = window(cfg)
    return (plain_attention(cfg, "sliding", keep(rows)) if rows else plain_attention(cfg, "full"),)


def in_chunks(cfg: Fields, layer: int) -> tuple[Part, ...]:
    """A layer that keeps the current chunk."""
    rows = cfg.maybe("attention_chunk_size", high=TOKENS)
    if rows is None:
        cfg.note("attention_chunk_size is off: every token stays.")
    return (plain_attention(cfg, "chunked", {"chunk": rows}) if rows else plain_attention(cfg, "full"),)


def plain_attention(
    cfg: Fields, name: str, retain: dict[str, Figure] | None = None, heads: Figure | None = None
) -> Part:
    """An attention layer whose fields have their usual names."""
    heads = heads or q_heads(cfg)
    return attention(name, heads, kv_heads(cfg, heads), head_dim(cfg, heads), retain=retain, has=traits(cfg))


def _named(cfg: Fields, *names: str) -> str:
    return next((name for name in names if cfg.has(name)), "num_key_value_heads")
