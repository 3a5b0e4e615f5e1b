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
    graph = captured([calls[i % len(calls)] for i in range(launches)], warm_up=calls)
    return replay_time(graph, launches, len(calls), replays)


def captured(calls: Sequence[Callable[[], object]], warm_up: Sequence[Callable[[], object]]) -> torch.cuda.CUDAGraph:
    """One CUDA graph of `calls`, after each of `warm_up` has run."""
    for call in warm_up:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    return graph


def replay_time(
    graph: torch.cuda.CUDAGraph,
    launches: int,
    copies: int,
    replays: int = 7,
    before: Callable[[], object] | None = None,
) -> Timing:
    """Time one of the `launches` calls of a graph; `before` runs ahead of every replay and is not timed."""
    samples = []
    for warm in (True, *[False] * replays):
        if before is not None:
            before()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        if not warm:
            samples.append(start.elapsed_time(end) * 1e-3 / launches)
    return Timing(statistics.median(samples), tuple(samples), copies)
