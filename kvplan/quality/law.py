"""From errors on captured tensors to KL: a monotone law, fitted once by tools/fit_quality.py. No torch."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from kvplan.loss import Evidence
from kvplan.stored import StoredReport

KL_OF_K, KL_OF_V = 3.17, 1.27
STATISTICS_KL_OF_K, STATISTICS_KL_OF_V = 0.49, 0.61
"""The same law for errors from statistics alone."""
STATISTICS_FACTOR = 2.0
"""Nine of ten formats lie within this factor of KL from statistics alone; `kvplan.loss` has that from tensors."""
OTHER_MODEL_FACTOR = 10.0
"""The same for KL of another model. Shown for Gemma-3-270m only: six of seven formats lie within 3, all within 10."""


def kl_of(error_k: float, error_v: float) -> float:
    """Mean KL of a pair: the sum of K's and V's, since what both add together is less than this law's own spread.

    Args:
        error_k, error_v: error of the attention output with only K, only V stored: see `tensors.TensorErrors.error`.
    """
    return KL_OF_K * error_k**2 + KL_OF_V * error_v**2


def kl_of_statistics(error_k: float, error_v: float) -> float:
    """Mean KL from `statistics.StatisticErrors.error` of K and V."""
    return STATISTICS_KL_OF_K * error_k**2 + STATISTICS_KL_OF_V * error_v**2


def interval(kl: float, factor: float) -> tuple[float, float]:
    """What nine of ten formats keep."""
    return kl / factor, kl * factor


class Prediction(BaseModel):
    """What is expected of one format."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    format: str
    k: str
    v: str
    kl: float
    low: float
    high: float
    """Interval that nine of ten formats keep on another text of the studied model, far wider for another model; `kl`
    itself where the pair was measured."""
    error_k: float | None
    """Error of the attention output with only K stored; null where K's KL was measured."""
    error_v: float | None
    kl_statistics: float | None = None
    """KL from statistics of the tensors alone, no codec run: a second opinion, less sure."""
    low_statistics: float | None = None
    high_statistics: float | None = None
    """Interval of `kl_statistics`, as `low` and `high`."""
    heads_k: tuple[tuple[float, ...], ...] = ()
    """K's error by layer of the file and query head."""
    evidence: Evidence


class PredictionReport(StoredReport):
    """What `kvplan quality --predict` found."""

    schema_: Literal["kvplan.prediction/1"] = Field(default="kvplan.prediction/1", alias="schema")
    command: str
    model: str
    tensors: str
    """Which captured tensors, in words."""
    layers: tuple[int, ...]
    """Layers of the tensors."""
    measured: str | None
    """Hash of the weights that the measured figures are of."""
    formats: tuple[Prediction, ...]
    notes: tuple[str, ...]
