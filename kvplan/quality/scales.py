"""Static scales and what they were chosen by, as `kvplan calibrate` prints them."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Tried(BaseModel):
    """One margin on the held-out text."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    margin: float
    """Factor on the range seen in calibration."""
    clipped_k: float
    """Share of K's values beyond the range."""
    clipped_v: float
    kl: float
    """Predicted from the error of the attention output."""


class Calibration(BaseModel):
    """The scales and what they were chosen by."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    format: str
    model: str
    calibrated_on: str
    checked_on: str
    tried: tuple[Tried, ...]
    margin: float
    """The one with the least predicted KL."""
    scales: dict[str, list[list[float]]]
    """Tensor name to rows by head (one if not by head) of scales."""
