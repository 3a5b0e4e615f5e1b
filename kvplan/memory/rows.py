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
        ranks: ranks that share the rows in turn (decode context parallel); only for `all`.
        rank: which of them; 0 holds most.
    """

    law: str = "all"
    limit: int = 0
    stride: int = 1
    ranks: int = 1
    rank: int = 0

    def __post_init__(self) -> None:
        assert self.law in LAWS, self.law
        assert (self.limit > 0) == (self.law != "all"), self
        assert self.stride >= 1, self
        assert 0 <= self.rank < self.ranks and (self.ranks == 1 or self.law == "all"), self

    def rows(self, tokens: int) -> int:
        """Rows after `tokens` tokens. A chunk counts as the fullest it has been: the cache must have held that."""
        if self.law in ("ring", "encoder"):
            return self.limit
        stored = cdiv(tokens, self.stride)
        if self.law != "all":
            return min(stored, self.limit)
        return stored if self.ranks == 1 else cdiv(max(stored - self.rank, 0), self.ranks)

    @property
    def grows(self) -> bool:
        """Whether rows grow with the context without end."""
        return self.law == "all"

    @property
    def tokens_per_row(self) -> int:
        """Tokens after which this rank has one row more."""
        return self.stride * self.ranks

    @property
    def full_at(self) -> int:
        """Tokens from which on the rows follow a straight line (`all`) or stand still."""
        return self.limit * self.stride if self.law in ("window", "chunk") else 0

    def explain(self, tokens: int) -> str:
        """The arithmetic of `rows`, with its numbers in place."""
        if self.law == "encoder":
            return f"encoder_tokens.count {self.limit:,}, whatever the context"
        if self.law == "ring":
            return f"retain ring {self.limit:,}, whatever the context"
        text = f"context {tokens:,}" if self.stride == 1 else f"ceil(context {tokens:,} / stride {self.stride:,})"
        if self.law != "all":
            return f"min({text}, retain {self.law} {self.limit:,})"
        return text if self.ranks == 1 else f"ceil({text} / dcp {self.ranks})"
