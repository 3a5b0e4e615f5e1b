"""Requests of several lengths at once: how many fit on average, and with 95% probability."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, pstdev
from typing import TYPE_CHECKING

from kvplan.errors import UsageError
from kvplan.memory.curves import Rank
from kvplan.plan.answers import Workload
from kvplan.plan.lengths import Lengths, read_lengths
from kvplan.plan.search import largest
from kvplan.units import MAX_TOKENS, check_count

if TYPE_CHECKING:
    from kvplan.plan.resolve import Resolved

Z95 = 1.645
"""95% quantile of the normal distribution: sums of many requests are close to it."""


def workload(resolved: Resolved, ranks: Sequence[Rank], pools: tuple[int, int]) -> Workload:
    """How many requests fit at the low and at the high end of the pool.

    Raises:
        UsageError: no lengths and no context; a prefix longer than every request.
    """
    request = resolved.request
    check_count(request.samples, "samples")
    lengths = _lengths(resolved)
    prefix = request.shared_prefix or 0
    if prefix >= max(lengths.sample):
        raise UsageError(
            f"the shared prefix of {prefix:,} tokens is not shorter than the longest request, {max(lengths.sample):,}",
            "the lengths are of whole requests, prefix included",
        )
    rank = max(ranks, key=lambda r: r.held(max(lengths.sample), 1))
    shared = rank.shared_bytes(prefix)
    slots = rank.beside(1) is None
    costs = _costs(rank, lengths, shared, request.samples)
    mean = fmean(costs)
    dp, found = resolved.sharding.dp, []
    for pool in pools:
        room = pool - rank.held(1, 0) - shared
        if slots:
            each = _slots(rank, max(lengths.sample), request.samples, pool)
            found += [dp * each, dp * each]
        else:
            found += [dp * _fits(room, mean, 0.0), dp * _fits(room, mean, pstdev(costs))]
    return Workload(
        lengths=lengths.text,
        mean_tokens=lengths.mean,
        mean_request_bytes=mean,
        shared_bytes=shared,
        samples=request.samples,
        requests=found[0],
        requests_p95=found[1],
        requests_high=found[2],
        requests_p95_high=found[3],
        limited_by="slots of one size" if slots else "kv cache",
    )


def _lengths(resolved: Resolved) -> Lengths:
    request, most = resolved.request, resolved.spec.max_context
    if request.lengths:
        read = read_lengths(request.lengths)
        if request.beyond_max:
            return read
        return Lengths(read.text, tuple(min(n, most) for n in read.sample), read.how)
    if request.context is None:
        raise UsageError(
            "a shared prefix or several samples need the requests' lengths", "add --context N or --lengths p50=N,p95=N"
        )
    return Lengths(f"{request.context}", (request.context,), "every request")


def _costs(rank: Rank, lengths: Lengths, shared: int, samples: int) -> list[int]:
    """Bytes of each request of the sample beside the shared prefix; its samples share that prefix too."""
    by_length = {n: (rank.beside(n) or rank.held(n, 1)) for n in set(lengths.sample)}
    return [samples * max(by_length[n] - shared, 0) for n in lengths.sample]


def _slots(rank: Rank, longest: int, samples: int, pool: int) -> int:
    """The most requests where every slot is as large as the longest request."""
    return largest(lambda n: rank.held(longest, n * samples) <= pool, MAX_TOKENS)


def _fits(room: int, mean: float, deviation: float) -> int:
    """The most requests whose mean sum, plus 1.645 standard deviations of it, fits."""
    if room <= 0:
        return 0
    return largest(lambda n: n * mean + Z95 * deviation * n**0.5 <= room, MAX_TOKENS)
