"""Small models for the tests of SGLang, and what its engine answers for them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from kvplan.plan import PlanRequest, make_plan
from kvplan.plan.resolve import resolve
from kvplan.specs.model import ModelSpec

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

from synthetic import attention, latent, make, nothing, state

GIB = 2**30
DENSE = make(2, attention("rest", 8, 128, q_heads=32))
MAMBA = {"type": "mamba2", "heads": 128, "head_dim": 64, "d_state": 128, "n_groups": 8, "conv_kernel": 4}


def windowed(model_type: str | None, window: int = 128) -> ModelSpec:
    """Two full layers and two windowed ones: 8 heads of 64."""
    return make(
        4, attention([1, 3], 8, 64, name="full"), attention([0, 2], 8, 64, name="swa", retain={"window": window}),
        model_type=model_type,
    )  # fmt: skip


def sparse(**more: Any) -> ModelSpec:
    """Two layers of DeepSeek-V3.2."""
    return make(2, latent("rest", 512, 64), latent([0, 1], 128, 0, name="index", role="index", overlay=True), **more)


def hybrid(model_type: str | None = "nemotron_h", recurrent: str = "float32", native: str = "bf16") -> ModelSpec:
    """One attention layer of 8 heads of 128, two Mamba 2 layers, one without a cache."""
    return make(
        4, attention([0], 8, 128), state([1, 2], MAMBA, recurrent=recurrent), nothing([3]), model_type=model_type,
        native=native,
    )  # fmt: skip


def cache(spec: ModelSpec, *options: str, **request: Any) -> Any:
    """The engine's cache of rank 0."""
    return resolve(PlanRequest(model="x", engine="sglang", engine_options=options, **request), spec).ranks[0].cache


def shown(spec: ModelSpec, *options: str, context: int = 4096, pool: int | None = None, **request: Any) -> dict:
    return {f.name: f.value for f in cache(spec, *options, **request).figures(context, pool)}


def kv(spec: ModelSpec, *options: str, **request: Any) -> Any:
    """The byte figures of a plan; they add up, and stay so in every group."""
    plan = make_plan(PlanRequest(model="x", engine="sglang", engine_options=options, **request), spec)
    for f in (plan.kv, *plan.kv.by_group):
        assert f.logical_bytes + f.reserved_bytes + f.padding_bytes - f.engine_saves_bytes == f.allocated_bytes
    return plan.kv
