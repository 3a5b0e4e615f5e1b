"""Exact search on functions that grow."""

from __future__ import annotations

from collections.abc import Callable


def largest(fits: Callable[[int], bool], ceiling: int) -> int:
    """The largest n in 0..ceiling with fits(n), for a `fits` that once false stays false; 0 if fits(1) fails."""
    low, high = 0, 1
    while high <= ceiling and fits(high):
        low, high = high, high * 2
    high = min(high, ceiling + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
