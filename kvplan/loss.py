"""How sure a figure of KL is, and what the losses of K and V make together: shared by quality and recommend."""

from __future__ import annotations

from typing import Literal

Evidence = Literal[
    "measured on this model", "predicted from this model's tensors", "from another model", "format theory only"
]
"""Kinds of evidence, best first."""

PARTS_FACTOR = 1.1
"""Nine of ten mixed pairs lie within this factor of `together` of their measured parts, on texts not fitted."""
FACTOR = 1.5
"""Nine of ten formats lie within this factor of what their tensors say, where measured formats of the same tensor set
the level of the text, or it is as the law's."""
LEVEL_FACTOR = 2.0
"""The same where nothing sets the level: mixed pairs on the GPL cost 1.1 to 2 times what the law says."""
COMPOUNDING = 1.5
"""How much more than their sum two errors cost, fitted to 40 mixed pairs by `tools/fit_quality.py pairs`."""


def together(kl_k: float, kl_v: float) -> float:
    """Mean KL of a pair from that of each tensor alone: the sum, and more where both are coarse.

    1 + c KL = (1 + c KL_K) (1 + c KL_V): where one is below 0.05 nats c adds 7.5% at most.
    """
    return kl_k + kl_v + COMPOUNDING * kl_k * kl_v
