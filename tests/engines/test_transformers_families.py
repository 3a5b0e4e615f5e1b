"""Every model type that kvplan imports has rules in transformers, or is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvplan.errors import KvplanError, UnsupportedError, UsageError
from kvplan.plan import PlanRequest, make_plan
from kvplan.specs.importers.config import import_config
from kvplan.specs.importers.table import FAMILIES, canonical
from kvplan.specs.model import ModelSpec

CONFIGS: dict[str, Any] = {
    name: entry["config"]
    for name, entry in json.loads(
        Path(__file__).resolve().parents[1].joinpath("configs", "families.json").read_text(encoding="utf-8")
    ).items()
}
_SMALL = {
    "hidden_size": 64,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "sliding_window": 16,
}
CONFIGS |= {
    "mellum": {"model_type": "mellum", **_SMALL, "layer_types": ["sliding_attention", "full_attention"]},
    "lara_mini": {"model_type": "lara_mini", **_SMALL, "layer_types": ["sliding_attention", "full_attention"]},
    "zamba": {"model_type": "zamba", **_SMALL, "layers_block_type": ["mamba", "hybrid"], "mamba_d_state": 8},
}
WITHOUT_RULES = {
    # Linear states that nobody has read; rows compressed or pooled otherwise than DeepSeek V4's; no class.
    "bailing_moe_linear", "bailing_hybrid", "bailing_moe_v2_5", "deepseek_v41_text", "glm5_next_text",
    "qwen4_exp_text", "rwkv7",
}  # fmt: skip


def imported(config: dict[str, Any], name: str) -> ModelSpec | None:
    """The spec, or None where another member of a family needs fields that this config does not have."""
    try:
        return import_config(config, name).spec
    except KvplanError:
        return None


def specs() -> dict[str, ModelSpec]:
    """A spec for every model type: of its own config, or of another one of its family under its name."""
    made: dict[str, ModelSpec] = {}
    for name, config in CONFIGS.items():
        spec = imported(config, name)
        if spec and spec.model_type and spec.model_type not in made:
            made[spec.model_type] = spec
    for name, family in FAMILIES.items():
        for other in [m for m in made if FAMILIES[m] is family] if name not in made else ():
            config = next(c for c in CONFIGS.values() if canonical(str(c.get("model_type", ""))) == other)
            spec = imported({**config, "model_type": name}, name)
            if spec:
                made[name] = spec
                break
    return made


SPECS = specs()


def test_every_model_type_has_a_spec_here() -> None:
    assert set(FAMILIES) - set(SPECS) == set()


@pytest.mark.parametrize("options", [(), ("cache_implementation=static",), ("decode_tokens=0",)], ids=str)
def test_every_model_type_has_rules(options: tuple[str, ...]) -> None:
    refused = set()
    for name, spec in SPECS.items():
        before = 0
        for context in (1, 5, 40, 200):
            request = PlanRequest(
                model=spec.id, engine="transformers", context=context, batch=2, engine_options=options, beyond_max=True
            )
            try:
                kv = make_plan(request, spec).kv
            except (UnsupportedError, UsageError) as error:
                refused.add(name)
                assert error.hint
                break
            assert kv is not None and kv.allocated_bytes >= before, name
            before = kv.allocated_bytes
    static = (
        {"deepseek_v4", "minimax", "minimax_m1", "minimax_text_01"}
        if options[:1] == ("cache_implementation=static",)
        else set()
    )
    assert refused == WITHOUT_RULES | static
