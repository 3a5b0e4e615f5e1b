"""The choice among computed candidates: the rule by which one is put first, and the one after it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import floor, log

from kvplan.recommend.bounds import NOISE, Bounds
from kvplan.recommend.scored import Scored

NEAR = 0.97
"""With the aim of most requests, a choice with this share of the most counts as good as the one with most."""
ALIKE = 1.25
"""Losses closer than this factor count alike: two codecs differ by 10%, the sum of K and V from the whole by 15%."""


@dataclass(frozen=True)
class Chosen:
    """`best` is None where nothing keeps every bound; then `runner` is the nearest."""

    best: Scored | None
    runner: Scored | None
    order: list[Scored]


def choose(choices: Sequence[Scored], bounds: Bounds) -> Chosen:
    """Of those that keep every bound the least loss; among losses that count alike (all that bf16 computing hides, and
    any within `ALIKE`) the one that is easiest to run, then the one with most room. With the aim of most requests the
    most room, and the least loss among the nearly equal."""
    keep = [c for c in choices if not c.obstacles]
    order = sorted(keep, key=_aim(keep, bounds))
    if not order:
        nearest = sorted(choices, key=_distance)
        return Chosen(None, nearest[0], nearest)
    best = order[0]
    others = [c for c in order if c.choice != best.choice]
    runner = others[0] if others else next(iter(_broken(choices, best)), None)
    return Chosen(best, runner, order)


def _aim(keep: Sequence[Scored], bounds: Bounds) -> Callable[[Scored], tuple[float, ...]]:
    most = max((c.requests for c in keep), default=0)

    def key(c: Scored) -> tuple[float, ...]:
        loss = c.quality.kl if c.quality else float("inf")
        if bounds.most_requests:
            return (c.requests < NEAR * most, loss, c.burden, -c.requests, c.seconds or 0.0)
        # Of losses that cannot be noticed the smaller one is no argument, so bytes come first.
        last = (c.held_bytes, loss) if loss <= NOISE else (loss, c.held_bytes)
        return (step(loss), c.burden, -c.requests, *last, c.seconds or 0.0)

    return key


def step(loss: float) -> float:
    """0: nothing is lost; 1: nothing that can be noticed; above: how many steps of `ALIKE` more than that."""
    return 0 if not loss else 1 if loss <= NOISE else 2 + floor(log(loss / NOISE) / log(ALIKE))


def _broken(choices: Sequence[Scored], best: Scored) -> list[Scored]:
    """Those that break a bound, nearest first."""
    return sorted((c for c in choices if c.choice != best.choice and c.quality), key=_distance)


def _distance(c: Scored) -> tuple[float, ...]:
    """How far from keeping every bound: unknown quality last, then how many are broken, then room, then loss."""
    return (c.quality is None, len(c.obstacles), -c.requests if not c.fits else 0, c.loss, c.burden, -c.pool_bytes)
