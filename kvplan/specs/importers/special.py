"""Attention layers whose fields have other names, or whose kinds of layers have geometries of their own."""

from __future__ import annotations

from kvplan.specs.importers.attention import (
    KV_NAMES,
    attention,
    head_dim,
    keep,
    kv_heads,
    plain_attention,
    q_heads,
    traits,
    window,
)
from kvplan.specs.importers.family import Part
from kvplan.specs.importers.fields import Fields
from kvplan.specs.importers.figure import HEAD_DIM, HEADS, Figure, derived
from kvplan.specs.importers.result import How


def falcon(cfg: Fields, layer: int) -> tuple[Part, ...]:
    """Falcon: `num_kv_heads` counts only with the new architecture; before, one KV head or all of them."""
    heads = q_heads(cfg)
    if cfg.flag("new_decoder_architecture", False):
        kv = kv_heads(cfg, heads, ("num_kv_heads", "n_head_kv"))
    else:
        kv = _one_or_all(cfg, heads, "multi_query", True)
    return (attention("full", heads, kv, head_dim(cfg, heads)),)


def big_code(cfg: Fields, layer: int) -> tuple[Part, ...]:
    """GPT-BigCode: one KV head, or all of them."""
    heads = q_heads(cfg)
    return (attention("full", heads, _one_or_all(cfg, heads, "multi_query", True), head_dim(cfg, heads)),)


def chatglm(cfg: Fields, layer: int) -> tuple[Part, ...]:
    """ChatGLM: the KV head count is `multi_query_group_num`."""
    heads = q_heads(cfg)
    if cfg.flag("multi_query_attention", False):
        kv = cfg.whole("multi_query_group_num", high=HEADS, default=False)
        if heads % kv:
            cfg.refuse("multi_query_group_num", f"{int(kv)} does not divide the {int(heads)} query heads")
    else:
        kv = kv_heads(cfg, heads)
    return (attention("full", heads, kv, head_dim(cfg, heads)),)


def inner_config(cfg: Fields, layer: int) -> tuple[Part, ...]:
    """DBRX and MPT: the KV head count is in `attn_config`."""
    heads = q_heads(cfg)
    inner = cfg.child("attn_config") or Fields({}, cfg.where, "")
    if inner.has("kv_n_heads"):
        kv = inner.whole("kv_n_heads", high=HEADS)
        if heads % kv:
            inner.refuse("kv_n_heads", f"{int(kv)} does not divide the {int(heads)} query heads")
    elif cfg.model_type == "dbrx":
        cfg.refuse("attn_config.kv_n_heads", "this field is missing")
    else:
        kv = _one_or_all(cfg, heads, "multiquery_attention", inner.word("attn_type") == "multiquery_attention")
    return (attention("full", heads, kv, head_dim(cfg, heads)),)


def one_kv_head_per_query_head(cfg: Fields, layer: int) -> tuple[Part, ...]:
    """GPT-2, OPT, BLOOM and their like: multi-head attention, no field for KV heads."""
    heads = q_heads(cfg)
    kv = Figure(heads, "defaulted", f"{cfg.model_type} is multi-head: one KV head for each query head")
    return (attention("full", heads, kv, head_dim(cfg, heads), has=traits(cfg)),)


def local_multi_head(cfg: Fields, layer: int) -> tuple[Part, ...]:
    """GPT-Neo's local layers: multi-head attention over a window."""
    part, rows = one_kv_head_per_query_head(cfg, layer)[0], window(cfg)
    return (Part("sliding", {**part.body, "retain": {"window": rows}}) if rows else part,)


def k_and_v_full(cfg: Fields, layer: int) -> tuple[Part, ...]:
    """MiMo V2: keys wider than values, full layers."""
    heads = q_heads(cfg)
    dim = head_dim(cfg, heads)
    value = cfg.whole("v_head_dim", high=HEAD_DIM, null=lambda: dim, absent=lambda: dim)
    sinks = cfg.data.get("add_full_attention_sink_bias") is True
    return (attention("full", heads, kv_heads(cfg, heads), dim, value, has={**traits(cfg), "sinks": sinks}),)


def k_and_v_sliding(cfg: Fields, layer: int) -> tuple[Part, ...]:
    """MiMo V2: sliding layers, with heads of their own."""
    rows = window(cfg)
    heads = q_heads(cfg, "swa_num_attention_heads")
    kv = kv_heads(cfg, heads, ("swa_num_key_value_heads",))
    dim = head_dim(cfg, heads, ("swa_head_dim",))
    value = cfg.whole("swa_v_head_dim", "v_head_dim", high=HEAD_DIM, null=lambda: dim, absent=lambda: dim)
    sinks = cfg.data.get("add_swa_attention_sink_bias") is True
    name = "sliding" if rows else "full"
    return (attention(name, heads, kv, dim, value, retain=keep(rows), has={**traits(cfg), "sinks": sinks}),)


def gemma4_full(cfg: Fields, layer: int) -> tuple[Part, ...]:
    """Gemma 4: full layers have wider heads, and fewer of them where keys serve as values too (both are cached)."""
    heads = q_heads(cfg)
    separate = cfg.data.get("attention_k_eq_v") is False
    if separate and cfg.has("num_global_key_value_heads"):
        cfg.note("num_global_key_value_heads has no effect: attention_k_eq_v is false.")
    kv = kv_heads(cfg, heads, () if separate else ("num_global_key_value_heads",))
    return (attention("full", heads, kv, cfg.whole("global_head_dim", high=HEAD_DIM), has=traits(cfg)),)


def step_sliding(cfg: Fields, layer: int) -> tuple[Part, ...]:
    """Step 3.5: sliding layers may have their own head counts, in `attention_other_setting`."""
    other = cfg.child("attention_other_setting")
    own = cfg.like({**cfg.data, **(other.data if other else {})}, f"{cfg.prefix}attention_other_setting.")
    rows = window(cfg)
    heads = q_heads(own)
    name = "sliding" if rows else "full"
    return (attention(name, heads, kv_heads(own, heads), head_dim(own, heads), retain=keep(rows)),)


def step3(cfg: Fields, layer: int) -> tuple[Part, ...]:
    """Step 3: one KV head for all query heads (multi-matrix factorisation attention)."""
    heads = q_heads(cfg)
    one = Figure(1, "defaulted", "step3 shares one KV head")
    kv = cfg.whole(*KV_NAMES, high=HEADS, null=lambda: one, absent=lambda: one)
    return (attention("full", heads, kv, head_dim(cfg, heads)),)


def laguna_full(cfg: Fields, layer: int) -> tuple[Part, ...]:
    """Laguna: query heads differ by layer, KV heads do not."""
    return (plain_attention(cfg, "full", heads=_listed_heads(cfg, layer)),)


def laguna_sliding(cfg: Fields, layer: int) -> tuple[Part, ...]:
    """Laguna: likewise, with a window."""
    rows = window(cfg)
    return (plain_attention(cfg, "sliding" if rows else "full", keep(rows), _listed_heads(cfg, layer)),)


def _listed_heads(cfg: Fields, layer: int) -> Figure | None:
    name = "num_attention_heads_per_layer"
    given = cfg.numbers(name, low=1, high=HEADS)
    if given is None:
        return None
    if layer >= len(given):
        cfg.refuse(name, f"expected one entry per layer, got {len(given)}")
    return Figure(given[layer], "read", f"{cfg.prefix}{name}[{layer}]")


def jetmoe(cfg: Fields, layer: int) -> tuple[Part, ...]:
    """JetMoE: each of a token's experts brings one query head per KV head."""
    kv = cfg.whole("num_key_value_heads", high=HEADS)
    experts = cfg.whole("num_experts_per_tok", high=HEADS)
    heads = derived(kv * experts, kv, experts, rule=f"{kv.source} x {experts.source}")
    return (attention("full", heads, kv, head_dim(cfg, heads)),)


def _one_or_all(cfg: Fields, heads: Figure, name: str, default: bool) -> Figure:
    how: How = "read" if cfg.has(name) else "defaulted"
    if cfg.flag(name, default):
        return Figure(1, how, f"{name}: one KV head")
    return Figure(heads, how, f"{name} is off: one KV head for each query head")
