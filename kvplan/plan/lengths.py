"""Lengths of requests: quantiles such as `p50=2k,p95=16k`, or a trace, as a sample of equal weight."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist

from kvplan.errors import InputError, UsageError
from kvplan.units import MAX_TOKENS, parse_count

POINTS = 500
"""Sample points of a distribution that is given by quantiles."""
_QUANTILE = re.compile(r"p(\d{1,2}(?:\.\d+)?|100)=(.+)")
COLUMNS = ("tokens", "length", "total_tokens")
PAIRS = (
    ("input_tokens", "output_tokens"),
    ("prompt_tokens", "completion_tokens"),
    ("ContextTokens", "GeneratedTokens"),
)
"""Columns of a trace: one with the whole length, or two to add."""


@dataclass(frozen=True)
class Lengths:
    """Lengths of requests in tokens, ascending, each as likely as the others.

    Attributes:
        text: as it was asked for, in a canonical form; a trace by its file's name.
        how: how the sample was made, in words.
    """

    text: str
    sample: tuple[int, ...]
    how: str

    @property
    def mean(self) -> float:
        """Mean length in tokens."""
        return sum(self.sample) / len(self.sample)


def read_lengths(text: str) -> Lengths:
    """What `--lengths` says: quantiles, or the path of a CSV or JSONL trace.

    Raises:
        UsageError: quantiles that cannot be read or do not ascend.
        InputError: a trace that cannot be read or has no column of lengths.
    """
    if "=" in text and not Path(text).exists():
        return _quantiles(text)
    return _trace(Path(text))


def _quantiles(text: str) -> Lengths:
    points: dict[float, int] = {}
    for part in text.split(","):
        match = _QUANTILE.fullmatch(part.strip())
        if match is None:
            raise UsageError(f"lengths {part.strip()!r} is no quantile", "write p50=2k,p95=16k, or a CSV or JSONL file")
        points[float(match[1])] = parse_count(match[2], f"length at p{match[1]}")
    ordered = sorted(points.items())
    values = [value for _, value in ordered]
    if values != sorted(values):
        raise UsageError(f"lengths {text} fall while the percentage grows", "a higher quantile is at least as long")
    sample = _log_normal(ordered)
    spelled = ",".join(f"p{p:g}={value}" for p, value in ordered)
    return Lengths(spelled, sample, f"{POINTS} points of a log-normal curve through the quantiles")


def _log_normal(points: list[tuple[float, int]]) -> tuple[int, ...]:
    """Straight lines through (normal quantile, log length), continued at both ends; p0 and p100 are bounds."""
    low = next((v for p, v in points if p == 0), 1)
    high = next((v for p, v in points if p == 100), MAX_TOKENS)
    knots = [(NormalDist().inv_cdf(p / 100), math.log(v)) for p, v in points if 0 < p < 100]
    if not knots:
        raise UsageError("lengths need a quantile between p0 and p100", "write p50=2k,p95=16k")

    def at(z: float) -> int:
        if len(knots) == 1:
            return min(max(round(math.exp(knots[0][1])), low), high)
        right = next((i for i in range(1, len(knots)) if z <= knots[i][0]), len(knots) - 1)
        (z0, v0), (z1, v1) = knots[right - 1], knots[right]
        return min(max(round(math.exp(v0 + (z - z0) / (z1 - z0) * (v1 - v0))), low), high)

    return tuple(at(NormalDist().inv_cdf((i + 0.5) / POINTS)) for i in range(POINTS))


def _trace(path: Path) -> Lengths:
    hint = f"a CSV or JSONL file with a column {', '.join(COLUMNS)}, or two such as {' and '.join(PAIRS[0])}"
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise InputError(f"lengths {path.name!r} cannot be read: {reason}", hint) from None
    lines = [line for line in text.splitlines() if line.strip()]
    rows: Iterable[object]
    first = lines[0].lstrip() if lines else ""
    try:
        # A line of JSONL is an object or a bare number; a CSV file begins with the names of its columns.
        as_json = first.startswith("{") or first.isdigit()
        rows = [json.loads(line) for line in lines] if as_json else list(csv.DictReader(lines))
    except ValueError as error:
        raise InputError(f"trace {path.name} is neither JSONL nor CSV: {error}", hint) from None
    lengths = [_length(row, path.name, number, hint) for number, row in enumerate(rows, 1)]
    if not lengths:
        raise InputError(f"trace {path.name} holds no request", hint)
    return Lengths(path.name, tuple(sorted(lengths)), f"{len(lengths):,} requests of a trace")


def _length(row: object, name: str, number: int, hint: str) -> int:
    value: object = row
    if isinstance(row, dict):
        value = next((row[c] for c in COLUMNS if row.get(c) is not None), None)
        if value is None:
            pair = next((p for p in PAIRS if all(row.get(c) is not None for c in p)), None)
            value = None if pair is None else sum(_whole(row[c], name, number, hint) for c in pair)
    length = _whole(value, name, number, hint)
    if not 1 <= length <= MAX_TOKENS:
        raise InputError(f"trace {name}, request {number}: length {length:,} is impossible", hint)
    return length


def _whole(value: object, name: str, number: int, hint: str) -> int:
    if isinstance(value, bool) or value is None:
        raise InputError(f"trace {name}, request {number} has no length", hint)
    try:
        read = float(str(value))
    except ValueError:
        raise InputError(f"trace {name}, request {number}: {value!r} is no length", hint) from None
    if read != int(read):
        raise InputError(f"trace {name}, request {number}: {value!r} is no whole number of tokens", hint)
    return int(read)
