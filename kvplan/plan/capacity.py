"""What fits on a GPU: found by exact search on the allocator's own function, never by division (KIVI is stepwise)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from kvplan.breakdown import Factor, Product
from kvplan.errors import UnsupportedError, UsageError, did_you_mean
from kvplan.memory.curves import Rank
from kvplan.memory.figures import KvFigures
from kvplan.memory.parts import total
from kvplan.memory.sharding import Sharding
from kvplan.plan.answers import Capacity, Change, Draft, Fit, Limit, Verdict, Workload
from kvplan.plan.draft import draft_answer, with_draft
from kvplan.plan.legal import legal_dcps, legal_tps
from kvplan.plan.resolve import PUBLISHED, Resolved
from kvplan.plan.search import largest
from kvplan.units import MAX_TOKENS, cdiv, format_bytes

WEIGHT_BITS = {"fp32": 32, "bf16": 16, "fp16": 16, "fp8": 8, "int8": 8, "int4": 4}


Ranks = Sequence[Rank]
"""The cache of one rank of every pipeline stage. Each stage must hold its part, so the fullest one decides."""


def fit_at(ranks: Ranks, pool_bytes: int, context: int, replicas: int = 1) -> Fit:
    """Requests of `context` tokens that a pool holds, and all tokens: the rest takes one shorter request."""
    requests = largest(lambda n: held_most(ranks, context, n) <= pool_bytes, MAX_TOKENS)
    rests = [pool_bytes - rank.held(context, requests) for rank in ranks]

    def beside(tokens: int) -> bool:
        more = [rank.beside(tokens) for rank in ranks]
        return all(each is not None and each <= rest for each, rest in zip(more, rests, strict=True))

    shorter = largest(beside, context - 1) if requests < MAX_TOKENS else 0
    return Fit(context=context, requests=replicas * requests, tokens=replicas * (requests * context + shorter))


def held_most(ranks: Ranks, context: int, sequences: int) -> int:
    """Allocated and constant bytes of one rank of the fullest stage."""
    return max(rank.held(context, sequences) for rank in ranks)


def check_weights_dtype(resolved: Resolved) -> str:
    """The number type of the weights.

    Raises:
        UsageError: kvplan does not know it.
    """
    dtype = resolved.request.weights_dtype or PUBLISHED
    if dtype not in (*WEIGHT_BITS, PUBLISHED):
        raise UsageError(f"unknown weights dtype {dtype!r}", did_you_mean(dtype, (*WEIGHT_BITS, PUBLISHED)))
    return dtype


def loaded_weights(resolved: Resolved, sharding: Sharding | None = None) -> list[Product]:
    """Weights of one rank in a layout of GPUs: of the model, and of a draft."""
    found = [weights_term(resolved, sharding)]
    return [*found, weights_term(resolved.draft)] if resolved.draft else found


def weights_term(resolved: Resolved, sharding: Sharding | None = None) -> Product:
    """Bytes of the weights on one rank, an estimate: the spec's byte count or parameters x width, shared evenly.

    Raises:
        UsageError: an unknown number type, or a spec that states neither bytes nor parameters.
    """
    spec, dtype = resolved.spec, check_weights_dtype(resolved)
    layout = sharding or resolved.sharding
    tp, pp = layout.tp, layout.pp
    ranks = f"/ tp {tp}" + (f" / pp {pp}" if pp > 1 else "")
    if dtype == PUBLISHED and spec.weights:
        each = cdiv(spec.weights.bytes, tp * pp)
        source = f"weights.bytes {spec.weights.bytes:,} ({spec.weights.dtype}) of spec {spec.id} {ranks}"
        # Exact on one GPU; several share them evenly only to a first approximation.
        basis = "exact" if tp * pp == 1 else "estimate"
        return Product("weights", (Factor("bytes per rank", each),), basis, source)
    if spec.params is None:
        raise UsageError(
            f"{spec.id} states no parameter count, so its weights and what fits beside them cannot be sized",
            "plan without a GPU; or: kvplan specs import CONFIG > spec.yaml, and add params: {total: N} to it",
        )
    bits, total = WEIGHT_BITS[dtype], spec.params.total
    source = f"params.total {total:,} of spec {spec.id}, all in {dtype}, {ranks}"
    if bits % 8:
        factors: tuple[Factor, ...] = (Factor("bytes per rank", cdiv(total * bits, 8 * tp * pp)),)
    else:
        factors = (Factor("parameters per rank", cdiv(total, tp * pp)), Factor("bytes", bits // 8))
    return Product("weights", factors, "estimate", source)


def usable_bytes(memory_bytes: int, share: Fraction) -> int:
    """share x memory, rounded down."""
    return int(share * memory_bytes)


def capacity(resolved: Resolved, lengths: tuple[int, ...]) -> Capacity:
    """What fits at the request's context, or at every length of the ladder without one."""
    assert resolved.device is not None
    request, memory = resolved.request, resolved.device.memory_bytes
    weights, draft = weights_term(resolved), _draft(resolved, lengths[0])
    ranks = with_draft(resolved.ranks, resolved.draft)
    usable = usable_bytes(memory, resolved.share)
    loaded = loaded_weights(resolved)
    pool = high = usable - total(loaded)
    budget = None
    if resolved.engine:
        # Imported here: a plan without an engine needs none of it.
        from kvplan.plan.budget import engine_budget

        budget = engine_budget(resolved, loaded)
        pool, high = budget.pool_low_bytes, budget.pool_high_bytes
    fits = tuple(fit_at(ranks, pool, n, resolved.sharding.dp) for n in lengths)
    ceiling = max(resolved.spec.max_context, request.context or 0)
    longest = largest(lambda n: held_most(ranks, n, 1) <= pool, ceiling)
    asked = request.context is not None
    most = fit_at(ranks, high, lengths[0], resolved.sharding.dp) if asked and budget else None
    return Capacity(
        memory_bytes=memory,
        util=float(resolved.share),
        usable_bytes=usable,
        weights=weights,
        pool_bytes=pool,
        requests=fits[0].requests if asked else None,
        tokens=fits[0].tokens if asked else None,
        longest_request=longest,
        longest_limited_by="model maximum" if longest == ceiling else "gpu memory",
        by_context=() if asked else fits,
        budget=budget,
        requests_high=most.requests if most else None,
        tokens_high=most.tokens if most else None,
        workload=_workload(resolved, ranks, (pool, high)),
        draft=draft,
    )


def _workload(resolved: Resolved, ranks: Ranks, pools: tuple[int, int]) -> Workload | None:
    """Only where anything but equal, unrelated requests is asked for."""
    request = resolved.request
    if not (request.lengths or request.shared_prefix or request.samples > 1):
        return None
    from kvplan.plan.workload import workload

    return workload(resolved, ranks, pools)


def _draft(resolved: Resolved, context: int) -> Draft | None:
    draft = resolved.draft
    return draft_answer(draft, weights_term(draft), context) if draft else None


def verdict(resolved: Resolved, kv: KvFigures, room: Capacity) -> Verdict:
    """Whether the request fits, why not, and the nearest changes with which it does."""
    needed = kv.allocated_bytes + kv.constant_bytes + (room.draft.held_bytes if room.draft else 0)
    pool = max(room.pool_bytes, 0)
    limits = (
        Limit(name="weights", needed_bytes=room.weights.nbytes, available_bytes=room.usable_bytes),
        Limit(name="kv cache", needed_bytes=needed, available_bytes=pool),
    )
    if needed <= room.pool_bytes:
        return Verdict(fits=True, limits=limits, reasons=(), nearest_change=())
    if room.budget and needed <= room.budget.pool_high_bytes:
        spread = f"{format_bytes(pool)} to {format_bytes(room.budget.pool_high_bytes)}"
        reason = f"the cache takes {format_bytes(needed)}, and the pool is estimated at {spread}: it may or may not fit"
        return Verdict(fits=False, limits=limits, reasons=(reason,), nearest_change=tuple(_changes(resolved, kv, room)))
    share = f"{room.util * 100:g}% of {format_bytes(room.memory_bytes)}"
    if room.pool_bytes < 0:
        reason = f"the weights take {format_bytes(room.weights.nbytes)} per GPU, more than {share}"
    else:
        reason = f"the cache takes {format_bytes(needed)}, {format_bytes(pool)} is left of {share} after the weights"
    return Verdict(fits=False, limits=limits, reasons=(reason,), nearest_change=tuple(_changes(resolved, kv, room)))


def _changes(resolved: Resolved, kv: KvFigures, room: Capacity) -> list[Change]:
    """One change at a time: the longest context, the largest batch, the least tp that fits."""
    ranks, pool = with_draft(resolved.ranks, resolved.draft), room.pool_bytes
    sequences, dp = resolved.sequences, resolved.sharding.dp
    found = {
        "--context": largest(lambda n: held_most(ranks, n, sequences) <= pool, kv.context),
        "--batch": dp * largest(lambda n: held_most(ranks, kv.context, n) <= pool, sequences),
        "--tp": _least_tp(resolved, kv, room),
    }
    return [Change(option=option, value=value) for option, value in found.items() if value]


def _least_tp(resolved: Resolved, kv: KvFigures, room: Capacity) -> int:
    request, spec = resolved.request, resolved.spec
    if request.dp_attention or request.pcp > 1 or resolved.draft:
        return 0
    for tp in legal_tps(spec):
        if tp > request.tp and request.dcp in legal_dcps(spec, tp):
            sharding = replace(resolved.sharding, tp=tp)
            try:
                ranks = resolved.ranks_with(sharding=sharding)
            except (UsageError, UnsupportedError):
                # A format may not fit the shorter row of a rank, or an engine have no rule for several ranks.
                continue
            weights = weights_term(resolved, sharding)
            pool = room.usable_bytes - weights.nbytes
            if resolved.engine:
                from kvplan.plan.budget import engine_budget

                pool = engine_budget(replace(resolved, sharding=sharding), [weights]).pool_low_bytes
            if held_most(ranks, kv.context, resolved.sequences) <= pool:
                return tp
    return 0
