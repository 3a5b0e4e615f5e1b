"""What SGLang makes of the bytes left after the weights: tokens, window-pool tokens, state slots.

Source: SGLang 0.5.23, srt/model_executor/pool_configurator.py:641-1000 and
srt/mem_cache/kv_cache_configurator.py:3229-3410, read. Where SGLang computes in floats, so does this.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvplan.engines.sglang.pools import Pools
from kvplan.units import GIB


@dataclass(frozen=True)
class Sizes:
    """Pools for a budget: tokens of the full pool (and of the window pool), state slots."""

    tokens: int
    swa: int | None
    slots: int | None
    row_budget: int


def sizes_for(pools: Pools, budget: int, ratio: float, most_tokens: int | None, otherwise: int) -> Sizes:
    """What SGLang allocates with `budget` bytes after the weights.

    Args:
        ratio: mamba_full_memory_ratio.
        most_tokens: max_total_tokens.
        otherwise: tokens where a model has no rows.
    """
    slots, rows = _state_split(pools, budget, ratio)
    page, cell = pools.settings.page_size, pools.cell
    if not pools.of("full", "swa"):
        return Sizes((most_tokens or otherwise) // page * page, None, slots, rows)
    cap = pools.settings.swa_cap
    left = rows - cap * pools.swa_cell if cap is not None and pools.of("swa") else rows
    tokens = int(max(left, 0) // cell)
    if most_tokens is not None:
        tokens = min(tokens, most_tokens)
    tokens = tokens // page * page
    if not pools.of("swa"):
        return Sizes(tokens, None, slots, rows)
    return Sizes(tokens, pools.swa_tokens(tokens) if pools.of("full") else tokens, slots, rows)


def _state_split(pools: Pools, budget: int, ratio: float) -> tuple[int | None, int]:
    """(state slots, bytes left for rows). In GiB and floats, as the engine has it (_handle_max_mamba_cache)."""
    per_slot = pools.slot_bytes
    if not per_slot:
        return None, budget
    rest = budget / GIB
    slots = pools.settings.least_slots
    if slots is None:
        share = rest * ratio / (1 + ratio)
        slots = int((share * GIB - per_slot) // per_slot)
    return slots, int((rest - (slots + 1) * per_slot / GIB) * GIB)


def why_refused(pools: Pools, sizes: Sizes) -> str | None:
    """Why SGLang does not start with these pools, or None."""
    if sizes.slots is not None and sizes.slots <= 0:
        return "no state slot fits"
    if sizes.tokens <= 0:
        return "no page of tokens fits"
    if pools.of("full") and sizes.swa is not None and sizes.swa < pools.swa_floor():
        return f"the window pool of {sizes.swa:,} tokens must hold {pools.swa_floor():,}: window + page, and more"
    return None
