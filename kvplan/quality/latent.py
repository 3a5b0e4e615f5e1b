"""MLA through the same hook: the latent row that a cache keeps, and the queries and outputs that belong to it.

The attention function sees K and V of every head, expanded. The row itself is what enters `kv_b_proj` (the normalised
latent) and the rotary part of any head's key. With the halves of `kv_b_proj` multiplied into queries and outputs, MLA
is attention of all query heads on one KV head: keys are the rows, values their first `kv_lora_rank` channels.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

SEEN = "_kvplan_latent"


def is_latent(module: Any) -> bool:
    """Whether an attention module of transformers is MLA."""
    return hasattr(module, "kv_b_proj") and hasattr(module, "kv_lora_rank")


def watch_latents(model: Any) -> None:
    """Keep what enters each `kv_b_proj`, until the next pass."""
    for module in model.modules():
        if is_latent(module):
            module.kv_b_proj.register_forward_pre_hook(lambda linear, args: setattr(linear, SEEN, args[0]))


def absorbed(module: Any, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries and rows of a latent.

    Args:
        query, key: `(B, HQ, T, nope + rope)`, post-RoPE.

    Returns:
        Queries `(B, HQ, T, R + rope)`, rows `(B, 1, T, R + rope)` and their first R channels.
    """
    nope, rank = module.qk_nope_head_dim, module.kv_lora_rank
    latent = getattr(module.kv_b_proj, SEEN).view(key.shape[0], 1, key.shape[2], rank)
    rows = torch.cat([latent, key[:, :1, :, nope:]], -1)
    to_keys, _ = _halves(module)
    queries = torch.cat([query[..., :nope] @ to_keys, query[..., nope:]], -1)
    return queries, rows, rows[..., :rank]


def expanded(module: Any, out: Tensor) -> Tensor:
    """Outputs `(B, HQ, T, R)` in the latent's channels to `(B, HQ, T, Dv)`."""
    return out @ _halves(module)[1].transpose(-1, -2)


def _halves(module: Any) -> tuple[Tensor, Tensor]:
    """`kv_b_proj` by head: for keys `(HQ, nope, R)`, for values `(HQ, Dv, R)`."""
    nope, rank = module.qk_nope_head_dim, module.kv_lora_rank
    whole: Tensor = module.kv_b_proj.weight.view(-1, nope + module.v_head_dim, rank)
    return whole[:, :nope], whole[:, nope:]
