"""One layer's cache as vLLM declares it, and the blocks that one request takes of it.

Source: vLLM 0.33.0, v1/kv_cache_interface.py, the classes named below.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvplan.formats.layout import Layout
from kvplan.memory.rows import RowLaw
from kvplan.units import align_up, cdiv

INTERFACE = "vLLM 0.33.0, vllm/v1/kv_cache_interface.py"

FULL, MLA, SLIDING, SLIDING_MLA = "full_attention", "mla_attention", "sliding_window", "sliding_window_mla"
CHUNKED, MAMBA, CROSS, ENCODER = "chunked_local_attention", "mamba", "cross_attention", "encoder_only_attention"
EVERY_TOKEN = (FULL, MLA)


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """One layer's cache.

    Attributes:
        kind: vLLM's name of the spec.
        block_size: tokens of a block, all context-parallel ranks but one left out.
        unpadded: bytes of a block as the layout has them; of a state, its bytes.
        page_bytes: bytes of a block with padding.
        layout: of the layer; tells specs of equal size apart.
        law: rows that attention needs.
        limit: tokens of the window or chunk; encoder tokens of cross-attention.
        states: blocks of a state per request (mode `all`: 0, it grows with the tokens).
        ranks: decode-context-parallel ranks that share the tokens.
        alignment: bytes that the stride between blocks must be a multiple of.
        per_token: states of one token, for models that keep several.
    """

    kind: str
    block_size: int
    unpadded: int
    page_bytes: int
    layout: Layout
    law: RowLaw
    limit: int = 0
    states: int = 1
    ranks: int = 1
    alignment: int = 1
    per_token: int = 1

    @property
    def states_per_block(self) -> int:
        """Rows of a block: `per_token` for each token, or one for every `stride` tokens."""
        return states_per_block(self.block_size, self.law.stride, self.per_token)

    @property
    def head_slots(self) -> int:
        """Records of a state: one per KV head, for nvfp4 one for K and one for V (AttentionSpec, :586-601)."""
        apart = {t.number for t in self.layout.tensors} == {"fp4_e2m1"} and len(self.layout.tensors) > 1
        return self.layout.heads * (2 if apart else 1)

    @property
    def state_content(self) -> int:
        """Bytes of one record of one state."""
        return self.unpadded // (self.head_slots * self.states_per_block)

    @property
    def bytes_per_token(self) -> float:
        """Bytes of one layer for each token of a block."""
        return self.page_bytes / self.block_size

    @property
    def layer_outer_stride(self) -> int:
        """Bytes between two blocks of one layer where layers lie apart."""
        return align_up(self.page_bytes, self.alignment)

    def request_bytes(self, tokens: int, in_flight: int = 0, retained: int = 0) -> int:
        """Bytes of one request's blocks in one layer (`max_memory_usage_bytes`)."""
        return request_blocks(self, tokens, in_flight, retained).total * self.page_bytes


@dataclass(frozen=True, slots=True)
class RequestBlocks:
    """Blocks of one request in one page group.

    Attributes:
        needed: for the rows that attention reads, or for one copy of a state.
        unread: for rows that attention no longer reads, where windows are not made use of.
        reserved: in-flight tokens of windows and chunks, copies of a state, encoder budget.
    """

    needed: int
    unread: int = 0
    reserved: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.needed + self.unread + self.reserved


def layer_spec(
    kind: str, layout: Layout, law: RowLaw, block_size: int, *, limit: int = 0, ranks: int = 1, page_alignment: int = 1,
    stride_alignment: int = 1, per_token: int = 1,
) -> LayerSpec:  # fmt: skip
    """The spec of a layer whose cache grows with tokens; its pages are rounded up to `page_alignment` bytes."""
    states = states_per_block(block_size, law.stride, per_token)
    return LayerSpec(
        kind, block_size, layout.page_bytes(states), page_bytes(layout, states, page_alignment), layout, law,
        limit=limit, ranks=ranks, alignment=stride_alignment, per_token=per_token,
    )  # fmt: skip


def state_spec(layout: Layout, block_size: int, states: int, page: int = 0) -> LayerSpec:
    """The spec of a layer with a state, padded to `page` bytes if that is more."""
    size = layout.fixed_bytes("state")
    return LayerSpec(MAMBA, block_size, size, max(size, page), layout, RowLaw("ring", 1), states=states)


def states_per_block(block_size: int, stride: int = 1, per_token: int = 1) -> int:
    """Rows of a block: `per_token` for each token, or one for every `stride` tokens (FullAttentionSpec.num_states)."""
    return cdiv(block_size, stride) * per_token


def page_bytes(layout: Layout, states: int, alignment: int = 1) -> int:
    """Bytes of a block of `states` rows, rounded up to `alignment` (MLAAttentionSpec.alignment, :719)."""
    return align_up(layout.page_bytes(states), alignment)


def in_flight_tokens(concurrent_batches: int, batched_tokens: int) -> int:
    """Tokens that may be scheduled and not yet settled (config/vllm.py:586-609)."""
    return concurrent_batches * batched_tokens


def total_blocks(
    kind: str, block_size: int, tokens: int, *, limit: int = 0, in_flight: int = 0, retained: int = 0, states: int = 1,
    ranks: int = 1,
) -> int:  # fmt: skip
    """Blocks of a request of `tokens` tokens: `max_memory_usage_bytes` over the page size.

    Args:
        limit: window, chunk, or the encoder tokens.
        in_flight: tokens of `in_flight_tokens`.
        retained: further tokens that speculation with several modules keeps behind a window.
        states: blocks of a state; 0 in mode `all`.
        ranks: decode context parallel; windows and states are not shared by it.
    """
    if kind in (SLIDING, SLIDING_MLA):
        # The window starts anywhere in a block, hence one more (SlidingWindowSpec, :901).
        return cdiv(min(limit - 1 + retained + in_flight, tokens), block_size) + 1
    if kind == CHUNKED:
        return cdiv(min(limit + in_flight, tokens), block_size)
    if kind == MAMBA:
        return states or cdiv(tokens, block_size)
    if kind == CROSS:
        return cdiv(limit, block_size)
    if kind == ENCODER:
        return 0
    return cdiv(cdiv(tokens, ranks), block_size)


def request_blocks(spec: LayerSpec, tokens: int, in_flight: int, retained: int = 0) -> RequestBlocks:
    """Blocks of one request, by what they are for."""
    total = total_blocks(
        spec.kind, spec.block_size, tokens, limit=spec.limit, in_flight=in_flight, retained=retained,
        states=spec.states, ranks=spec.ranks,
    )  # fmt: skip
    if spec.kind == MAMBA:
        return RequestBlocks(1, reserved=total - 1)
    needed = min(cdiv(spec.law.rows(tokens), spec.states_per_block), total)
    rest = total - needed
    return RequestBlocks(needed, unread=rest) if spec.kind in EVERY_TOKEN else RequestBlocks(needed, reserved=rest)


def held_rows(spec: LayerSpec, tokens: int, blocks: RequestBlocks) -> int:
    """Rows of the mathematics that the request's blocks hold on this rank; a state counts as one row."""
    return min(spec.law.rows(tokens), blocks.total * spec.states_per_block)
