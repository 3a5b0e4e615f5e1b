"""Layer groups: layers that keep the same cache. One class per kind."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, Tag, model_validator

from kvplan.specs.base import LENIENT, Dim, FloatDtype, Heads, Name, Spec, Tokens, by_shape, problem
from kvplan.specs.placement import Placement, Retain, Retention
from kvplan.specs.states import State, StateDtype


class HeadDims(Spec):
    """Key and value channels of one head where they differ."""

    k: Dim
    """Channels of a key head."""
    v: Dim
    """Channels of a value head."""


HeadDim = Annotated[
    Annotated[Dim, Tag("number")] | Annotated[HeadDims, Tag("mapping")], by_shape("a number or {k: N, v: N}")
]


class LatentWidths(Spec):
    """A latent row in two parts."""

    nope: Dim
    """Elements without position (kv_lora_rank)."""
    rope: Dim
    """Elements with rotary position (qk_rope_head_dim)."""


LatentWidth = Annotated[
    Annotated[Dim, Tag("number")] | Annotated[LatentWidths, Tag("mapping")], by_shape("a number or {nope: N, rope: N}")
]


class _Heads(Spec):
    """Head counts and dimensions that attention and cross-attention share."""

    q_heads: Heads
    """Query heads of one layer. They change no KV byte; sharding and kernels need them."""
    kv_heads: Heads
    """KV heads of one layer."""
    head_dim: HeadDim
    """Channels per head: one number, or {k, v}."""

    @property
    def k_dim(self) -> int:
        """Channels of a key head."""
        return self.head_dim if isinstance(self.head_dim, int) else self.head_dim.k

    @property
    def v_dim(self) -> int:
        """Channels of a value head."""
        return self.head_dim if isinstance(self.head_dim, int) else self.head_dim.v

    @model_validator(mode="after")
    def _check_heads(self) -> Self:
        if self.q_heads % self.kv_heads:
            text = f"expected a multiple of kv_heads = {self.kv_heads}, got {self.q_heads}"
            raise problem("place", text, at=("q_heads",))
        return self


class AttentionGroup(_Heads):
    """Self-attention layers with K and V rows per token."""

    kind: Literal["attention"]
    """Fixed word."""
    name: Name = "attention"
    """Unique in the spec; defaults to the kind."""
    layers: Placement
    """Which layers."""
    retain: Retention = Retain.model_construct()
    """Which rows stay."""
    stride: Tokens = 1
    """Tokens per stored row."""
    softcap: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Attention logits are capped at this value."""
    sinks: bool = False
    """Learned sink logits per head; they hold no KV rows."""
    k_bias: bool = False
    """The key projection has a bias (keys then carry large constant channels)."""
    qk_norm: bool = False
    """Queries and keys are normalised per head."""
    overlay: bool = False
    """A second cache on layers that another group owns."""


class LatentGroup(Spec):
    """One shared vector per token: MLA latents, compressed rows, index keys."""

    kind: Literal["latent"]
    """Fixed word."""
    name: Name = "latent"
    """Unique in the spec; defaults to the kind."""
    layers: Placement
    """Which layers."""
    q_heads: Heads | None = None
    """Query heads of one layer; required unless the role is index."""
    width: LatentWidth
    """Elements per row: one number, or {nope, rope}."""
    retain: Retention = Retain.model_construct()
    """Which rows stay."""
    stride: Tokens = 1
    """Tokens per stored row."""
    role: Literal["kv", "index"] = "kv"
    """`kv` serves K and V; `index` holds the keys of a sparse-attention indexer."""
    shard: Literal["none"] = "none"
    """A latent is copied to every tensor-parallel rank."""
    overlay: bool = False
    """A second cache on layers that another group owns."""
    dtype: FloatDtype | None = None
    """Fixed number type that no cache format changes; None: the chosen latent or index format."""
    expanded: HeadDims | None = None
    """Key and value channels of each query head, for engines that cache these instead; None: not known."""

    @property
    def nope_dim(self) -> int:
        """Elements without position; the whole row when the spec gives one number."""
        return self.width if isinstance(self.width, int) else self.width.nope

    @property
    def rope_dim(self) -> int:
        """Elements with rotary position; 0 when the spec gives one number."""
        return 0 if isinstance(self.width, int) else self.width.rope

    @model_validator(mode="after")
    def _check_heads(self) -> Self:
        if self.role == "kv" and self.q_heads is None:
            raise problem("missing", "this key is required (role: kv)", at=("q_heads",))
        return self


class StateGroup(Spec):
    """Layers with a recurrent or convolution state, one per sequence."""

    kind: Literal["state"]
    """Fixed word."""
    name: Name = "state"
    """Unique in the spec; defaults to the kind."""
    layers: Placement
    """Which layers."""
    state: State
    """Type and dimensions."""
    dtype: StateDtype
    """Native number types."""
    overlay: bool = False
    """A second cache on layers that another group owns."""


class EncoderTokens(Spec):
    """How many rows a cross-attention cache holds."""

    per: Literal["image", "audio", "input"]
    """What one batch of encoder tokens stands for."""
    count: Tokens
    """Encoder tokens for each of those."""


class CrossGroup(_Heads):
    """Cross-attention: K and V rows of encoder tokens, constant during decoding."""

    kind: Literal["cross"]
    """Fixed word."""
    name: Name = "cross"
    """Unique in the spec; defaults to the kind."""
    layers: Placement
    """Which layers."""
    encoder_tokens: EncoderTokens
    """Rows."""
    overlay: bool = False
    """A second cache on layers that another group owns."""


class NoneGroup(Spec):
    """Layers without a cache of their own: feed-forward only, or reading another group's rows."""

    kind: Literal["none"]
    """Fixed word."""
    name: Name = "none"
    """Unique in the spec; defaults to the kind."""
    layers: Placement
    """Which layers."""
    reads: Annotated[tuple[Name, ...], LENIENT] = ()
    """Groups whose caches these layers read; empty for feed-forward layers."""

    @property
    def overlay(self) -> bool:
        """Never an overlay: these layers are its own."""
        return False


LayerGroup = Annotated[AttentionGroup | LatentGroup | StateGroup | CrossGroup | NoneGroup, Field(discriminator="kind")]
