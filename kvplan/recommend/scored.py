"""One choice with its figures, before it is shown: what the search compares."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvplan.formats.grammar import PLAIN, Format, parse_any
from kvplan.plan.sweep import kind_of
from kvplan.recommend.bounds import NOISE, ROOM, Bounds, fewest_bits
from kvplan.recommend.evidence import THEORY, Evidence, Quality
from kvplan.recommend.latency import Measured, attention, step_floor

if TYPE_CHECKING:
    from kvplan.plan import Resolved
    from kvplan.specs.device import DeviceSpec

Point = tuple[float, float, float]
"""Tokens that fit (negative), seconds of attention, loss: less is better in each."""


@dataclass(frozen=True, slots=True, eq=False)
class Scored:
    """One choice of formats, layers, page size and layout.

    Attributes:
        held_bytes: cache of the wanted requests on the fullest rank, constant scales included.
        seconds, basis: decode attention of one step; None: not predicted.
        floor: seconds below which no step can be.
        obstacles: bounds that it breaks.
    """

    resolved: Resolved
    held_bytes: int
    pool_bytes: int
    requests: int
    tokens: int
    fits: bool
    seconds: float | None
    basis: str
    floor: float
    quality: Quality | None
    obstacles: tuple[str, ...]

    @property
    def point(self) -> Point:
        """The three objectives; losses below what bf16 computing changes count alike, but not as none."""
        seconds = float("inf") if self.seconds is None else self.seconds
        return -self.tokens, seconds, self.loss

    @property
    def loss(self) -> float:
        """KL as far as it can be noticed: 0 for none, at least the noise of bf16 computing otherwise."""
        if self.quality is None:
            return float("inf")
        return max(self.quality.kl, NOISE) if self.quality.kl else 0.0

    @property
    def formats(self) -> tuple[str | None, str | None, str | None]:
        """K, V and latent."""
        r = self.resolved.request
        return r.k, r.v, r.latent

    @property
    def choice(self) -> tuple[object, ...]:
        """What is stored, whatever the layout."""
        chosen = self.resolved.engine
        return (*self.formats, self.resolved.request.layers, tuple(chosen.formats.values()) if chosen else ())

    @property
    def burdens(self) -> tuple[str, ...]:
        """What makes it harder to run and to trust."""
        r, own = self.resolved.request, self.resolved.engine is None
        parsed = [f for f in map(parse_any, filter(None, self.formats)) if isinstance(f, Format)]
        found = {
            "two formats": own and r.k != r.v,
            "an unquantised residual": any(f.recent for f in parsed),
            "scales to calibrate": any(f.is_static for f in parsed),
            "layers apart": own and bool(r.layers),
            "no measurement of its quality": self.quality is not None and self.quality.evidence == THEORY,
            "no timed kernel": own and r.k is not None and self.seconds is None,
        }
        return tuple(word for word, there in found.items() if there)

    @property
    def burden(self) -> int:
        """How many of them."""
        return len(self.burdens)

    @property
    def lacks_room_only(self) -> bool:
        """Whether it breaks no bound but room."""
        return all(text.startswith(ROOM) for text in self.obstacles)


class Scorer:
    """Computes the figures of one request's choices."""

    def __init__(self, evidence: Evidence, device: DeviceSpec, bounds: Bounds, measured: Measured | None) -> None:
        self._evidence, self._device, self._bounds, self._measured = evidence, device, bounds, measured
        spec = evidence.spec
        self._layers = sorted(
            {i for g in spec.layer_groups if g.kind in ("attention", "latent", "cross") for i in spec.positions(g)}
        )

    def of(self, resolved: Resolved) -> Scored:
        """The figures of one choice; `resolved` has context and device.

        Raises:
            UsageError, UnsupportedError: as `kvplan.plan.make_plan`.
        """
        request = resolved.request
        assert request.context is not None
        swept = kind_of(resolved).plan(request.context, request.batch)
        assert swept.pool_bytes is not None and swept.requests is not None and swept.tokens is not None
        seconds, basis = attention(resolved, self._device, self._measured)
        floor = step_floor(resolved, self._device, swept.logical_bytes, seconds)
        quality = self.quality(resolved)
        bits = fewest_bits(request.k, request.v, request.latent)
        why = self._evidence.why_unknown(request.k)
        missing = "" if swept.fits else f"{ROOM} {swept.requests:,} of {request.batch:,} requests"
        return Scored(
            resolved=resolved,
            held_bytes=swept.allocated_bytes + swept.constant_bytes,
            pool_bytes=swept.pool_bytes,
            requests=swept.requests,
            tokens=swept.tokens,
            fits=bool(swept.fits),
            seconds=seconds,
            basis=basis,
            floor=floor,
            quality=quality,
            obstacles=tuple(self._bounds.obstacles(quality, missing, floor, why, bits)),
        )

    def quality(self, resolved: Resolved) -> Quality | None:
        """What the formats cost, with the layers that stay in 16 bit."""
        request = resolved.request
        found = self._evidence.of(request.k, request.v, request.latent)
        plain = [r for r in resolved.formats.rules if all(f.spelling in PLAIN for _, f in r.formats)]
        kept = frozenset(i for rule in plain for i in rule.layers) & frozenset(self._layers)
        if found is None or not found.kl or not kept:
            return found
        return self._evidence.kept(found, kept, self._layers)


def pareto(choices: Iterable[Scored]) -> list[Scored]:
    """Those that no other one beats, one for each point: the first of equal ones."""
    front: list[tuple[Point, Scored]] = []
    ordered = sorted(((c.point, i, c) for i, c in enumerate(choices) if c.quality is not None), key=lambda x: x[:2])
    for point, _, c in ordered:
        if not any(all(a <= b for a, b in zip(p, point, strict=True)) for p, _ in front):
            front.append((point, c))
    return [c for _, c in front]
