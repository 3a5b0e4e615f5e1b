"""What fills a GPU's memory, piece by piece: everything that a plan names, then what is left."""

from __future__ import annotations

from dataclasses import dataclass

from kvplan.breakdown import leaves
from kvplan.plan.answers import Capacity
from kvplan.plan.result import Plan

FREE, OUTSIDE = "free", "outside"
CACHE_PARTS = {
    "kv payload": "payload_bytes",
    "metadata": "metadata_bytes",
    "residual": "residual_bytes",
    "state": "state_bytes",
    "padding": "padding_bytes",
    "reserved": "reserved_bytes",
    "constants": "constant_bytes",
}
"""Name of a piece of the cache to its field in the figures of a plan."""


@dataclass(frozen=True, slots=True)
class Share:
    """One piece of a GPU's memory.

    Attributes:
        name: weights, an engine's need, a piece of the cache, or what is left.
        basis: exact | engine rule | estimate | measured; empty for what is left.
    """

    name: str
    nbytes: int
    basis: str = "exact"


@dataclass(frozen=True, slots=True)
class Memory:
    """A GPU's memory in pieces that add up to `total_bytes + missing_bytes`; empty pieces are left out.

    `free` holds more requests, `outside` is what the share of memory leaves alone.

    Attributes:
        total_bytes: of the GPU; without one, of the cache.
        missing_bytes: by which the cache is larger than its pool.
    """

    shares: tuple[Share, ...]
    total_bytes: int
    missing_bytes: int


def memory_shares(plan: Plan) -> Memory:
    """What fills the memory of one GPU; without a GPU the cache alone, without a context no cache.

    With an engine each range stands at its high end, so that what is left is certain.
    """
    cache, room = _cache(plan), plan.capacity
    held = sum(share.nbytes for share in cache)
    if room is None:
        return Memory(cache, held, 0)
    loaded = _loaded(room)
    draft = room.draft.held_bytes if room.draft else 0
    free = room.pool_bytes - held - draft
    outside = room.memory_bytes - room.pool_bytes - sum(share.nbytes for share in loaded)
    pieces = (*loaded, *cache, Share("draft cache", draft), Share(FREE, max(free, 0), ""), Share(OUTSIDE, outside, ""))
    return Memory(tuple(s for s in pieces if s.nbytes > 0), room.memory_bytes, max(-free, 0))


def _loaded(room: Capacity) -> list[Share]:
    """What is no cache: weights, and with an engine all that it holds beside them."""
    if room.budget is not None:
        return [Share(need.name, need.high_bytes, need.basis) for need in room.budget.needs]
    found = [Share("weights", room.weights.nbytes, next(leaves(room.weights)).basis)]
    if room.draft:
        found.append(Share("draft weights", room.draft.weights.nbytes, "estimate"))
    return found


def _cache(plan: Plan) -> tuple[Share, ...]:
    """The pieces of what an allocator takes. What an engine does not store is in no piece of it."""
    kv = plan.kv
    if kv is None:
        return ()
    sizes = {name: getattr(kv, field) for name, field in CACHE_PARTS.items()}
    # Rows that the engine leaves out are counted in the logical pieces: take them from the largest that has them.
    rest = kv.engine_saves_bytes
    for name in ("state", "residual", "kv payload", "metadata"):
        taken = min(rest, sizes[name])
        sizes[name] -= taken
        rest -= taken
    return tuple(Share(name, nbytes) for name, nbytes in sizes.items() if nbytes)
