"""Where nothing keeps every bound: which one to relax, and by how much, each alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil, floor

from kvplan.plan import compose
from kvplan.plan.capacity import WEIGHT_BITS, weights_term
from kvplan.plan.solve import fewest_gpus
from kvplan.recommend.bounds import Bounds
from kvplan.recommend.explain import name, place
from kvplan.recommend.scored import Scored
from kvplan.recommend.types import RecommendRequest, Relaxation
from kvplan.units import format_bytes


def relaxations(choices: Sequence[Scored], request: RecommendRequest, bounds: Bounds) -> Iterator[Relaxation]:
    """One for each bound whose change alone is enough."""
    good = [c for c in choices if c.lacks_room_only]
    yield from _room(good, request)
    fitting = [c for c in choices if c.fits]
    yield from _quality([c for c in fitting if all(text.startswith(("KL", "top-1")) for text in c.obstacles)], bounds)
    late = [c for c in fitting if _slow(c, bounds) and len(c.obstacles) == 1]
    if late and bounds.slo_seconds is not None:
        best = min(late, key=lambda c: c.floor)
        needed = f"{ceil(best.floor * 1e4) / 10:g}"
        yield Relaxation(
            option="--slo-itl",
            asked=f"{bounds.slo_seconds * 1e3:g}",
            needed=needed,
            text=f"--slo-itl {needed} or more: {name(best)}{place(best)} reads weights and cache in that",
        )


def _room(good: Sequence[Scored], request: RecommendRequest) -> Iterator[Relaxation]:
    if not good:
        return
    best = max(good, key=lambda c: (c.requests, c.pool_bytes - c.held_bytes))
    alike = [c for c in good if c.choice == best.choice]
    if best.requests:
        yield Relaxation(
            option="--concurrency",
            asked=str(request.concurrency),
            needed=str(best.requests),
            text=f"--concurrency {best.requests} (asked: {request.concurrency:,}), with {name(best)}{place(best)}",
        )
    verdict = compose(best.resolved).verdict
    shorter = next((c.value for c in verdict.nearest_change if c.option == "--context"), 0) if verdict else 0
    if shorter:
        yield Relaxation(
            option="--context",
            asked=str(request.context),
            needed=str(shorter),
            text=f"--context {shorter} (asked: {request.context:,}), with {name(best)}{place(best)}",
        )
    yield from _more_gpus(alike, request)
    yield from _weights(alike)


def _more_gpus(alike: Sequence[Scored], request: RecommendRequest) -> Iterator[Relaxation]:
    """Plain tensor parallelism of more GPUs."""
    assert request.context is not None
    best = next((c for c in alike if c.resolved.sharding.dcp == 1 and not c.resolved.sharding.dp_attention), None)
    more = fewest_gpus(best.resolved, request.context, stages=False) if best else None
    if best and more and more.gpus > request.gpus:
        yield Relaxation(
            option="--gpus",
            asked=str(request.gpus),
            needed=str(more.gpus),
            text=f"--gpus {more.gpus} (asked: {request.gpus}): {name(best)} fits at tp {more.tp}",
        )


def _weights(alike: Sequence[Scored]) -> Iterator[Relaxation]:
    """Smaller weights, where these fill the card."""
    best = max(alike, key=lambda c: c.pool_bytes)
    resolved, device = best.resolved, best.resolved.device
    assert device is not None
    if best.pool_bytes >= device.memory_bytes / 10 or resolved.spec.params is None:
        return
    for dtype in ("fp8", "int4"):
        for c in alike:
            now, layout = weights_term(c.resolved).nbytes, c.resolved.sharding
            size = resolved.spec.params.total * WEIGHT_BITS[dtype] // 8 // (layout.tp * layout.pp)
            if size < now and c.pool_bytes + now - size >= c.held_bytes:
                words = f"weights of {format_bytes(size)} a GPU instead of {format_bytes(now)}{place(c)}"
                yield Relaxation(
                    option="--weights-dtype",
                    asked=resolved.request.weights_dtype or "",
                    needed=dtype,
                    text=f"--weights-dtype {dtype}: {words}",
                )
                return


def _quality(fitting: Sequence[Scored], bounds: Bounds) -> Iterator[Relaxation]:
    known = [c for c in fitting if c.quality]
    if not known or any(not c.obstacles for c in known):
        return

    def kl(c: Scored) -> float:
        return (c.quality.high if bounds.at_worst else c.quality.kl) if c.quality else float("inf")

    best = min(known, key=kl)
    if kl(best) > bounds.max_kl:
        needed = f"{ceil(kl(best) * 1e4) / 1e4:g}"
        yield Relaxation(
            option="--max-kl",
            asked=f"{bounds.max_kl:g}",
            needed=needed,
            text=f"--max-kl {needed} (asked: {bounds.max_kl:g}): {name(best)}{place(best)} fits",
        )
    elif best.quality and best.quality.top1 < bounds.min_top1:
        needed = f"{floor(best.quality.top1 * 1e3) / 1e3:g}"
        yield Relaxation(
            option="--min-top1",
            asked=f"{bounds.min_top1:g}",
            needed=needed,
            text=f"--min-top1 {needed} (asked: {bounds.min_top1:g}): {name(best)}{place(best)} fits",
        )


def _slow(c: Scored, bounds: Bounds) -> bool:
    return bounds.slo_seconds is not None and c.floor > bounds.slo_seconds
