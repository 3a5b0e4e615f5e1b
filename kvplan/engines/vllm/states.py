"""Recurrent states in vLLM: what it stores of them, and the attention block that a state must fit into.

Source: vLLM 0.33.0, model_executor/layers/mamba/mamba_utils.py and platforms/interface.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import lcm, prod
from typing import TYPE_CHECKING

from kvplan.engines.vllm.versions import PROJECT
from kvplan.errors import UnsupportedError, UsageError
from kvplan.formats.layout import Layout
from kvplan.formats.states import bind_state
from kvplan.memory.groups import DTYPES
from kvplan.memory.states import state_elements
from kvplan.units import align_up, cdiv

if TYPE_CHECKING:
    from kvplan.specs.states import State

SHAPES = PROJECT + "model_executor/layers/mamba/mamba_utils.py:186-270"
ALIGNMENT = PROJECT + "platforms/interface.py:940-1137"
CHECKPOINTS = PROJECT + "platforms/interface.py:940-1137 (prefill checkpoint alignment)"
FLOAT32_MODELS = ("nemotronh",)
"""Architectures for which vLLM forces float32 recurrent states."""
CHECKPOINT_DTYPE_MODELS = ("qwen35", "qwen35moe", "qwen35text", "qwen35moetext", "qwen4exp")
"""Architectures whose checkpoint says mamba_ssm_dtype: the spec's own dtype."""
FLASHINFER_GDN_CHECKPOINT = 64
STATE_BACKENDS = {
    "mamba1": "MAMBA1_ATTN", "mamba2": "MAMBA2_ATTN", "gated_deltanet": "GDN_ATTN", "kda": "GDN_ATTN",
    "lightning": "LINEAR_ATTN", "short_conv": "SHORT_CONV_ATTN",
}  # fmt: skip
"""Kind of a state to vLLM's backend for it."""


@dataclass(frozen=True, slots=True)
class StateMode:
    """How states are kept.

    Attributes:
        mode: none, align (prefix caching) or all (a state for every block).
        speculative: tokens drafted at once; each needs a state.
        checkpoint: tokens that a checkpoint inside a prefill is aligned to; None: there are none.
    """

    mode: str
    speculative: int = 0
    checkpoint: int | None = None


def normal(model_type: str | None) -> str:
    """A model type for comparing: lower case, letters and digits only."""
    return "".join(c for c in (model_type or "").lower() if c.isalnum())


def raw_state(shapes: Sequence[Sequence[int]], storages: Sequence[str]) -> Layout:
    """The layout of a state given by vLLM's own shapes: convolution first, the recurrent state last."""
    names = ("conv", "recurrent")[-len(shapes) :] if len(shapes) < 3 else tuple(f"state{i}" for i in range(len(shapes)))
    return bind_state(
        {name: (prod(shape), storage) for name, shape, storage in zip(names, shapes, storages, strict=True)}
    )


def state_layout(state: State, tp: int, recurrent: str, conv: str, speculative: int = 0) -> Layout:
    """What one rank stores of one layer's state.

    Convolutions keep one more row for each speculative token. Groups of Mamba 2 that `tp` does not divide are extended
    to one per rank.
    """
    update: dict[str, int] = {}
    if speculative and state.type in ("mamba2", "gated_deltanet", "kda"):
        update["conv_kernel"] = state.conv_kernel + speculative
    if state.type == "mamba2" and state.n_groups % tp:
        update["n_groups"] = tp
    elements, rows = state_elements(state.model_copy(update=update), tp)
    return bind_state({"recurrent": (elements, recurrent), "conv": (rows, conv)})


def state_storages(
    state: State, spec_dtype: str, native: str, model_type: str | None, cache: str, ssm: str
) -> tuple[str, str]:
    """(recurrent, convolution) storages: the model's dtype unless an option or the architecture says otherwise.

    Args:
        spec_dtype: of the recurrent state as the model's spec says it.
        cache, ssm: mamba_cache_dtype and mamba_ssm_cache_dtype; `auto` or a dtype's name.

    Source: mamba_utils.py; models/config.py for NemotronH and Qwen3.5.
    """
    conv = native if cache == "auto" else DTYPES[cache]
    if state.type == "kda":
        return "fp32", conv
    if ssm != "auto":
        return DTYPES[ssm], conv
    if normal(model_type) in FLOAT32_MODELS:
        return "fp32", conv
    if normal(model_type) in CHECKPOINT_DTYPE_MODELS:
        return (native if spec_dtype == "model" else DTYPES[spec_dtype]), conv
    return conv, conv


def checkpoint_alignment(kinds: frozenset[str], gdn_backend: str) -> int | None:
    """Tokens that a checkpoint inside a prefill is aligned to, or None where the layers make none.

    Only Mamba 2 (1 token) and FlashInfer's GDN (64) are known to make them.
    """
    known = {"mamba2": 1, "gated_deltanet": FLASHINFER_GDN_CHECKPOINT if gdn_backend == "flashinfer" else None}
    found = {known.get(kind) for kind in kinds}
    return None if None in found else lcm(*(a for a in found if a is not None)) if found else None


def aligned_block(
    state_bytes: int, token_bytes: int, unit: int, mode: StateMode, *, kernel_blocks: Sequence[int] = (), chunk: int = 0
) -> int:
    """Tokens of an attention block whose page holds a state.

    Args:
        state_bytes: of one layer's state.
        token_bytes: of attention for one token and layer.
        unit: least block: the kernel's or the one asked for, for MLA 128 at least.
        kernel_blocks: block sizes of the backends; the block is a multiple of each.
        chunk: tokens that mode `all` aligns states to.
    """
    if mode.mode == "all":
        if not chunk:
            raise UsageError(
                "mamba_cache_mode all aligns blocks to the model's chunk size, which kvplan does not know",
                "give it with --engine-option mamba_block_size=N",
            )
        unit = lcm(unit, chunk)
    elif mode.mode == "align" and mode.checkpoint:
        unit = lcm(unit, mode.checkpoint)
    block = unit * cdiv(state_bytes, unit * token_bytes)
    return align_up(block, lcm(*kernel_blocks)) if kernel_blocks else block


def state_blocks(mode: StateMode) -> int:
    """Blocks of a state per request; 0 in mode `all`, where they grow with the tokens (MambaSpec, :1094)."""
    if mode.mode == "all":
        return 0
    if mode.mode == "align":
        return 2 + mode.speculative + (0 if mode.checkpoint is None else 1)
    return 1 + mode.speculative


def check_state(state: State) -> None:
    """Refuse states that vLLM does not have.

    Raises:
        UnsupportedError: kvplan has no rule for it in vLLM.
    """
    if state.type not in STATE_BACKENDS:
        raise UnsupportedError(f"kvplan has no rule for {state.type} states in vLLM", "plan without --engine")
