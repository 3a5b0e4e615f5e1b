"""A draft model on the same GPUs: its weights and its cache, charged beside the target's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvplan.breakdown import Product
from kvplan.errors import UsageError
from kvplan.memory.curves import Rank
from kvplan.plan.answers import Draft

if TYPE_CHECKING:
    from kvplan.plan.resolve import Resolved


@dataclass(frozen=True, slots=True)
class BothRanks:
    """A rank that holds the caches of the target and of the draft; both hold the same sequences."""

    target: Rank
    draft: Rank

    def held(self, tokens: int, sequences: int) -> int:
        """Allocated and constant bytes of both."""
        return self.target.held(tokens, sequences) + self.draft.held(tokens, sequences)

    def beside(self, tokens: int) -> int | None:
        """Bytes of one more, shorter sequence in both; None where slots have one size."""
        one, other = self.target.beside(tokens), self.draft.beside(tokens)
        return None if one is None or other is None else one + other

    def shared_bytes(self, tokens: int) -> int:
        """Bytes of a prefix that requests can share, in both."""
        return self.target.shared_bytes(tokens) + self.draft.shared_bytes(tokens)


def resolve_draft(resolved: Resolved) -> Resolved:
    """The draft model in the target's layout of GPUs, engine and formats.

    Raises:
        UsageError: the draft does not fit that layout or engine.
    """
    from kvplan.plan.resolve import resolve

    asked = resolved.request
    assert asked.draft is not None
    update = {
        "model": asked.draft,
        "draft": None,
        "beyond_max": True,
        "weights_dtype": None,
        "latent": None,
        "index": None,
        "kv": None,
        "layers": (),
        "mtp": False,
        "pp": 1,
        "lengths": None,
        "shared_prefix": None,
        "samples": 1,
    }
    try:
        return resolve(asked.model_copy(update=update), device=resolved.device)
    except UsageError as error:
        raise UsageError(f"draft model {asked.draft}: {error.message}", error.hint) from None


def with_draft(ranks: Sequence[Rank], draft: Resolved | None) -> Sequence[Rank]:
    """The target's ranks with the draft's cache on each."""
    return [BothRanks(rank, draft.ranks[0]) for rank in ranks] if draft else ranks


def draft_answer(draft: Resolved, weights: Product, context: int) -> Draft:
    """What a plan says of the draft."""
    return Draft(model=draft.spec.id, weights=weights, held_bytes=draft.ranks[0].held(context, draft.sequences))
