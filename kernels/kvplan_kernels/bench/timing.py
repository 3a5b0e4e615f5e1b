"""Timing of GPU work: CUDA-graph replays over rotating inputs, medians.

A graph removes launch gaps; rotating copies larger than the L2 in all make every call read from HBM.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

MIN_ROTATING_BYTES = 300 * 10**6
"""Caches that rotate must hold more than this in all: five times the 60 MB L2 of an H200."""


@dataclass(frozen=True)
class Timing:
    """Seconds per call: the median of `samples` (one per graph replay), and the copies that rotated."""

    seconds: float
    samples: tuple[float, ...]
    copies: int

    @property
    def spread(self) -> float:
        """(max - min) / median of the samples."""
        return (max(self.samples) - min(self.samples)) / self.seconds


def copies_needed(nbytes: int) -> int:
    """Copies of a cache of `nbytes` so that they hold MIN_ROTATING_BYTES in all, at least 2."""
    return max(2, -(-MIN_ROTATING_BYTES // max(nbytes, 1)))


def graph_time(calls: Sequence[Callable[[], object]], launches: int = 24, replays: int = 7) -> Timing:
    """Time one call, from `launches` calls that cycle through `calls` in one CUDA graph.

    Each call must be warm-up safe and touch preallocated memory only.
    """
    launches = max(launches, len(calls))
    for call in calls:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(launches):
            calls[i % len(calls)]()
    graph.replay()
    torch.cuda.synchronize()
    samples = []
    for _ in range(replays):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        samples.append(start.elapsed_time(end) * 1e-3 / launches)
    return Timing(statistics.median(samples), tuple(samples), len(calls))
