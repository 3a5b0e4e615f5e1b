"""Seedable synthetic Q, K and V with the structure of real ones: speed and kernel error only, they do not rank quality.

Structure (after measurements of real caches): K has a few channel pairs with a large mean and a low-rank part under
RoPE; V has a shared mean and token-wise lognormal norms; the first tokens are attention sinks (large K, small V) that
take about 45% of the softmax mass; Q shares the outlier channels; one needle per request is planted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

LABEL = "synthetic: speed and kernel error only, they do not rank quality"
SINK_MASS = 0.45
NUM_SINKS = 4
RANK = 16
ROPE_THETA = 500_000.0


@dataclass(frozen=True)
class Geometry:
    """Shape of one layer's decode step: B requests of T tokens, HQ query heads on H KV heads.

    Attributes:
        head_dim: channels that the softmax scale belongs to; 0: those of a key.
        shared: values are the first channels of the keys, stored once.
    """

    batch: int
    tokens: int
    q_heads: int
    kv_heads: int
    k_dim: int
    v_dim: int
    head_dim: int = 0
    shared: bool = False

    @property
    def sm_scale(self) -> float:
        return 1 / math.sqrt(self.head_dim or self.k_dim)

    @property
    def row_bytes(self) -> int:
        """16-bit bytes of a token of one layer."""
        return 2 * self.kv_heads * (self.k_dim + (0 if self.shared else self.v_dim))


@dataclass(frozen=True)
class Tensors:
    """q (B, HQ, Dk), k (B, T, H, Dk), v (B, T, H, Dv); all of one dtype and device."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor


def make_tensors(geometry: Geometry, *, seed: int, dtype: torch.dtype, device: str) -> Tensors:
    """Make one layer's tensors. Same seed, geometry and device: same tensors."""
    g = geometry
    generator = torch.Generator(device=device).manual_seed(seed)
    model = _Structure(g, generator, device)
    q = torch.empty(g.batch, g.q_heads, g.k_dim, dtype=dtype, device=device)
    k = torch.empty(g.batch, g.tokens, g.kv_heads, g.k_dim, dtype=dtype, device=device)
    v = torch.empty(g.batch, g.tokens, g.kv_heads, g.v_dim, dtype=dtype, device=device)
    for b in range(g.batch):
        q_b, k_b, v_b = model.request()
        q[b], k[b], v[b] = q_b.to(dtype), k_b.to(dtype), v_b.to(dtype)
    return Tensors(q, k, v)


def num_sinks(tokens: int) -> int:
    """First tokens of a request that are attention sinks."""
    return min(NUM_SINKS, tokens // 2)


def rotation(positions: int, channels: int, theta: float, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine of RoPE's angles, (positions, channels / 2) each."""
    half = channels // 2
    frequency = theta ** (-torch.arange(half, device=device, dtype=torch.float32) / half)
    angle = torch.arange(positions, device=device, dtype=torch.float32)[:, None] * frequency
    return angle.cos(), angle.sin()


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """RoPE on channel pairs (i, i + half)."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


class _Structure:
    """What all requests of a layer share: channel means, low-rank basis, RoPE angles."""

    def __init__(self, g: Geometry, generator: torch.Generator, device: str) -> None:
        self.g, self.generator, self.device = g, generator, device
        half = g.k_dim // 2
        pairs = max(1, half // 32)
        # Large means live in slowly rotating pairs: elsewhere RoPE would average them away.
        slow = torch.randperm(half // 2, generator=generator, device=device)[:pairs] + half - half // 2
        self.k_mean = torch.zeros(g.kv_heads, g.k_dim, device=device)
        size = 5 + 10 * self._uniform(g.kv_heads, pairs)
        self.k_mean[:, slow] = size
        self.k_mean[:, slow + half] = -size * 0.7
        self.basis = self._normal(g.kv_heads, RANK, g.k_dim) / math.sqrt(RANK)
        self.v_mean = 0.7 * self._normal(g.kv_heads, g.v_dim)
        self.cos, self.sin = rotation(g.tokens + 1, g.k_dim, ROPE_THETA, device)

    def request(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        g = self.g
        group = g.q_heads // g.kv_heads
        k = self._normal(g.tokens, g.kv_heads, g.k_dim) + self.k_mean
        k += torch.einsum("thr,hrd->thd", self._normal(g.tokens, g.kv_heads, RANK), self.basis)
        k = rotate(k, self.cos[: g.tokens, None], self.sin[: g.tokens, None])
        q = self._normal(g.kv_heads, group, g.k_dim) + 0.1 * self.k_mean[:, None]
        q = rotate(q, self.cos[g.tokens], self.sin[g.tokens])
        q = self._plant(q, k)
        norm = torch.exp(0.3 * self._normal(g.tokens, g.kv_heads, 1))
        v = (self._normal(g.tokens, g.kv_heads, g.v_dim) + self.v_mean) * norm
        v[: num_sinks(g.tokens)] *= 0.05
        return q.reshape(g.q_heads, g.k_dim), k, v

    def _plant(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        """Give the first tokens their share of the mass through a direction u all queries have; plant one needle."""
        g, sinks = self.g, num_sinks(self.g.tokens)
        if not sinks:
            return q
        u = torch.nn.functional.normalize(self._normal(g.kv_heads, g.k_dim), dim=-1)
        q = q - (q * u[:, None]).sum(-1, keepdim=True) * u[:, None]
        at = int(torch.randint(sinks, g.tokens, (1,), generator=self.generator, device=self.device))
        k[at] += 4 * torch.nn.functional.normalize(q[:, 0], dim=-1)
        logits = torch.einsum("hgd,thd->hgt", q, k[sinks:]) / math.sqrt(g.k_dim)
        level = torch.logsumexp(logits, -1).mean(-1) + math.log(SINK_MASS / (1 - SINK_MASS) / sinks)
        strength = 4.0
        noise = 0.1 * self._normal(sinks, g.kv_heads, g.k_dim)
        noise -= (noise * u).sum(-1, keepdim=True) * u
        k[:sinks] = (level * math.sqrt(g.k_dim) / strength)[:, None] * u + noise
        return q + strength * u[:, None]

    def _normal(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=self.generator, device=self.device)

    def _uniform(self, *shape: int) -> torch.Tensor:
        return torch.rand(*shape, generator=self.generator, device=self.device)
