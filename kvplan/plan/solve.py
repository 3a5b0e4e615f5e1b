"""The questions turned round: users at a length, the length for a number of users, GPUs, and the share of memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING

from kvplan.errors import UnsupportedError, UsageError
from kvplan.memory.sharding import Sharding
from kvplan.plan.answers import Budget
from kvplan.plan.capacity import Ranks, fit_at, held_most, loaded_weights, usable_bytes
from kvplan.plan.draft import with_draft
from kvplan.plan.legal import legal_tps
from kvplan.plan.resolve import Resolved, resolve
from kvplan.plan.search import largest
from kvplan.plan.types import PlanRequest

if TYPE_CHECKING:
    from kvplan.specs.device import DeviceSpec
    from kvplan.specs.model import ModelSpec

MOST_GPUS = 64


@dataclass(frozen=True, kw_only=True)
class FewestGpus:
    """The smallest layout in which the request fits: tp x pp GPUs of one replica."""

    gpus: int
    tp: int
    pp: int


@dataclass(frozen=True, kw_only=True)
class Solution:
    """Answers for one model on one kind of GPU; *_high at the high end of an engine's pool, else the same.

    Attributes:
        users: requests of `context` tokens that fit.
        longest_context: tokens of each of `batch` requests; 0 if not one token fits.
        fewest_gpus: None if no layout of at most 64 GPUs is large enough; the other one has no pipeline stages.
        least_share: of the GPU's memory with which the request fits, in steps of 0.01; None if none does.
        limited_by: what ends it first: weights, kv cache, model maximum, or the engine's limit of requests at once.
    """

    model: str
    gpu: str
    engine: str | None
    context: int
    batch: int
    users: int
    users_high: int
    longest_context: int
    longest_context_high: int
    fewest_gpus: FewestGpus | None
    fewest_gpus_without_pipeline: FewestGpus | None
    least_share: float | None
    share_name: str
    limited_by: str
    notes: tuple[str, ...]


def solve(request: PlanRequest, spec: ModelSpec | None = None, device: DeviceSpec | None = None) -> Solution:
    """Answer all of them at once.

    Raises:
        UsageError: no GPU; otherwise as `make_plan`.
    """
    resolved = resolve(request, spec, device)
    if resolved.device is None:
        raise UsageError("what fits depends on the GPU", "add --gpu, or --gpu-memory and --bandwidth")
    context = resolved.request.context or resolved.spec.max_context
    low, high = pools(resolved, resolved.sharding, resolved.share)
    ranks, sequences, dp = with_draft(resolved.ranks, resolved.draft), resolved.sequences, resolved.sharding.dp
    ceiling = max(resolved.spec.max_context, context)
    longest = [_longest(ranks, pool, sequences, ceiling) for pool in (low, high)]
    users = [fit_at(ranks, pool, context, dp).requests for pool in (low, high)]
    engine = resolved.engine
    return Solution(
        model=resolved.spec.id,
        gpu=resolved.device.name,
        engine=f"{engine.engine.title} {engine.version}" if engine else None,
        context=context,
        batch=resolved.request.batch,
        users=users[0],
        users_high=users[1],
        longest_context=longest[0],
        longest_context_high=longest[1],
        fewest_gpus=fewest_gpus(resolved, context),
        fewest_gpus_without_pipeline=fewest_gpus(resolved, context, stages=False),
        least_share=least_share(resolved, context),
        share_name=engine.engine.pool.share_name if engine else "util",
        limited_by=_limit(resolved, low, longest[0], ceiling, users[0]),
        notes=resolved.notes,
    )


def _longest(ranks: Ranks, pool: int, sequences: int, ceiling: int) -> int:
    return largest(lambda n: held_most(ranks, n, sequences) <= pool, ceiling)


def pools(resolved: Resolved, sharding: Sharding, share: Fraction) -> tuple[int, int]:
    """(low, high) bytes of the pool of one rank in a layout of GPUs, at a share of the memory."""
    assert resolved.device is not None
    weights = loaded_weights(resolved, sharding)
    if resolved.engine is None:
        left = usable_bytes(resolved.device.memory_bytes, share) - sum(w.nbytes for w in weights)
        return left, left
    from kvplan.plan.budget import engine_budget

    budget: Budget = engine_budget(replace(resolved, share=share, sharding=sharding), weights)
    return budget.pool_low_bytes, budget.pool_high_bytes


def fewest_gpus(resolved: Resolved, context: int, stages: bool = True) -> FewestGpus | None:
    """The least tp x pp, and of equal ones the least pp, in which one replica holds the batch."""
    if resolved.draft or resolved.sharding.dp_attention or resolved.sharding.pcp > 1 or resolved.sharding.dcp > 1:
        return None
    for gpus, pp, tp in sorted(_layouts(resolved, stages)):
        sharding = Sharding(tp=tp, pp=pp)
        try:
            ranks = resolved.ranks_with(sharding=sharding)
        except (UsageError, UnsupportedError):
            # A format may not fit the shorter row of a rank, or an engine have no rule for several ranks.
            continue
        pool, _ = pools(resolved, sharding, resolved.share)
        if held_most(ranks, context, resolved.request.batch) <= pool:
            return FewestGpus(gpus=gpus, tp=tp, pp=pp)
    return None


def _layouts(resolved: Resolved, stages: bool) -> Iterator[tuple[int, int, int]]:
    """(GPUs, pp, tp) of every legal layout."""
    for tp in legal_tps(resolved.spec):
        most = min(resolved.spec.layers, MOST_GPUS // tp) if stages else 1
        yield from ((tp * pp, pp, tp) for pp in range(1, most + 1) if tp <= MOST_GPUS)


def least_share(resolved: Resolved, context: int) -> float | None:
    """The least share of the memory, in hundredths, at whose pool's low end the request fits."""
    ranks = with_draft(resolved.ranks, resolved.draft)
    needed = held_most(ranks, context, resolved.sequences)
    for hundredths in range(1, 101):
        if pools(resolved, resolved.sharding, Fraction(hundredths, 100))[0] >= needed:
            return hundredths / 100
    return None


def _limit(resolved: Resolved, pool: int, longest: int, ceiling: int, users: int) -> str:
    """What ends it first."""
    at_once = resolved.engine.options.get("max_num_seqs") if resolved.engine else None
    if pool <= 0:
        return "weights: nothing is left for a cache"
    if isinstance(at_once, int) and users > at_once:
        return f"max_num_seqs {at_once}: memory would hold {users:,} requests"
    return "model maximum" if longest == ceiling else "kv cache"
