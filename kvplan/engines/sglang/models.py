"""Which models SGLang treats apart: two pools, sparse attention, state strategies.

Source: SGLang 0.5.23, srt/configs/model_config.py and srt/arg_groups/overrides.py, read. SGLang asks for the
architecture class; here stands the `model_type` of the same models, lower case without `_ - .`, as the start of a name,
because text and multimodal parts of one model share it.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from kvplan.errors import UnsupportedError

if TYPE_CHECKING:
    from kvplan.specs.model import ModelSpec

CONFIG = "SGLang 0.5.23, srt/configs/model_config.py:2651-2696"

TWO_POOLS = (
    "llama4", "deepseekv4", "gptoss", "graniteswa", "granitemoeswa", "iquestq1", "mimov2", "step3p5", "step3p7",
    "gemma4", "embeddinggemma2", "diffusiongemma", "laguna", "mellum", "museglimmer", "inkling", "unlimitedocr", "beam",
)  # fmt: skip
"""Models whose windowed layers have a pool of their own (is_hybrid_swa_model); no other model has one."""
EXTRA_BUFFER = (
    "kimilinear", "kimik3", "qwen35", "qwen3next", "qwen4exp", "interns2preview", "minicpmv46", "minicpmv47",
    "bailing", "falconh1", "granitemoehybrid", "glm5next", "nemotronh", "inkling",
)  # fmt: skip
"""Models whose states can be tracked in extra slots (_MAMBA_EXTRA_BUFFER_ARCHS)."""
STATES = ("mamba1", "mamba2", "gated_deltanet", "kda", "lightning", "short_conv")
"""Kinds of state that SGLang has pools for (srt/configs/mamba_utils.py)."""


def normal(model_type: str | None) -> str:
    """`mimo_v2`, `gpt-oss` -> `mimov2`, `gptoss`; nothing for None."""
    return "".join(c for c in (model_type or "").lower() if c not in "_-.")


def is_one_of(spec: ModelSpec, names: tuple[str, ...]) -> bool:
    """Whether the model's type starts with one of the names."""
    return normal(spec.model_type).startswith(names)


def has_index(spec: ModelSpec) -> bool:
    """Whether a latent is read through an index (DeepSeek sparse attention, "DSA" in SGLang)."""
    kinds = {group.role for group in spec.layer_groups if group.kind == "latent"}
    return {"kv", "index"} <= kinds


def is_latent(spec: ModelSpec) -> bool:
    """Whether rows are latents (MLA)."""
    return any(group.kind == "latent" and group.role == "kv" for group in spec.layer_groups)


def has_windows(spec: ModelSpec) -> bool:
    """Whether some attention layers read only a window or a chunk."""
    return any(group.kind == "attention" and group.retain.law in ("window", "chunk") for group in spec.layer_groups)


def has_states(spec: ModelSpec) -> bool:
    """Whether some layers have a state."""
    return any(group.kind == "state" for group in spec.layer_groups)


def two_pools(spec: ModelSpec) -> bool:
    """Whether the model's windowed layers get a pool of their own; a chunk tells of Llama 4 where no type is known."""
    if not has_windows(spec):
        return False
    if spec.model_type is not None:
        return is_one_of(spec, TWO_POOLS)
    return any(group.kind == "attention" and group.retain.law == "chunk" for group in spec.layer_groups)


def extra_buffer(spec: ModelSpec) -> bool:
    """Whether states can be tracked in extra slots; where no type is known, the kinds of state that most have it."""
    if spec.model_type is not None:
        return is_one_of(spec, EXTRA_BUFFER)
    return any(g.kind == "state" and g.state.type in ("mamba2", "gated_deltanet", "kda") for g in spec.layer_groups)


def reading_layers(spec: ModelSpec, span: range) -> tuple[int, int]:
    """Layers of a stage that read another layer's rows, but have a place in (full pool, window pool) all the same.

    SGLang counts layers by `layer_types`, which covers them. A spec does not say the type of each; they continue the
    pattern of the full layers before them.

    Raises:
        UnsupportedError: the full layers have no pattern.
    """
    readers = [i for g in spec.layer_groups if g.kind == "none" and g.reads for i in spec.positions(g) if i in span]
    if not readers:
        return 0, 0
    full = sorted(
        i
        for g in spec.layer_groups
        if g.kind == "attention" and g.retain.law == "all" and not g.overlay
        for i in spec.positions(g)
    )
    steps = {b - a for a, b in pairwise(full)}
    if len(steps) != 1:
        raise UnsupportedError(
            f"{spec.id} has layers that read other layers' rows, and kvplan cannot tell which of them are windowed",
            "plan without --engine",
        )
    (step,) = steps
    continued = sum((i - full[0]) % step == 0 for i in readers)
    return continued, len(readers) - continued
