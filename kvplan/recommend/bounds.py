"""The bounds of a request, and which of them a choice breaks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kvplan.errors import UsageError
from kvplan.formats.grammar import Named, parse_any
from kvplan.formats.layout import number_bits
from kvplan.formats.named import recipe_of
from kvplan.recommend.evidence import MEASURED, OTHER, PREDICTED, THEORY, Quality
from kvplan.recommend.types import RecommendRequest

NOISE = 0.0012
"""KL by which a forward pass in bf16 differs from one in fp32 (SmolLM2-135M, 2,048 tokens): less cannot be noticed."""
LEVELS = {"strict": 2 * NOISE, "balanced": 0.02, "capacity": 0.12}
"""Largest KL. strict: even at the end of the evidence's interval, twice the noise. balanced: fp8 with one scale costs
0.0125, 8-bit K with 4-bit V 0.008, plain 4 bit 0.05 and more. capacity: 4 bits cost 0.05 to 0.11, 3 bits 0.27 (and 20
points of AIME in vLLM's own study of TurboQuant)."""
ROOM = "it holds only"
"""How the obstacle of room begins."""
LOW_BITS = 4
"""Fewer bits than this are recommended only on a report of the model itself: single steps do not show the needles that
2 bits lose (docs/quality.md), nor the long chains of thought that 3 bits break."""


@dataclass(frozen=True)
class Bounds:
    """What a choice must keep; `at_worst`: even at the high end of the evidence's interval."""

    max_kl: float
    min_top1: float
    at_worst: bool
    most_requests: bool
    slo_seconds: float | None
    words: str

    def obstacles(self, quality: Quality | None, missing: str, floor: float, why_unknown: str, bits: int) -> list[str]:
        """The bounds that a choice breaks, each with its figure.

        Args:
            missing: what of the wanted requests does not fit, beginning with `ROOM`; empty if all do.
            floor: seconds that no step can be shorter than.
            bits: fewest of any tensor.
        """
        return [*self._quality(quality, why_unknown, bits), *([missing] if missing else []), *self._slow(floor)]

    def _quality(self, q: Quality | None, why_unknown: str, bits: int) -> Iterator[str]:
        if q is None:
            yield why_unknown
            return
        if bits < LOW_BITS and q.evidence != MEASURED:
            yield f"{bits} bits, and no report of this model says what they lose (kvplan quality)"
        kl = q.high if self.at_worst else q.kl
        if kl > self.max_kl:
            end = " at the high end of what is known" if self.at_worst and q.kl <= self.max_kl else ""
            yield f"KL {kl:.4f}{end}, above {self.max_kl:g}"
        if q.top1 < self.min_top1:
            yield f"top-1 agreement {q.top1:.1%}, below {self.min_top1:.1%}"

    def _slow(self, floor: float) -> Iterator[str]:
        if self.slo_seconds is not None and floor > self.slo_seconds:
            yield f"a step takes at least {floor * 1e3:.2f} ms, above {self.slo_seconds * 1e3:g} ms"

    def doubts(self, q: Quality | None, latent: bool) -> str:
        """What keeps a choice that is within the bounds from being proven so."""
        if q is None or q.high <= self.max_kl or q.kl > self.max_kl or q.evidence == MEASURED:
            return ""
        kinds = {
            OTHER: "another model's",
            THEORY: "the format's arithmetic only",
            PREDICTED: "a prediction from tensors",
        }
        return (
            f"KL {q.kl:.4f} is {kinds[q.evidence]} and may be {q.high:.3f} here, above the bound {self.max_kl:g}: "
            + ("compare the engine's answers with and without it" if latent else "kvplan quality measures it")
        )


def bounds_of(request: RecommendRequest) -> Bounds:
    """What a request asks for.

    Raises:
        UsageError: bounds that contradict each other, or impossible ones.
    """
    own = request.max_kl is not None or request.min_top1 is not None
    if own and request.quality:
        raise UsageError(
            f"--quality {request.quality} and a bound of your own are both given",
            "drop --quality, or drop --max-kl and --min-top1",
        )
    if request.max_kl is not None and request.max_kl < 0:
        raise UsageError(f"max KL {request.max_kl:g} is below 0", "KL is 0 for the untouched cache; 0.02 is balanced")
    if request.min_top1 is not None and not 0 <= request.min_top1 <= 1:
        raise UsageError(f"min top-1 {request.min_top1:g} is no share", "give a number from 0 to 1, such as 0.95")
    if request.slo_itl_ms is not None and request.slo_itl_ms <= 0:
        raise UsageError(
            f"an inter-token latency of {request.slo_itl_ms:g} ms", "give milliseconds above 0, such as 30"
        )
    slo = None if request.slo_itl_ms is None else request.slo_itl_ms / 1e3
    late = "" if slo is None else f", a step within {request.slo_itl_ms:g} ms"
    if own:
        words = [] if request.max_kl is None else [f"KL at most {request.max_kl:g}"]
        words += [] if request.min_top1 is None else [f"top-1 agreement at least {request.min_top1:.1%}"]
        limit = float("inf") if request.max_kl is None else request.max_kl
        return Bounds(limit, request.min_top1 or 0.0, False, False, slo, " and ".join(words) + late)
    level = request.quality or "balanced"
    at_worst = level == "strict"
    text = f"{level} quality (KL at most {LEVELS[level]:g}" + (", even at its worst" if at_worst else "") + ")"
    return Bounds(LEVELS[level], 0.0, at_worst, level == "capacity", slo, text + late)


def fewest_bits(*spellings: str | None) -> int:
    """Bits of the smallest code among formats; 16 for none."""
    return min((_bits(s) for s in spellings if s), default=16)


def _bits(spelling: str) -> int:
    parsed = parse_any(spelling)
    if isinstance(parsed, Named):
        if parsed.name.startswith(("turboquant_k3", "turboquant_3", "octave")):
            return 3
        if parsed.name.startswith(("turboquant", "nvfp4_ds")):
            return 4
        if parsed.name.startswith("fp8_ds"):
            return 8
        parsed = recipe_of(parsed.name).format
    return {"lm4": 4, "lm3": 3, "lm2": 2, "iq4_nl": 4}.get(parsed.number) or number_bits(parsed.number)
