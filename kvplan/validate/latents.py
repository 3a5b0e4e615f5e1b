"""Seedable synthetic MLA latents and absorbed queries: speed and kernel error only, they do not rank quality.

Structure, as far as it follows from the architecture: the first channels are a low-rank compressed row after RMSNorm
with a weight per channel; the others are a key of their own under RoPE, with a large mean in slow channel pairs. The
queries have the size that absorption gives them. Sinks and one needle as in tensors.py; a sink's row is no smaller than
others, since the norm makes all rows alike.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import normalize

from kvplan.validate.tensors import RANK, SINK_MASS, Geometry, Tensors, num_sinks, rotate, rotation

ROPE_THETA = 10_000.0


def make_latents(geometry: Geometry, *, seed: int, dtype: torch.dtype, device: str) -> Tensors:
    """Make one layer's latent rows. Same seed, geometry and device: same tensors.

    Returns:
        q (B, HQ, nope + rope), k (B, T, 1, nope + rope), and v, the view of k's first channels.
    """
    g = geometry
    model = _Structure(g, torch.Generator(device=device).manual_seed(seed), device)
    q = torch.empty(g.batch, g.q_heads, g.k_dim, dtype=dtype, device=device)
    k = torch.empty(g.batch, g.tokens, 1, g.k_dim, dtype=dtype, device=device)
    for b in range(g.batch):
        q_b, k_b = model.request()
        q[b], k[b, :, 0] = q_b.to(dtype), k_b.to(dtype)
    return Tensors(q, k, k[..., : g.v_dim])


class _Structure:
    """What all requests of a layer share: weight of the norm, low-rank basis, mean and angles of the rotary part."""

    def __init__(self, g: Geometry, generator: torch.Generator, device: str) -> None:
        self.g, self.generator, self.device = g, generator, device
        self.weight = torch.exp(0.3 * self._normal(g.v_dim))
        self.basis = self._normal(RANK, g.v_dim) / math.sqrt(RANK)
        rope = g.k_dim - g.v_dim
        self.mean = torch.zeros(rope, device=device)
        # The slowest pair: elsewhere RoPE would average the mean away.
        self.mean[rope // 2 - 1], self.mean[-1] = 8.0, -5.0
        self.cos, self.sin = rotation(g.tokens + 1, rope, ROPE_THETA, device)

    def request(self) -> tuple[Tensor, Tensor]:
        g, sinks = self.g, num_sinks(self.g.tokens)
        rope = g.k_dim - g.v_dim
        rows = self._normal(g.tokens, g.v_dim) + 2 * self._normal(g.tokens, RANK) @ self.basis
        keys = rotate(self._normal(g.tokens, rope) + self.mean, self.cos[: g.tokens], self.sin[: g.tokens])
        # A head's own keys have head_dim - rope channels of unit variance: absorbed, they spread over the whole row.
        size = math.sqrt(max((g.head_dim or g.k_dim) - rope, 1) / g.v_dim)
        q = size * self._normal(g.q_heads, g.v_dim)
        q_keys = rotate(self._normal(g.q_heads, rope) + 0.1 * self.mean, self.cos[g.tokens], self.sin[g.tokens])
        u = normalize(self._normal(g.v_dim), dim=-1)
        if sinks:
            at = int(torch.randint(sinks, g.tokens, (1,), generator=self.generator, device=self.device))
            rows[at] += 0.6 * rows[at].norm() * normalize(q[0], dim=-1)
            rows -= (rows @ u)[:, None] * u
            rows[:sinks] = math.sqrt(g.v_dim) * u + 0.1 * self._normal(sinks, g.v_dim)
        rows = normalize(rows, dim=-1) * math.sqrt(g.v_dim) * self.weight
        q = self._with_sinks(q, q_keys, rows, keys, sinks) if sinks else q
        return torch.cat([q, q_keys], -1), torch.cat([rows, keys], -1)

    def _with_sinks(self, q: Tensor, q_keys: Tensor, rows: Tensor, keys: Tensor, sinks: int) -> Tensor:
        """Turn each head's query towards the sinks' direction until they have their share of the mass."""
        g = self.g
        logits = (q @ rows.T + q_keys @ keys.T) * g.sm_scale
        level = torch.logsumexp(logits[:, sinks:], -1) + math.log(SINK_MASS / (1 - SINK_MASS) / sinks)
        toward = rows[:sinks].mean(0)
        missing = (level - logits[:, :sinks].mean(-1)) / (g.sm_scale * toward.square().sum())
        return q + missing[:, None] * toward

    def _normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator, device=self.device)
