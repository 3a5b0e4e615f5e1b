"""What timings of attention share: torch's attention as the baseline, rotating copies, the bytes a step must read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from kvplan_kernels.attention.unfused import dense_decode
from kvplan_kernels.bench.timing import Timing, copies_needed, graph_time
from kvplan_kernels.cache import Cache

Attend = Callable[[Tensor, Tensor], Tensor]


def torch_ways(q: Tensor, sm_scale: float) -> tuple[Attend, Attend]:
    """Torch's attention of q `(B, HQ, D)` on dense K and V `(B, H, T, D)`, asked for in two ways.

    Grouped heads are given as they are (`enable_gqa`) or folded into query rows (`dense_decode`).
    """

    def grouped(k: Tensor, v: Tensor) -> Tensor:
        return scaled_dot_product_attention(q[:, :, None], k, v, scale=sm_scale, enable_gqa=True)

    def folded(k: Tensor, v: Tensor) -> Tensor:
        return dense_decode(q, k, v, None, sm_scale)

    return grouped, folded


def dense_time(ways: Sequence[Attend], k: Tensor, v: Tensor) -> Timing:
    """The fastest of the ways to attend to dense 16-bit K and V, copies rotating."""
    pairs = [(k, v), *((k.clone(), v.clone()) for _ in range(copies_needed(k.nbytes + v.nbytes) - 1))]
    times = [graph_time([partial(way, *pair) for pair in pairs]) for way in ways]
    return min(times, key=lambda t: t.seconds)


def rotating(cache: Cache) -> list[Cache]:
    """The cache and as many copies as keep every call out of the L2."""
    return [cache, *(cache.clone() for _ in range(copies_needed(bytes_read(cache)) - 1))]


def bytes_read(cache: Cache) -> int:
    """The format's own bytes of the tokens in use: codes, scales and waiting rows that one decode step must read."""
    layout, total = cache.layout, 0
    for length in cache.lengths.tolist():
        for plane in layout.planes:
            for f in plane.fields:
                packed, recent = layout.tensor(f.tensor).split(length)
                rows = {"page": packed // f.tokens, "residual": recent}.get(plane.scope, 0)
                total += rows * plane.heads(layout.heads) * f.unit_bytes
    return total
