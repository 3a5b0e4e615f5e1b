"""How a server's options become cells: context of a slot, streams, and the cells of each kind of cache.

Source: llama.cpp b11434, src/llama-context.cpp:290-308, src/llama-kv-cache-iswa.cpp:60-72, src/llama-kv-cache-dsv4.cpp.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from kvplan.engines.llamacpp.builds import CELLS
from kvplan.units import align_up, cdiv


@dataclass(frozen=True)
class Server:
    """A llama.cpp context.

    Attributes:
        n_ctx: cells of all streams of a full cache.
        n_ctx_seq: cells of one stream: what one request can use, in unified mode what all share.
        slots: sequences at once (n_seq_max).
        unified: whether all slots share one stream.
        n_ubatch: tokens of a physical batch.
        swa_full: whether layers with a window keep every token.
        pad: a stream's cells are a multiple of this.
    """

    n_ctx: int
    n_ctx_seq: int
    slots: int
    unified: bool
    n_ubatch: int
    swa_full: bool = False
    pad: int = CELLS

    @property
    def streams(self) -> int:
        """Streams of an ordinary cache."""
        return 1 if self.unified else self.slots

    def split(self) -> Server:
        """The same context with a stream for each slot: what DeepSeek-V4 has in unified mode too."""
        return replace(self, unified=False)

    def window_cells(self, window: int) -> int:
        """Cells of one stream of a cache with a window: the window of every sequence in it, and one batch."""
        if self.swa_full:
            return self.n_ctx_seq
        return align_up(min(self.n_ctx_seq, window * (self.slots if self.unified else 1) + self.n_ubatch), self.pad)

    def compressed_cells(self, stride: int) -> int:
        """Cells of one stream of a cache with one row for `stride` tokens."""
        return align_up(max(cdiv(self.n_ctx_seq, stride), 1), self.pad)


def context_of(n_ctx: int, slots: int, unified: bool, pad: int = CELLS) -> int:
    """Cells of one stream for a context size (-c) and slots (-np)."""
    whole = align_up(n_ctx, pad)
    return whole if unified else align_up(whole // slots, pad)


def least(context: int, sequences: int, options: Mapping[str, Any], pad: int = CELLS) -> Server:
    """The smallest server that runs `sequences` requests of `context` tokens, whatever n_ctx and n_parallel say."""
    unified = bool(options["kv_unified"])
    n_ctx_seq = align_up(context * (sequences if unified else 1), pad)
    n_ctx = n_ctx_seq if unified else n_ctx_seq * sequences
    return Server(n_ctx, n_ctx_seq, sequences, unified, options["n_ubatch"], options["swa_full"], pad)


def started(context: int, sequences: int, options: Mapping[str, Any], planned: int, pad: int = CELLS) -> Server:
    """The server that the options start, grown where the request needs more.

    Args:
        planned: sequences that the server was started for; they size a slot where n_ctx is given without n_parallel.
    """
    needed = least(context, sequences, options, pad)
    slots = max(options["n_parallel"] or 0, sequences)
    n_ctx_seq = needed.n_ctx_seq
    if options["n_ctx"]:
        given = context_of(options["n_ctx"], options["n_parallel"] or max(planned, 1), needed.unified, pad)
        n_ctx_seq = max(n_ctx_seq, given)
    n_ctx = n_ctx_seq if needed.unified else n_ctx_seq * slots
    return replace(needed, n_ctx=n_ctx, n_ctx_seq=n_ctx_seq, slots=slots)
