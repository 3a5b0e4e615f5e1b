"""Memory that a step takes for a moment beside the cache."""

from __future__ import annotations

from collections.abc import Sequence

from kvplan.breakdown import Factor, Product
from kvplan.formats.grammar import PLAIN
from kvplan.memory.groups import CacheGroup


def prefix_scratch(groups: Sequence[CacheGroup], tokens: int, sequences: int = 1) -> Product | None:
    """The dense 16-bit copy of quantised K and V rows that a prefix hit with a long chunk reads instead of the codes.

    One layer's, which all layers use in turn, so the largest group's; None where no group has quantised K and V.

    Args:
        tokens: rows of the prefix of each sequence.
        sequences: whose prefill runs at once.
    """
    found = [
        Product(
            "prefix scratch",
            (
                Factor("sequences", sequences, "whose prefill runs at once"),
                Factor("rows", group.law.rows(tokens), group.law.explain(tokens)),
                Factor("bytes of 16-bit K and V", group.layout.dense_bytes(1, 1), group.source),
            ),
            source="kvplan's dequantise path of a prefix hit",
        )
        for group in groups
        if group.role == "kv" and group.layers and any(f not in PLAIN for f in group.formats.values())
    ]
    return max(found, key=lambda term: term.nbytes, default=None)
