"""From the command line's words to candidates that can run, and the memory that they take. No torch."""

from __future__ import annotations

from collections.abc import Sequence

from kvplan.errors import UsageError
from kvplan.formats.grammar import PLAIN, Format, Pair, parse_any, parse_kv
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
    found = [_both(text) for text in texts]
    if k is not None and v is not None:
        names = parse_any(k).spelling, parse_any(v).spelling
        found.append(Candidate(format=" / ".join(names), k=names[0], v=names[1]))
    return tuple(dict.fromkeys(found))


def _both(text: str) -> Candidate:
    parsed = parse_kv(text)
    if isinstance(parsed, Pair):
        return Candidate(format=parsed.spelling, k=parsed.k.spelling, v=parsed.v.spelling)
    return Candidate(format=parsed.spelling, k=parsed.spelling, v=parsed.spelling)


def needs_calibration(chosen: Sequence[Candidate]) -> bool:
    """Whether any format has static scales."""
    parsed = [parse_any(spelling) for c in chosen for spelling in (c.k, c.v)]
    return any(isinstance(f, Format) and f.is_static for f in parsed)


def has_parts(c: Candidate) -> bool:
    """Whether K only and V only differ from both together."""
    return c.k not in PLAIN and c.v not in PLAIN


def memory_needed(parameters: int, vocab: int, layers: int, row_bytes: int, tokens: int, gguf: bool) -> int:
    """Bytes at the peak on the CPU in fp32: weights (twice while GGUF is unpacked), two sets of logits, one layer.

    Args:
        row_bytes: fp32 bytes of K and V of one token in one layer.
    """
    weights = 4 * parameters * (2 if gguf else 1)
    logits = 3 * 4 * tokens * vocab
    attention = 4 * tokens * tokens * 4 + 8 * tokens * row_bytes
    return weights + logits + attention + 64 * layers * 1024
