"""States of recurrent layers in transformers: shapes and number types that differ from the mathematics' own."""

from __future__ import annotations

from kvplan.engines.shared.types import Case
from kvplan.engines.transformers.stored import SOURCE
from kvplan.errors import UnsupportedError
from kvplan.formats.layout import Layout
from kvplan.formats.states import bind_state
from kvplan.memory.groups import DTYPES, CacheGroup
from kvplan.memory.states import state_elements
from kvplan.specs.states import State

STATES_SOURCE = SOURCE + ": LinearAttentionLayer; states measured with tiny models of 5.24.0"
WHOLE_KERNEL = ("mamba1", "mamba2", "gated_deltanet", "kda", "short_conv")
"""State types whose convolution keeps as many columns as its kernel, one more than the next step reads."""
FLOAT32 = ("mamba1", "mamba2", "gated_deltanet", "kda", "rglru", "rwkv4")
"""State types whose recurrent state is float32 whatever the model's dtype."""
MODEL_DTYPE = ("cca",)
"""State types whose recurrent state has the model's dtype."""
OUTSIDE = ("rglru", "lightning")
"""State types that are held outside the cache's layers: on the modules, or in MiniMaxCache.linear_cache."""
RWKV_SHIFTS = ("attention_shift", "feed_forward_shift")
RWKV_VECTORS = ("numerator", "denominator", "maximum")
"""RWKV-4's five states, in the order of its list."""
LIGHTNING = ("minimax", "minimaxm1", "minimaxtext01")
"""Model types whose linear state is known: in the model's dtype, in MiniMaxCache.linear_cache."""


def state_of(case: Case, group: CacheGroup) -> State:
    """The state that a cache group holds."""
    part = case.spec.group(group.name.removeprefix("mtp-").split("[")[0])
    assert part.kind == "state", part
    return part.state


def plain_type(case: Case) -> str:
    """The model type without separators, lower case; empty if unknown."""
    return (case.spec.model_type or "").lower().replace("_", "").replace("-", "").replace(".", "")


def state_layout(case: Case, group: CacheGroup) -> Layout:
    """One layer's states as transformers stores them.

    Raises:
        UnsupportedError: a type of state that kvplan has not read in transformers.
    """
    state, native = state_of(case, group), DTYPES[case.spec.native_dtype]
    kind = state.type
    known = kind in FLOAT32 + MODEL_DTYPE or kind == "short_conv"
    if not known and not (kind == "lightning" and plain_type(case) in LIGHTNING):
        raise UnsupportedError(
            f"kvplan has no rule for {kind} states of {case.spec.model_type or case.spec.id} in transformers",
            "plan without --engine",
        )
    recurrent, conv = state_elements(state, case.sharding.attention_tp)
    if kind == "rwkv4":
        shift = dict.fromkeys(RWKV_SHIFTS, (conv // len(RWKV_SHIFTS), native))
        return bind_state(shift | dict.fromkeys(RWKV_VECTORS, (recurrent // len(RWKV_VECTORS), "fp32")))
    if kind in WHOLE_KERNEL:
        # state_elements counts kernel - 1 columns: asked for one more, it counts the kernel's.
        wider = state.model_copy(update={"conv_kernel": state.conv_kernel + 1})  # type: ignore[union-attr]
        conv = state_elements(wider, case.sharding.attention_tp)[1]
    return bind_state({"recurrent": (recurrent, "fp32" if kind in FLOAT32 else native), "conv": (conv, native)})
