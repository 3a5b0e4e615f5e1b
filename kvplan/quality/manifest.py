"""What a capture file says of itself, in the header of its safetensors file. Data only; no torch."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from kvplan.quality.report import TextInfo

KEY = "kvplan"
"""Key of the manifest in the file's metadata."""


class CapturedLayer(BaseModel):
    """One layer: tensors `layers.I.q` (HQ, N, D), `layers.I.k` (H, T, D) and `layers.I.v` (H, T, Dv).

    Of MLA: `layers.I.latent` (1, T, R + rope), the normalised latent and the post-RoPE part, in place of k and v; q has
    `kv_b_proj` multiplied in, so that it is (HQ, N, R + rope).
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    layer: int
    scale: float
    """Factor of the logits."""
    sliding_window: int | None
    """Rows that a query sees, its own included; null for all."""
    latent_rank: int | None = None
    """R of MLA: values are the first R channels of a latent row. Null for K and V."""
    softcap: float | None = None
    """Logits x become softcap tanh(x / softcap)."""
    sinks: tuple[float, ...] | None = None
    """A logit per query head that takes part in the softmax without a value."""


class Manifest(BaseModel):
    """Where captured tensors come from. The text is not stored."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, populate_by_name=True)

    schema_: Literal["kvplan.capture/1"] = Field(default="kvplan.capture/1", alias="schema")
    command: str
    created: str
    model: str
    weights_sha256: str | None
    text: TextInfo
    compute: Literal["fp32", "bf16"]
    dtype: Literal["fp16", "bf16", "fp32"]
    """Stored dtype of all tensors."""
    queries: int
    """Queries kept: those of the last N positions, or of every `query_step`th up to the last."""
    query_step: int = 1
    layers: tuple[CapturedLayer, ...]
    versions: dict[str, str]
    tensors_sha256: str
    """Hash of all tensor bytes in the file's order."""
