"""Specs from the compiled file without pydantic's checks, whose construction takes longer than a whole plan.

Only for values that the checks have passed already: `tools/compile_specs.py` validates each spec before it writes the
file, and a test compares every constructed spec with the validated one.
"""

from __future__ import annotations

from typing import Any, TypeVar

from kvplan.specs import groups, model, placement, states
from kvplan.specs.base import Spec

S = TypeVar("S", bound=Spec)

_GROUPS: dict[str, type[Spec]] = {
    "attention": groups.AttentionGroup,
    "latent": groups.LatentGroup,
    "state": groups.StateGroup,
    "cross": groups.CrossGroup,
    "none": groups.NoneGroup,
}
_STATES: dict[str, type[Spec]] = {
    "mamba1": states.Mamba1State,
    "mamba2": states.Mamba2State,
    "gated_deltanet": states.GatedDeltaNetState,
    "kda": states.KdaState,
    "lightning": states.LightningState,
    "short_conv": states.ShortConvState,
    "rwkv7": states.Rwkv7State,
    "rwkv4": states.Rwkv4State,
    "cca": states.CcaState,
    "rglru": states.RgLruState,
}
_PARTS: dict[str, type[Spec]] = {
    "params": model.Params,
    "weights": model.Weights,
    "mtp": model.Mtp,
    "provenance": model.Provenance,
    "layers": placement.Every,
    "head_dim": groups.HeadDims,
    "expanded": groups.HeadDims,
    "width": groups.LatentWidths,
    "retain": placement.Retain,
    "dtype": states.StateDtype,
    "encoder_tokens": groups.EncoderTokens,
}


def construct_model(data: dict[str, Any]) -> model.ModelSpec:
    """The spec of checked values, equal to `ModelSpec.model_validate(data)`."""
    return _construct(model.ModelSpec, data)


def _construct(kind: type[S], data: dict[str, Any]) -> S:
    return kind.model_construct(**{key: _value(key, value) for key, value in data.items()})


def _value(key: str, value: Any) -> Any:
    if key == "layer_groups":
        return tuple(_construct(_GROUPS[group["kind"]], group) for group in value)
    if key == "retain" and value == "all":
        return placement.Retain.model_construct()
    if key == "state":
        return _construct(_STATES[value["type"]], value)
    if isinstance(value, dict):
        return _construct(_PARTS[key], value)
    return tuple(value) if isinstance(value, list) else value
