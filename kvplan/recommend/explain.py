"""Sentences with the numbers in them: why this one, why not that one, what would change the answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvplan.recommend.bounds import NOISE, Bounds
from kvplan.recommend.choose import Chosen, step
from kvplan.recommend.evidence import MEASURED
from kvplan.recommend.scored import Scored
from kvplan.recommend.types import RecommendRequest
from kvplan.units import format_bytes


def name(c: Scored) -> str:
    """`K int8, V int8`, `latent bf16` or `states only`, with the layers kept apart; in an engine its own words."""
    r, chosen = c.resolved.request, c.resolved.engine
    own = chosen.formats if chosen else {}
    found = {role: own.get(role, f) for role in ("k", "v", "latent") if (f := getattr(r, role))}
    text = ", ".join(f"{role.upper() if len(role) == 1 else role} {f}" for role, f in found.items()) or "states only"
    return text + (f" (layers {'; '.join(r.layers)})" if r.layers else "")


def place(c: Scored) -> str:
    """The layout, where there is a choice of one."""
    s = c.resolved.sharding
    if s.gpus == 1:
        return ""
    inside = " with attention replicas" if s.dp_attention else ""
    return f" at tp {s.tp}, dp {s.dp}{inside}" + (f", dcp {s.dcp}" if s.dcp > 1 else "")


def why(c: Scored, native: Scored | None, request: RecommendRequest, bounds: Bounds) -> str:
    """Why it is recommended."""
    wanted = f"{request.concurrency:,} requests of {request.context:,} tokens"
    need = f"{format_bytes(c.held_bytes)} of {format_bytes(max(c.pool_bytes, 0))} on each GPU"
    q = c.quality
    assert q is not None
    if not c.formats[0] and not c.formats[2]:
        return f"a KV format has no effect: this model keeps only states ({need}; {c.requests:,} requests fit)"
    if not q.kl:
        more = f"{c.requests:,} would fit" if c.requests < 10**9 else "more would fit"
        return f"{wanted} fit in the model's own dtype{place(c)} ({need}; {more}), so nothing need be lost"
    before = "" if native is None else f" do not fit in {name(native)} ({native.requests:,} do)"
    if native is not None and native.fits:
        before = f" would fit in {name(native)} too"
        before += f", but {native.obstacles[0]}" if native.obstacles else ""
    size = f"at KL {q.kl:.4f} ({q.evidence}), " + (
        "less than computing in bf16 changes" if q.kl <= NOISE else f"{q.top1:.1%} of top tokens the same"
    )
    aim = (
        f"{name(c)} holds most within the bound"
        if bounds.most_requests
        else f"{name(c)} is the least loss that keeps every bound"
        if q.kl > NOISE
        else f"{name(c)} loses nothing that can be noticed"
    )
    ratio = f", {_ratio(native.held_bytes, c.held_bytes)} the tokens per byte" if native else ""
    return f"{wanted}{before}; {aim}{place(c)}, {size}: {need}, {c.requests:,} fit{ratio}"


def why_not(c: Scored, best: Scored | None, bounds: Bounds) -> str:
    """Why the runner-up lost, or how near the nearest comes."""
    fit = f"{c.requests:,} requests fit"
    if best is None:
        return f"the nearest{place(c)}: {fit}; " + "; ".join(c.obstacles)
    fit += f" against {best.requests:,}{place(c)}"
    faster = ""
    if c.seconds and best.seconds:
        faster = f", predicted attention {best.seconds / c.seconds:.2f}x as fast"
    if c.obstacles:
        return f"{fit}{faster}; lost because of " + "; ".join(c.obstacles)
    loss, mine = c.quality.kl if c.quality else 0.0, best.quality.kl if best.quality else 0.0
    if not bounds.most_requests and step(loss) == step(mine):
        heavier = [word for word in c.burdens if word not in best.burdens]
        if len(c.burdens) > len(best.burdens):
            return f"{fit}{faster}; as good (KL {loss:.5f} against {mine:.5f}), lost because of {', '.join(heavier)}"
    if (
        c.held_bytes > best.held_bytes
        and c.requests <= best.requests
        and (bounds.most_requests or step(loss) == step(mine))
    ):
        return f"{fit}{faster}; lost by room (KL {loss:.5f} against {mine:.5f})"
    return f"{fit}{faster}; lost by {loss - mine:+.5f} KL"


def changes(chosen: Chosen, choices: Sequence[Scored], request: RecommendRequest, bounds: Bounds) -> Iterator[str]:
    """What would change the answer."""
    best, runner = chosen.best, chosen.runner
    if best is None:
        return
    if best.requests < 10**9 and runner:
        most = max((c for c in choices if c.lacks_room_only), key=lambda c: c.requests, default=best)
        if most.requests > best.requests:
            yield (
                f"more than {best.requests:,} requests of {request.context:,} tokens: then {name(most)}{place(most)}, "
                f"which holds {most.requests:,}"
            )
        else:
            yield f"more than {best.requests:,} requests of {request.context:,} tokens: only more GPUs, no other format"
    doubt = bounds.doubts(best.quality, latent=best.formats[2] is not None)
    if doubt:
        yield doubt
    shut = [c for c in choices if c.obstacles and c.fits and c.quality and c.quality.evidence != MEASURED]
    near = [c for c in shut if c.quality and c.quality.low <= bounds.max_kl and c.burden <= 1 + best.burden]
    room = max(near, key=lambda c: (c.requests, -c.loss), default=None)
    if room and room.quality and room.requests > 1.2 * best.requests:
        yield (
            f"a report of this model (kvplan quality, --evidence) that finds {name(room)} within the bound: it holds "
            f"{room.requests:,}, and KL {room.quality.kl:.4f} is {room.quality.evidence}"
        )
    timed = [c for c in choices if c.seconds and not c.obstacles and c.resolved.sharding == best.resolved.sharding]
    fastest = min(timed, key=lambda c: c.seconds or 0.0, default=None)
    if fastest and best.seconds and fastest.seconds and best.seconds / fastest.seconds > 1.1:
        yield (
            f"attention latency counting before loss: {name(fastest)} is predicted "
            f"{best.seconds / fastest.seconds:.2f}x as fast in decode attention (--slo-itl sets a bound)"
        )


def _ratio(before: int, after: int) -> str:
    return f"{before / after:.2f}x" if after else "-"
