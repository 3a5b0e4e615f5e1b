"""Error of a format on Gaussian numbers, and the KL that usually goes with it: what is left where nothing was measured.

Relative errors: facts of the project's kernel study (section 4.2, simulated); step = range / (2^bits - 1), error =
step / sqrt(12). K and V: KL = 10 e^2 and 0.8 e^2 is what fp8, int8 and int4 with one scale per token or group cost
SmolLM2-135M, within a factor of 3. A latent serves both.
"""

from __future__ import annotations

from math import sqrt

from kvplan.formats.grammar import FP4, FP8, INTS, Named, parse_any, parse_format
from kvplan.formats.named import SPELLINGS

KL_OF = {"k": 10.0, "v": 0.8, "latent": 10.8}
_FLOATS = {"fp8_e4m3": 0.0265, "fp8_e5m2": 0.0527, "fp4_e2m1": 0.095}
_POWER_OF_TWO = 1.2
"""How much larger the error is where a scale is a power of two."""
_RANGES = {16: 3.4, 32: 4.05, 64: 4.7, 128: 5.2}
"""(max - min) / rms of this many Gaussian numbers."""
_RECORDS = {"fp8_ds_mla": 0.0257, "fp8_ds_v4": 0.0265 * _POWER_OF_TWO, "nvfp4_ds_mla": 0.095}
"""Records of a latent: their codes' error; the rope part is kept in 16 bit or fp8."""


def theory_kl(role: str, spelling: str) -> float | None:
    """KL with only this tensor stored; None for static integers (their range depends on the data) and joint slots."""
    error = relative_error(spelling)
    return None if error is None else KL_OF[role] * error**2


def relative_error(spelling: str) -> float | None:
    """||x' - x|| / ||x|| of Gaussian rows."""
    f = parse_any(spelling)
    if isinstance(f, Named):
        if f.name in _RECORDS:
            return _RECORDS[f.name]
        if f.name not in SPELLINGS:
            return None
        f = parse_format(SPELLINGS[f.name])
    coarse = _POWER_OF_TWO if f.scale == "e8m0" else 1.0
    if f.number in (*FP8, *FP4):
        return _FLOATS[f.number] * coarse
    if f.number not in INTS or f.is_static:
        return None
    bits = int(f.number.removeprefix("int"))
    if bits < 2:
        return None
    size = f.group if f.granularity == "group" and f.group else 32 if f.by_channel else 128
    span = _RANGES.get(size, _RANGES[128])
    # A symmetric grid spans twice the largest magnitude, some 1.1 times the range, in one step less.
    width, steps = (span, 2**bits - 1) if f.asym else (1.1 * span, 2**bits - 2)
    return float(width / steps / sqrt(12) * coarse)
