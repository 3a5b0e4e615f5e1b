"""How many rows a cache keeps for n tokens: the five retention laws.

How many of those rows are packed and how many wait unquantised is `BoundTensor.split`.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvplan.units import cdiv

LAWS = ("all", "window", "chunk", "ring", "encoder")


@dataclass(frozen=True, slots=True)
class RowLaw:
    """Rows kept by one layer for one sequence.

    Attributes:
        law: `all` (every row), `window` and `chunk` (at most `limit` rows), `ring` (always `limit` rows),
            `encoder` (`limit` encoder tokens, whatever the context).
        limit: rows; 0 for `all`.
        stride: tokens per stored row.
    """

    law: str = "all"
    limit: int = 0
    stride: int = 1

    def __post_init__(self) -> None:
        assert self.law in LAWS, self.law
        assert (self.limit > 0) == (self.law != "all"), self
        assert self.stride >= 1, self

    def rows(self, tokens: int) -> int:
        """Rows after `tokens` tokens. A chunk counts as the fullest it has been: the cache must have held that."""
        if self.law in ("ring", "encoder"):
            return self.limit
        stored = cdiv(tokens, self.stride)
        return stored if self.law == "all" else min(stored, self.limit)

    @property
    def grows(self) -> bool:
        """Whether rows grow with the context without end."""
        return self.law == "all"

    @property
    def full_at(self) -> int:
        """Tokens from which on the rows follow a straight line (`all`) or stand still."""
        return self.limit * self.stride if self.law in ("window", "chunk") else 0
