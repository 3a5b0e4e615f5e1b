"""Integer arithmetic with units, and the one way sizes are read and printed.

Bytes are always ints. GiB is 2**30 and printed as GiB; GB (10**9) appears only where a vendor's figure does.
"""

from __future__ import annotations

import re

from kvplan.errors import UsageError

KIB, MIB, GIB = 2**10, 2**20, 2**30

# No context, batch or memory size above this is meant seriously; it catches 10**12 typed by mistake.
MAX_TOKENS = 2**30

_COUNT = re.compile(r"(\d+)([kKmM]?)")
_COUNT_UNITS = {"": 1, "k": 2**10, "m": 2**20}
_BYTES = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)")
_BYTE_UNITS = {
    "b": 1,
    "kib": KIB,
    "mib": MIB,
    "gib": GIB,
    "tib": 2**40,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
}


def cdiv(a: int, b: int) -> int:
    """Ceiling of a / b for non-negative a and positive b."""
    return -(-a // b)


def align_up(a: int, unit: int) -> int:
    """The least multiple of `unit` that is >= a."""
    return cdiv(a, unit) * unit


def parse_count(text: str, what: str) -> int:
    """Read a token or request count: `32768`, `32k` (x 1024), `1M` (x 1024^2).

    Raises:
        UsageError: not a whole number, not positive, or above 2^30.
    """
    match = _COUNT.fullmatch(text.strip())
    if not match:
        raise UsageError(f"{what} {text!r} is not a count", "write a whole number such as 32768, 32k or 1M (k = 1024)")
    value = int(match.group(1)) * _COUNT_UNITS[match.group(2).lower()]
    return check_count(value, what)


def check_count(value: int, what: str) -> int:
    """Refuse a count that is not in 1..2^30; returns it unchanged otherwise."""
    if value < 1:
        raise UsageError(f"{what} must be at least 1, got {value}", f"give a positive {what}")
    if value > MAX_TOKENS:
        raise UsageError(f"{what} {value:,} is out of range", f"the largest {what} accepted is {MAX_TOKENS:,}")
    return value


def parse_bytes(text: str, what: str) -> int:
    """Read a memory size with its unit: `24GiB`, `80GB`, `512MiB`; returns bytes.

    Raises:
        UsageError: no unit, unknown unit or a size of zero.
    """
    match = _BYTES.fullmatch(text.strip())
    unit = _BYTE_UNITS.get(match.group(2).lower()) if match else None
    if not match or unit is None:
        raise UsageError(f"{what} {text!r} is not a size", "write a number and a unit, such as 24GiB or 80GB")
    value = round(float(match.group(1)) * unit)
    if value < 1:
        raise UsageError(f"{what} {text!r} is zero", "give a positive size such as 24GiB")
    return value


def parse_bandwidth(text: str, what: str) -> int:
    """Read a bandwidth such as `936GB/s` or `4.8TB/s`; returns bytes per second."""
    stripped = text.strip()
    if not stripped.lower().endswith("/s"):
        raise UsageError(f"{what} {text!r} is not a bandwidth", "write a size per second, such as 936GB/s")
    return parse_bytes(stripped[:-2], what)


def format_bytes(n: int) -> str:
    """`4.00 GiB`, `512 bytes`: two decimals above one KiB, exact below."""
    for name, unit in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if abs(n) >= unit:
            return f"{n / unit:,.2f} {name}"
    return f"{n:,} bytes"
