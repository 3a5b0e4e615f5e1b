"""A number that knows where it comes from, and the limits that numbers of a config must keep."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvplan.specs.importers.result import How

LAYERS = 2_000
"""Most layers that are believed."""
HEADS = 4_096
"""Most heads of one layer."""
HEAD_DIM = 16_384
"""Most channels of one head, or elements of one latent row."""
WIDTH = 1_048_576
"""Most channels of a whole layer."""
TOKENS = 2**30
"""Most tokens."""


class Figure(int):
    """An integer with its origin. Arithmetic gives plain integers: a derived number states its own origin."""

    how: How
    source: str

    def __new__(cls, value: int, how: How, source: str) -> Figure:
        made = super().__new__(cls, value)
        made.how = how
        made.source = source
        return made


Fallback = Callable[[], Figure]
"""Supplies a number that the file does not give."""


def derived(value: int, *parents: Figure, rule: str, instead: bool = False) -> Figure:
    """A number computed from others: only as certain as the least certain of them.

    Args:
        instead: the file could have stated it and did not, so it is at best defaulted.
    """
    order: tuple[How, ...] = ("read", "defaulted", "assumed")
    hows = [p.how for p in parents] + (["defaulted"] if instead else [])
    return Figure(value, max(hows, key=order.index), rule)


def plain(value: Any) -> Any:
    """The same value without origins, as the spec's schema wants it."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return int(value) if isinstance(value, Figure) else value
