"""Small models for the tests of vLLM, and what its engine answers for them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from kvplan.plan import PlanRequest, make_plan
from kvplan.plan.resolve import resolve
from kvplan.specs.load import load_device
from kvplan.specs.model import ModelSpec, Params

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

from synthetic import attention, latent, make, state
from synthetic import nothing as nothing

GIB = 2**30
DENSE = make(4, attention("rest", 8, 128, q_heads=32))
MAMBA = {"type": "mamba2", "heads": 128, "head_dim": 64, "d_state": 128, "n_groups": 8, "conv_kernel": 4}
GDN = {"type": "gated_deltanet", "k_heads": 16, "v_heads": 32, "k_dim": 128, "v_dim": 128, "conv_kernel": 4}


def windowed(full: int = 1, sliding: int = 2, window: int = 128, head_dim: int = 128, **more: Any) -> ModelSpec:
    """Sliding layers first, then full ones: 8 heads."""
    return make(
        full + sliding,
        attention(range(sliding), 8, head_dim, name="sliding", retain={"window": window}),
        attention("rest", 8, head_dim, name="full"),
        **more,
    )


def chunked() -> ModelSpec:
    """One chunked layer of 8,192 tokens and a full one."""
    return make(2, attention([0], 8, 128, name="chunked", retain={"chunk": 8192}), attention([1], 8, 128, name="full"))


def sparse(layers: int = 2, **more: Any) -> ModelSpec:
    """Layers of DeepSeek-V3.2."""
    index = latent(range(layers), 128, 0, name="index", role="index", overlay=True)
    return make(layers, latent("rest", 512, 64), index, **more)


def hybrid(dims: dict[str, Any] = GDN, attn: int = 1, states: int = 3, heads: int = 2, **more: Any) -> ModelSpec:
    """State layers first, then attention with heads of 256 channels."""
    return make(attn + states, state(range(states), dims), attention("rest", heads, 256, name="full"), **more)


def ranks(spec: ModelSpec, *options: str, gpu: str | None = None, **request: Any) -> list[Any]:
    """The engine's cache of a rank of every stage."""
    device = load_device(gpu) if gpu else None
    asked = PlanRequest(model="x", engine="vllm", engine_options=options, beyond_max=True, **request)
    return [rank.cache for rank in resolve(asked, spec, device).ranks]


def cache(spec: ModelSpec, *options: str, **request: Any) -> Any:
    """The engine's cache of the first stage."""
    return ranks(spec, *options, **request)[0]


def shown(spec: ModelSpec, *options: str, context: int = 4096, pool: int | None = None, **request: Any) -> dict:
    return {f.name: f.value for f in cache(spec, *options, context=context, **request).figures(context, pool)}


def kv(spec: ModelSpec, *options: str, gpu: str | None = None, **request: Any) -> Any:
    """The byte figures of a plan; they add up, and stay so in every group."""
    asked = PlanRequest(model="x", engine="vllm", engine_options=options, beyond_max=True, **request)
    sized = spec.model_copy(update={"params": Params(total=10**9)})
    plan = make_plan(asked, sized, load_device(gpu) if gpu else None)
    for f in (plan.kv, *plan.kv.by_group):
        assert f.logical_bytes + f.reserved_bytes + f.padding_bytes - f.engine_saves_bytes == f.allocated_bytes
        assert f.padding_bytes >= 0
    return plan.kv
