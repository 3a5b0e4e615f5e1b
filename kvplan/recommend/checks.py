"""A stored configuration held to what is true now: formats there, cache fits, quality within its bound, fast enough."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kvplan.errors import InputError, UnsupportedError, UsageError
from kvplan.plan import resolve
from kvplan.recommend.bounds import ROOM, Bounds
from kvplan.recommend.config import Config
from kvplan.recommend.evidence import Body, Evidence
from kvplan.recommend.scored import Scored, Scorer
from kvplan.specs.load import load_device, load_model
from kvplan.units import format_bytes

ANY = Bounds(float("inf"), 0.0, False, False, None, "no bound")


@dataclass(frozen=True)
class Check:
    """One yes or no, with the figures that decided it."""

    name: str
    passed: bool
    detail: str


def check(config: Config, bodies: Sequence[Body] = ()) -> list[Check]:
    """Every check of a configuration; after a plan that is refused there is only that one.

    Raises:
        InputError: the file names no GPU or no context, so nothing can be said to fit; an unknown model or GPU.
    """
    request = config.request
    for name in ("gpu", "context"):
        if getattr(request, name) is None:
            raise InputError(
                f"the configuration names no {name}, so nothing can be checked to fit", f"add {name}: to it"
            )
    spec, device = load_model(request.model), load_device(request.gpu or "")
    evidence = Evidence(spec, bodies)
    bounds = config.bounds or ANY
    try:
        found = Scorer(evidence, device, bounds, None).of(resolve(request, spec, device))
    except (UsageError, UnsupportedError) as error:
        return [Check("formats", False, f"{error.message} ({error.hint})")]
    return list(_checks(found, bounds, evidence))


def _checks(c: Scored, bounds: Bounds, evidence: Evidence) -> Iterator[Check]:
    r, chosen = c.resolved.request, c.resolved.engine
    words = ", ".join(f"{role} {f}" for role in ("k", "v", "latent") if (f := getattr(r, role))) or "states only"
    where = f" in {chosen.engine.title} {chosen.version}" if chosen else ""
    yield Check("formats", True, words + where)
    room = next((text for text in c.obstacles if text.startswith(ROOM)), "")
    size = f"{format_bytes(c.held_bytes)} of {format_bytes(max(c.pool_bytes, 0))} on each GPU"
    wanted = f"{r.batch:,} requests of {r.context:,} tokens"
    yield Check("fits", not room, f"{wanted}: {room or f'{c.requests:,} fit'}; {size}")
    slow = next((text for text in c.obstacles if text.startswith("a step")), "")
    if bounds.slo_seconds is not None:
        yield Check("latency", not slow, slow or f"no step is shorter than {c.floor * 1e3:.2f} ms; not a measurement")
    others = [text for text in c.obstacles if text not in (room, slow)]
    if bounds is ANY:
        return
    q = c.quality
    known = evidence.why_unknown(r.k) if q is None else f"KL {q.kl:.4f}, top-1 {q.top1:.1%}: {q.evidence} ({q.source})"
    yield Check("quality", not others, "; ".join([*others, known]) + f"; bounds: {bounds.words}")
