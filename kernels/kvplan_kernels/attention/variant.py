"""How a model's attention differs from a plain causal softmax over all rows. One object for kernels and reference."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Variant:
    """Applied in this order: logits times the softmax scale, softcap, masks, sinks.

    Attributes:
        window: rows that a query sees, its own included; None for all before it. A query at position p sees the rows
            from p - window + 1 on.
        softcap: logits become softcap * tanh(logits / softcap).
        sinks: fp32 `(HQ,)`, one more logit per query head in the softmax's sum that has no value.
    """

    window: int | None = None
    softcap: float | None = None
    sinks: Tensor | None = None

    def __post_init__(self) -> None:
        if self.window is not None and self.window < 1:
            raise ValueError(f"a window of {self.window} rows sees nothing, expected at least 1")
        if self.softcap is not None and not self.softcap > 0:
            raise ValueError(f"softcap {self.softcap} is not above 0")


PLAIN = Variant()
