"""What one layer of a GGUF model keeps, by its kind."""

from __future__ import annotations

from typing import Any

from kvplan.specs.importers.family import NO_CACHE, Part
from kvplan.specs.importers.fields import Fields
from kvplan.specs.importers.figure import HEAD_DIM, HEADS, TOKENS, WIDTH, Figure, derived
from kvplan.specs.importers.gguf_fields import GgufFields, gguf_fields

KERNEL = 1024
"""Widest convolution that is believed, in tokens."""
CHUNK = 8192
"""Chunk of Llama 4 where the file does not say it."""


def _hidden(cfg: Fields) -> Figure:
    return cfg.whole("embedding_length", high=WIDTH)


def full(cfg: Fields, layer: int) -> tuple[Part, ...]:
    """A layer that sees every token."""
    return (_attention(gguf_fields(cfg), layer, "full"),)


def sliding(cfg: Fields, layer: int) -> tuple[Part, ...]:
    """A layer that keeps a window."""
    rows = cfg.whole("attention.sliding_window", high=TOKENS)
    return (_attention(gguf_fields(cfg), layer, "sliding", "_swa", retain={"window": rows}),)


def chunked(cfg: Fields, layer: int) -> tuple[Part, ...]:
    """A layer that keeps the current chunk."""
    name = "attention.chunk_size"
    rows = cfg.whole(name, high=TOKENS, absent=lambda: Figure(CHUNK, "defaulted", f"{name} of {cfg.model_type}"))
    return (_attention(gguf_fields(cfg), layer, "chunked", retain={"chunk": rows}),)


def mamba1(cfg: Fields, layer: int) -> tuple[Part, ...]:
    """Mamba, Jamba."""
    shape = {"inner": _inner(cfg), "d_state": cfg.whole("ssm.state_size", high=WIDTH), "conv_kernel": _kernel(cfg)}
    return (_state("mamba", "mamba1", shape),)


def mamba2(cfg: Fields, layer: int) -> tuple[Part, ...]:
    """Mamba 2 and its hybrids: the heads stand in the key of the time steps."""
    shape = {
        **_inner_heads(cfg, "heads", "head_dim"),
        "d_state": cfg.whole("ssm.state_size", high=WIDTH),
        "n_groups": cfg.whole("ssm.group_count", high=HEADS),
        "conv_kernel": _kernel(cfg),
    }
    return (_state("mamba", "mamba2", shape),)


def both(cfg: Fields, layer: int) -> tuple[Part, ...]:
    """Falcon-H1: attention and Mamba 2 side by side."""
    return (*full(cfg, layer), *mamba2(cfg, layer))


def deltanet(cfg: Fields, layer: int) -> tuple[Part, ...]:
    """Qwen3-Next, Qwen3.5: the keys of Mamba, read as those of gated DeltaNet."""
    shape = {
        "k_heads": cfg.whole("ssm.group_count", high=HEADS),
        "k_dim": cfg.whole("ssm.state_size", high=HEAD_DIM),
        **_inner_heads(cfg, "v_heads", "v_dim"),
        "conv_kernel": _kernel(cfg),
    }
    return (_state("gdn", "gated_deltanet", shape),)


def kda(cfg: Fields, layer: int) -> tuple[Part, ...]:
    """Kimi delta attention: as many state heads as query heads."""
    shape = {
        "heads": gguf_fields(cfg).at("attention.head_count", layer, low=1, high=HEADS),
        "head_dim": cfg.whole("kda.head_dim", high=HEAD_DIM),
        "conv_kernel": _kernel(cfg),
    }
    return (_state("kda", "kda", shape),)


def conv(cfg: Fields, layer: int) -> tuple[Part, ...]:
    """LFM 2: convolution rows only; l_cache counts the current token too."""
    shape = {"dim": _hidden(cfg), "conv_kernel": cfg.whole("shortconv.l_cache", high=KERNEL)}
    return (_state("conv", "short_conv", shape, recurrent="model"),)


def rwkv7(cfg: Fields, layer: int) -> tuple[Part, ...]:
    """RWKV-7."""
    return (_state("rwkv7", "rwkv7", {"hidden": _hidden(cfg), "head_dim": cfg.whole("wkv.head_size", high=HEAD_DIM)}),)


def no_cache(cfg: Fields, layer: int) -> tuple[Part, ...]:
    """Feed-forward only, or attention that was removed."""
    return (NO_CACHE,)


def _attention(cfg: GgufFields, layer: int, name: str, variant: str = "", **more: Any) -> Part:
    heads = cfg.at("attention.head_count", layer, low=1, high=HEADS)

    def multi_head() -> Figure:
        return Figure(heads, "defaulted", "no head_count_kv: one KV head for each query head")

    kv = cfg.at("attention.head_count_kv", layer, low=1, high=HEADS, absent=multi_head)
    if heads % kv:
        cfg.refuse("attention.head_count_kv", f"{int(kv)} does not divide the {int(heads)} query heads")
    k, v = (_head_dim(cfg, f"attention.{part}_length", variant, heads) for part in ("key", "value"))
    body = {"kind": "attention", "q_heads": heads, "kv_heads": kv, "head_dim": k if k == v else {"k": k, "v": v}}
    return Part(name, {**body, **_traits(cfg, layer, k), **more})


def _head_dim(cfg: GgufFields, name: str, variant: str, heads: Figure) -> Figure:
    def shared_out() -> Figure:
        hidden = _hidden(cfg)
        if hidden % heads:
            cfg.refuse(name, f"this key is missing, and {int(hidden)} does not divide by {int(heads)} heads")
        return derived(hidden // heads, hidden, heads, rule=f"{hidden.source} / {heads.source}")

    names = (name + variant, name) if variant else (name,)
    return cfg.whole(*names, high=HEAD_DIM, absent=shared_out)


def _traits(cfg: GgufFields, layer: int, k_dim: int) -> dict[str, Any]:
    """What the tensors say about keys and logits."""
    found: dict[str, Any] = {}
    cap = cfg.data.get("attn_logit_softcapping")
    if isinstance(cap, float) and 0 < cap < 1e9:
        found["softcap"] = cap
    if cfg.tensor(layer, "attn_sinks.weight") or cfg.tensor(layer, "attn_sinks"):
        found["sinks"] = True
    if cfg.tensor(layer, "attn_k.bias") or cfg.tensor(layer, "attn_qkv.bias"):
        found["k_bias"] = True
    norm = cfg.tensor(layer, "attn_k_norm.weight")
    # A norm over the whole row (OLMo 2) is none per head.
    if norm and norm.elements == k_dim:
        found["qk_norm"] = True
    return found


def _inner(cfg: Fields) -> Figure:
    return cfg.whole("ssm.inner_size", high=WIDTH)


def _inner_heads(cfg: Fields, heads_key: str, dim_key: str) -> dict[str, Figure]:
    inner = _inner(cfg)
    heads = cfg.whole("ssm.time_step_rank", high=HEADS)
    if inner % heads:
        cfg.refuse("ssm.inner_size", f"{int(inner)} does not divide by the {int(heads)} heads of ssm.time_step_rank")
    return {heads_key: heads, dim_key: derived(inner // heads, inner, heads, rule=f"{inner.source} / {heads.source}")}


def _kernel(cfg: Fields) -> Figure:
    return cfg.whole("ssm.conv_kernel", high=KERNEL)


def _state(name: str, kind: str, shape: dict[str, Any], recurrent: str = "float32") -> Part:
    dtype = {"recurrent": recurrent, "conv": "model"}
    return Part(name, {"kind": "state", "state": {"type": kind, **shape}, "dtype": dtype})
