"""The hook: an attention function of transformers that shows each layer's rows to a visitor and attends to its answer.

transformers calls it with post-RoPE queries and keys and un-repeated K and V, and with the mask of the layer (causal,
sliding or chunked), made by its own eager mask.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from kvplan.errors import UnsupportedError
from kvplan.quality.latent import absorbed, expanded, is_latent
from kvplan.quality.manifest import CapturedLayer
from kvplan.quality.stored import Rows, untouched

NAME = "kvplan"
QUERY_BLOCK = 256

Visitor = Callable[[int, Tensor, Tensor, Tensor], tuple[Rows, Rows]]
"""(layer, q, k, v) to the K and V that attention reads; of MLA, k is the latent row and v its first channels."""

_visitor: Visitor | None = None
_notes: dict[int, CapturedLayer] = {}


def identity(layer: int, q: Tensor, k: Tensor, v: Tensor) -> tuple[Rows, Rows]:
    """The untouched cache."""
    return untouched("k", k), untouched("v", v)


def register() -> None:
    """Make `attn_implementation="kvplan"` known to transformers."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import eager_mask

    AttentionInterface.register(NAME, _attention)
    AttentionMaskInterface.register(NAME, eager_mask)


@contextmanager
def visiting(visitor: Visitor) -> Iterator[dict[int, CapturedLayer]]:
    """Within this context every layer's attention asks `visitor`; yields what each call says of its layer."""
    global _visitor, _notes
    previous, _visitor, _notes = (_visitor, _notes), visitor, {}
    try:
        yield _notes
    finally:
        _visitor, _notes = previous


def _attention(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **kw: Any) -> Any:
    """q `(B, HQ, T, D)`, k and v `(B, H, T, D)` -> output `(B, T, HQ, Dv)`."""
    if query.shape[-2] != key.shape[-2]:
        raise UnsupportedError(
            f"{type(module).__name__} has {query.shape[-2]} queries on {key.shape[-2]} keys",
            "only causal self-attention over one text is measured",
        )
    layer, latent = module.layer_idx, is_latent(module)
    scale = kw.get("scaling") or 1 / math.sqrt(query.shape[-1])
    softcap, sinks = kw.get("softcap"), kw.get("s_aux")
    _notes[layer] = CapturedLayer(
        layer=layer,
        scale=float(scale),
        sliding_window=kw.get("sliding_window"),
        latent_rank=module.kv_lora_rank if latent else None,
        softcap=softcap,
        sinks=None if sinks is None else tuple(sinks.tolist()),
    )
    if latent:
        query, key, value = absorbed(module, query, key)
    k, v = (_visitor or identity)(layer, query, key, value)
    out = attend(query, k, v, mask, scale, softcap=softcap, sinks=sinks)
    if latent:
        out = expanded(module, out)
    return out.transpose(1, 2).contiguous(), None


def attend(
    q: Tensor,
    k: Rows,
    v: Rows,
    mask: Tensor | None,
    scale: float,
    *,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Causal attention of q `(B, HQ, T, D)` on rows that may be decoded for old and exact for recent positions.

    Args:
        mask: additive, `(B or 1, 1, T, T)`; None for plain causal.
        sinks: a logit per query head that takes part in the softmax without a value.

    Returns:
        `(B, HQ, T, Dv)`.
    """
    parts = []
    for start in range(0, q.shape[-2], QUERY_BLOCK):
        stop = min(start + QUERY_BLOCK, q.shape[-2])
        logits = _logits(q[..., start:stop, :], k, start, stop) * scale
        if softcap is not None:
            logits = torch.tanh(logits / softcap) * softcap
        if mask is not None:
            logits = logits + mask[..., start:stop, :stop]
        else:
            later = torch.ones(stop - start, stop, dtype=torch.bool, device=q.device).triu(start + 1)
            logits = logits.masked_fill(later, -torch.inf)
        parts.append(_weighted(_softmax(logits, sinks).to(q.dtype), v, start, stop))
    return torch.cat(parts, -2)


def _softmax(logits: Tensor, sinks: Tensor | None) -> Tensor:
    if sinks is None:
        return logits.float().softmax(-1)
    column = sinks.float().view(1, -1, 1, 1).expand(*logits.shape[:-1], 1)
    return torch.cat([logits.float(), column], -1).softmax(-1)[..., :-1]


def _logits(q: Tensor, k: Rows, start: int, stop: int) -> Tensor:
    """Scores `(B, HQ, b, stop)` of queries start..stop, each on the decoded or the exact key that it sees."""
    decoded = _grouped(q, k.decoded[..., :stop, :].transpose(-1, -2))
    if k.layout is None:
        return decoded
    exact = _grouped(q, k.exact[..., :stop, :].transpose(-1, -2))
    return torch.where(_sees_decoded(k, start, stop), decoded, exact)


def _weighted(p: Tensor, v: Rows, start: int, stop: int) -> Tensor:
    """Probabilities `(B, HQ, b, stop)` times the values that each query sees."""
    if v.layout is None:
        return _grouped(p, v.decoded[..., :stop, :])
    seen = _sees_decoded(v, start, stop)
    return _grouped(p * seen, v.decoded[..., :stop, :]) + _grouped(p * ~seen, v.exact[..., :stop, :])


def _sees_decoded(rows: Rows, start: int, stop: int) -> Tensor:
    """Bool `(b, stop)`: whether query t sees row j decoded."""
    packed = torch.tensor([rows.packed(t) for t in range(start, stop)], device=rows.exact.device)
    return torch.arange(stop, device=packed.device) < packed[:, None]


def _grouped(a: Tensor, b: Tensor) -> Tensor:
    """`(B, HQ, m, x) @ (B, H, x, n)`: HQ // H query heads share a KV head, without repeating it."""
    batch, heads, m, x = a.shape
    return (a.reshape(batch, b.shape[1], -1, x) @ b).view(batch, heads, m, b.shape[-1])
