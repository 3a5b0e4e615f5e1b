"""From the command line's words to candidates that can run. No torch."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from kvplan.errors import UsageError
from kvplan.formats.grammar import PLAIN, Named, Pair, parse_any, parse_kv
from kvplan.formats.layout import number_bits
from kvplan.formats.named import recipe_of
from kvplan.quality.report import Candidate

DEFAULT_FORMATS = ("int8:group/32", "int8", "fp8_e4m3", "int4:group/32,asym", "kivi4")
DEFAULT_TOKENS = 1024
SMALLEST_TOKENS = 16
CALIBRATION_TOKENS = 1024


def candidates(kv: Sequence[str], k: str | None, v: str | None) -> tuple[Candidate, ...]:
    """Formats of --kv, and the pair of --k and --v; the default list when none is given.

    Raises:
        UsageError: unknown formats, or one of --k and --v without the other.
    """
    if (k is None) != (v is None):
        raise UsageError("--k and --v belong together", "give both, or --kv F for the same format")
    texts = kv if kv or k else DEFAULT_FORMATS
    found = [_candidate(text) for text in texts]
    if k is not None and v is not None:
        found.append(_candidate(f"{k} / {v}"))
    return tuple(dict.fromkeys(found))


def _candidate(text: str) -> Candidate:
    """`F` for both, or `K / V` as reports print a pair; the blanks tell it from a group's size."""
    k, apart, v = text.partition(" / ")
    if apart:
        names = parse_any(k).spelling, parse_any(v).spelling
        return Candidate(format=" / ".join(names), k=names[0], v=names[1])
    parsed = parse_kv(text)
    if isinstance(parsed, Pair):
        return Candidate(format=parsed.spelling, k=parsed.k.spelling, v=parsed.v.spelling)
    return Candidate(format=parsed.spelling, k=parsed.spelling, v=parsed.spelling)


def needs_calibration(chosen: Sequence[Candidate]) -> bool:
    """Whether any format has scales that are learnt before."""
    return any(is_calibrated(spelling) for c in chosen for spelling in (c.k, c.v))


def is_calibrated(spelling: str) -> bool:
    """Whether a tensor's format has static scales, or a global one."""
    parsed = parse_any(spelling)
    if isinstance(parsed, Named):
        parsed = recipe_of(parsed.name).format
    return parsed.is_static or bool(parsed.global_scale)


def has_parts(c: Candidate) -> bool:
    """Whether K only and V only differ from both together."""
    return c.k not in PLAIN and c.v not in PLAIN


NOT_VERIFIED = "not verified: retrieval, math, this model"


def unverified(chosen: Sequence[Candidate], covered: Collection[tuple[str, str]] = ()) -> list[str]:
    """What nothing shows of formats below 4 bits, which single steps flatter most.

    Args:
        covered: K and V of formats whose needles and sums a report has.
    """
    low = [c.format for c in chosen if below_four_bits(c) and (c.k, c.v) not in covered]
    return [f"{', '.join(low)}: {NOT_VERIFIED}"] if low else []


def below_four_bits(c: Candidate) -> bool:
    """Whether K or V has fewer than 4 bits."""
    return any(_bits(spelling) < 4 for spelling in (c.k, c.v))


def _bits(spelling: str) -> int:
    parsed = parse_any(spelling)
    number = recipe_of(parsed.name).format.number if isinstance(parsed, Named) else parsed.number
    return number_bits(number)
