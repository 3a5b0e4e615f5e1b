"""What the decode benchmark measures and what it must reach: one table of formats, one of shapes.

Fractions are of a read-only kernel timed the same way; speedups are against the best 16-bit decode of the same run.
The musts hold for pages of 128 tokens and a consecutive table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kvplan.formats.grammar import Pair, parse_any, parse_kv
from kvplan.formats.grid import Tensor, bind
from kvplan.formats.layout import Layout

PAGE = 128
ERROR_MUST = 1e-3
"""Relative error at the timed shapes, below the bound of `testing.KERNEL`, beyond which there is no speed at all."""
SHUFFLED_SHARE = 0.92
"""What a shuffled table keeps of a must."""
UNSTUDIED_SHARE = 0.85
"""What shapes keep of a must that no study has shown to be reached."""

BASELINE = "fp16"
APART = "kivi2 apart"
"""The packed rows of kivi2 alone: no value waits, and no key at lengths that are multiples of 32."""
_APART_PAIR = ("int2:channel/32,asym", "int2:group/32,asym")


@dataclass(frozen=True)
class Target:
    """Musts of one format; `fraction` and `speedup` are (must, stretch) at 16 x 32k."""

    fraction: tuple[float, float]
    speedup: tuple[float, float]
    fraction_64x4k: float
    fraction_1x128k: float
    microseconds_1x4k: float = 12.0


TARGETS = {
    #                            16x32k        x 16 bit     64x4k 1x128k
    "fp16":               Target((0.97, 0.99), (0.98, 0.98), 0.95, 0.92, 13.0),
    "bf16":               Target((0.97, 0.99), (0.98, 0.98), 0.95, 0.92, 13.0),
    "fp8_e4m3":           Target((0.94, 0.97), (1.90, 1.95), 0.91, 0.86),
    "int8":               Target((0.92, 0.96), (1.85, 1.92), 0.90, 0.84),
    "int4:token,asym":    Target((0.87, 0.92), (3.30, 3.50), 0.82, 0.75),
    "int4:group/32,asym": Target((0.83, 0.88), (2.65, 2.85), 0.78, 0.73),
    "int2:token,asym":    Target((0.70, 0.80), (5.00, 5.70), 0.64, 0.54),
    APART:                Target((0.57, 0.70), (3.10, 3.80), 0.54, 0.48),
}  # fmt: skip
WITH_RESIDUAL_64X4K = {"kivi2": 0.48}
"""Fraction at 64 x 4k with the waiting rows of 16 bit."""
RIVAL_FORMAT, RIVAL_SPEEDUPS = "fp8_e4m3", {"16x32k": 1.40, "64x4k": 1.08}
"""Musts of fp8 against the fastest fp8 decode of the peers that read a paged cache."""
UNTARGETED = ("kivi4", "int4:channel/32,asym", "nvfp4", "mxfp4", "int3,rot")
"""Timed for the time model and the tables; no must was set."""
FORMATS = (*TARGETS, "kivi2", *UNTARGETED)


@dataclass(frozen=True)
class Case:
    """One shape of a decode step.

    Attributes:
        use: `main` (has musts, fits the time model), `held out` (judges it), `shuffled`, `unstudied` or `short`.
    """

    name: str
    lengths: tuple[int, ...]
    use: str = "main"
    group: int = 4
    dim: int = 128
    kv_heads: int = 8

    @property
    def shuffled(self) -> bool:
        return self.use == "shuffled"

    @property
    def uniform(self) -> bool:
        return len(set(self.lengths)) == 1


def spread_lengths(count: int, low: int, high: int) -> tuple[int, ...]:
    """Lengths evenly spread on a logarithmic scale, neighbours far apart (`count` is no multiple of 13)."""
    found = [round(low * (high / low) ** ((i + 0.5) / count)) for i in range(count)]
    return tuple(found[i * 13 % count] for i in range(count))


K = 1024
CASES = (
    Case("16x32k", (32 * K,) * 16),
    Case("64x4k", (4 * K,) * 64),
    Case("1x128k", (128 * K,)),
    Case("1x4k", (4 * K,), "short"),
    Case("8x16k", (16 * K,) * 8, "held out"),
    Case("4x64k", (64 * K,) * 4, "held out"),
    Case("16x32k shuffled", (32 * K,) * 16, "shuffled"),
    Case("64x4k shuffled", (4 * K,) * 64, "shuffled"),
    Case("1x128k shuffled", (128 * K,), "shuffled"),
    Case("ragged", spread_lengths(32, 512, 64 * K), "unstudied"),
    Case("G=1", (32 * K,) * 16, "unstudied", group=1),
    Case("G=8", (32 * K,) * 8, "unstudied", group=8),
    Case("D=64", (32 * K,) * 16, "unstudied", dim=64),
    Case("D=256", (32 * K,) * 16, "unstudied", dim=256),
)


@dataclass(frozen=True)
class Goal:
    """What one row of the table is held to; None where nothing was set."""

    fraction: float | None = None
    fraction_stretch: float | None = None
    speedup: float | None = None
    speedup_stretch: float | None = None
    microseconds: float | None = None
    rival: float | None = None


def goal(fmt: str, case: Case) -> Goal:
    """The musts of a format at a shape."""
    base, share = case.name.removesuffix(" shuffled"), _share(fmt, case)
    if base == "64x4k" and fmt in WITH_RESIDUAL_64X4K:
        return Goal(share * WITH_RESIDUAL_64X4K[fmt])
    target = TARGETS.get(fmt)
    if target is None or case.use == "held out":
        return Goal()
    if base == "1x4k":
        return Goal(microseconds=target.microseconds_1x4k)
    rival = RIVAL_SPEEDUPS.get(case.name) if fmt == RIVAL_FORMAT else None
    if base == "64x4k":
        return Goal(share * target.fraction_64x4k, rival=rival)
    if base == "1x128k":
        return Goal(share * target.fraction_1x128k)
    (fraction, fraction_stretch), (speedup, speedup_stretch) = target.fraction, target.speedup
    if share < 1:
        # Stretches are of the studied shapes only.
        return Goal(share * fraction, None, share * speedup, None)
    return Goal(fraction, fraction_stretch, speedup, speedup_stretch, rival=rival)


def _share(fmt: str, case: Case) -> float:
    """What a case keeps of the musts; the study left open why paged groups lost more than other formats."""
    if case.use == "unstudied" or (case.shuffled and fmt == "int4:group/32,asym"):
        return UNSTUDIED_SHARE
    return SHUFFLED_SHARE if case.shuffled else 1.0


def measured(formats: Sequence[str], cases: Sequence[str]) -> Iterator[tuple[Case, str]]:
    """(case, format) in the order of the run: case by case, the baseline first; what makes no sense is left out."""
    for case in CASES:
        if case.name not in cases:
            continue
        for fmt in sorted(formats, key=lambda f: f != BASELINE):
            waits = any(n % 32 for n in case.lengths)
            if (fmt == APART and waits) or (fmt in UNTARGETED and case.use not in ("main", "held out")):
                continue
            yield case, fmt


def layout_for(fmt: str, case: Case) -> Layout:
    """The layout of one format at a shape."""
    if fmt == APART:
        formats = [parse_any(text) for text in _APART_PAIR]
    else:
        pair = parse_kv(fmt)
        formats = [pair.k, pair.v] if isinstance(pair, Pair) else [pair, pair]
    stored = [Tensor(role, f, case.dim) for role, f in zip("kv", formats, strict=True)]
    return bind(stored, case.kv_heads, "bf16" if fmt == "bf16" else "fp16")
