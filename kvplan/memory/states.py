"""Elements of recurrent and convolution states, per layer and rank.

Formulas: vLLM's MambaStateShapeCalculator, as listed in the facts. Convolutions keep kernel - 1 rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvplan.specs.states import State


def state_elements(state: State, tp: int) -> tuple[int, int]:
    """(recurrent, convolution) elements of one layer and sequence on one of `tp` ranks, which must divide."""
    if state.type == "mamba1":
        inner = state.inner // tp
        return inner * state.d_state, inner * (state.conv_kernel - 1)
    if state.type == "mamba2":
        inner = state.heads // tp * state.head_dim
        groups = _groups_per_rank(state.n_groups, tp)
        return inner * state.d_state, (inner + 2 * groups * state.d_state) * (state.conv_kernel - 1)
    if state.type == "gated_deltanet":
        values = state.v_heads // tp * state.v_dim
        keys = state.k_heads // tp * state.k_dim
        return values * state.k_dim, (2 * keys + values) * (state.conv_kernel - 1)
    if state.type == "kda":
        inner = state.heads // tp * state.head_dim
        return inner * state.head_dim, 3 * inner * (state.conv_kernel - 1)
    if state.type == "lightning":
        return state.heads // tp * state.head_dim * state.head_dim, 0
    if state.type == "short_conv":
        return 0, state.dim // tp * (state.conv_kernel - 1)
    if state.type == "rwkv7":
        # The token shift mixes the whole hidden vector, so every rank keeps both of its rows.
        return state.hidden // tp * state.head_dim, 2 * state.hidden
    if state.type == "rwkv4":
        return 3 * (state.attention // tp), 2 * state.hidden
    if state.type == "cca":
        return state.values // tp, state.channels // tp * (state.conv_kernel - 1)
    width = state.width // tp
    return width, width * (state.conv_kernel - 1)


def split_obstacle(state: State, tp: int) -> str | None:
    """Why `tp` ranks cannot share this state, or None: its own heads (or channels) must divide."""
    for what, count in _shared_out(state):
        if count % tp:
            return f"its {count} {what} do not divide by {tp}"
    return None


def _shared_out(state: State) -> tuple[tuple[str, int], ...]:
    if state.type == "gated_deltanet":
        return ("state key heads", state.k_heads), ("state value heads", state.v_heads)
    if state.type == "mamba1":
        return (("inner channels", state.inner),)
    if state.type == "short_conv":
        return (("convolution channels", state.dim),)
    if state.type == "rwkv7":
        return (("state heads", state.hidden // state.head_dim),)
    if state.type == "rwkv4":
        return (("attention channels", state.attention),)
    if state.type == "cca":
        return ("value channels", state.values), ("convolution channels", state.channels)
    if state.type == "rglru":
        return (("recurrence channels", state.width),)
    return (("state heads", state.heads),)


def _groups_per_rank(groups: int, tp: int) -> int:
    """Mamba 2's B and C groups: split, or one copy per rank, or all on every rank when neither divides."""
    if groups % tp == 0:
        return groups // tp
    return 1 if tp % groups == 0 else groups
