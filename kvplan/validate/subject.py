"""What is validated: one layer group of a model, and what the plan says about it for each format."""

from __future__ import annotations

from dataclasses import dataclass

from kvplan.errors import UnsupportedError
from kvplan.memory.groups import CacheGroup
from kvplan.plan import PlanRequest, compose, resolve
from kvplan.specs.groups import AttentionGroup
from kvplan.specs.model import ModelSpec
from kvplan.validate.tensors import Geometry


@dataclass(frozen=True)
class Planned:
    """The plan's figures for one format: bytes of all layers, allocated and constant, and the groups with layouts."""

    held_bytes: int
    native_bytes: int
    page_size: int
    groups: tuple[CacheGroup, ...]

    def group(self, name: str) -> CacheGroup:
        return next(g for g in self.groups if g.name == name)


def choose_group(spec: ModelSpec) -> AttentionGroup:
    """The attention group whose decode step is run: the one that keeps all tokens, else the first.

    Raises:
        UnsupportedError: the model has no K and V.
    """
    groups = [g for g in spec.layer_groups if isinstance(g, AttentionGroup)]
    if not groups:
        raise UnsupportedError(
            f"{spec.id} has no K and V cache, and kvplan has no kernel for latents or states yet",
            "validate a model with attention layers, such as llama-3.1-8b",
        )
    return next((g for g in groups if g.retain.law == "all"), groups[0])


def geometry(group: AttentionGroup, context: int, batch: int) -> Geometry:
    """Shape of the decode step of one layer; a windowed group holds at most its window."""
    tokens = min(context, group.retain.rows) if group.retain.rows else context
    return Geometry(batch, tokens, group.q_heads, group.kv_heads, group.k_dim, group.v_dim)


def planned(spec: ModelSpec, fmt: str, context: int, batch: int, page_size: int | None) -> Planned:
    """Ask the planner for one format (K and V alike)."""
    resolved = resolve(PlanRequest(model=spec.id, context=context, batch=batch, kv=fmt, page_size=page_size), spec)
    plan = compose(resolved)
    assert plan.kv is not None and plan.gain is not None and resolved.page_size is not None
    return Planned(
        held_bytes=plan.kv.allocated_bytes + plan.kv.constant_bytes,
        native_bytes=plan.gain.fixed_requests.before_bytes,
        page_size=resolved.page_size,
        groups=resolved.groups,
    )
