"""Recurrent and convolution states: one copy per sequence, whatever its length. Dimensions only."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from kvplan.specs.base import Dim, Heads, Spec

Kernel = Annotated[int, Field(ge=1, le=1024)]
"""Width of a causal convolution, in tokens; the state keeps one row less."""
StateNumber = Literal["float32", "bfloat16", "float16", "model"]
"""A number type, or `model` for the model's native dtype."""


class StateDtype(Spec):
    """Native number types of a state; an engine may override them."""

    recurrent: StateNumber
    """Of the recurrent state."""
    conv: StateNumber
    """Of the convolution (or token shift) rows."""


class Mamba1State(Spec):
    """Selective state space, first version: inner x d_state, and convolution rows of `inner`."""

    type: Literal["mamba1"]
    """Fixed word."""
    inner: Dim
    """Inner channels (expand x hidden)."""
    d_state: Dim
    """State elements per channel."""
    conv_kernel: Kernel
    """Convolution width in tokens."""


class Mamba2State(Spec):
    """Second version: heads x head_dim x d_state; convolution rows of heads x head_dim + 2 x n_groups x d_state."""

    type: Literal["mamba2"]
    """Fixed word."""
    heads: Heads
    """State heads."""
    head_dim: Dim
    """Channels per head."""
    d_state: Dim
    """State elements per channel."""
    n_groups: Heads
    """Groups that share B and C."""
    conv_kernel: Kernel
    """Convolution width in tokens."""


class GatedDeltaNetState(Spec):
    """v_heads x v_dim x k_dim; convolution rows of 2 x k_heads x k_dim + v_heads x v_dim."""

    type: Literal["gated_deltanet"]
    """Fixed word."""
    k_heads: Heads
    """Key (and query) heads."""
    v_heads: Heads
    """Value heads."""
    k_dim: Dim
    """Channels per key head."""
    v_dim: Dim
    """Channels per value head."""
    conv_kernel: Kernel
    """Convolution width in tokens."""


class KdaState(Spec):
    """Kimi delta attention: heads x head_dim x head_dim; convolution rows of 3 x heads x head_dim."""

    type: Literal["kda"]
    """Fixed word."""
    heads: Heads
    """Heads."""
    head_dim: Dim
    """Channels per head."""
    conv_kernel: Kernel
    """Convolution width in tokens."""


class LightningState(Spec):
    """Linear attention: heads x head_dim x head_dim, no convolution."""

    type: Literal["lightning"]
    """Fixed word."""
    heads: Heads
    """Query heads (not KV heads)."""
    head_dim: Dim
    """Channels per head."""


class ShortConvState(Spec):
    """Convolution rows of `dim` only (LFM)."""

    type: Literal["short_conv"]
    """Fixed word."""
    dim: Dim
    """Channels."""
    conv_kernel: Kernel
    """Convolution width in tokens."""


class Rwkv7State(Spec):
    """hidden x head_dim, and two rows of `hidden` for the token shift."""

    type: Literal["rwkv7"]
    """Fixed word."""
    hidden: Dim
    """Hidden channels."""
    head_dim: Dim
    """Channels per head."""


class Rwkv4State(Spec):
    """Three vectors of `attention` per layer (numerator, denominator, maximum); two of `hidden` for the token shift."""

    type: Literal["rwkv4"]
    """Fixed word."""
    hidden: Dim
    """Hidden channels."""
    attention: Dim
    """Channels of the attention's vectors."""


class CcaState(Spec):
    """Convolved queries and keys, and the previous token's half of the values (compressed convolutional attention)."""

    type: Literal["cca"]
    """Fixed word."""
    channels: Dim
    """Channels of queries and keys together."""
    values: Dim
    """Channels of the delayed half of the values."""
    conv_kernel: Kernel
    """Width of both convolutions together in tokens."""


class RgLruState(Spec):
    """`width` elements, and convolution rows of `width`."""

    type: Literal["rglru"]
    """Fixed word."""
    width: Dim
    """Channels of the recurrence."""
    conv_kernel: Kernel
    """Convolution width in tokens."""


State = Annotated[
    Mamba1State
    | Mamba2State
    | GatedDeltaNetState
    | KdaState
    | LightningState
    | ShortConvState
    | Rwkv7State
    | Rwkv4State
    | CcaState
    | RgLruState,
    Field(discriminator="type"),
]
