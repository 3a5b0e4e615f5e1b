"""What is validated: one layer group of a model, and what the plan says about it for each format."""

from __future__ import annotations

from dataclasses import dataclass

from kvplan.errors import UnsupportedError, UsageError
from kvplan.memory.groups import CacheGroup
from kvplan.plan import PlanRequest, compose, resolve
from kvplan.specs.groups import AttentionGroup, LatentGroup
from kvplan.specs.model import ModelSpec
from kvplan.validate.kinds.base import Group
from kvplan.validate.kinds.table import kind_of
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


def choose_group(spec: ModelSpec, name: str | None = None) -> Group:
    """The layer group whose decode step is run: the one named, else the first of `kernel_groups`.

    Raises:
        UnsupportedError: the model has none.
        UsageError: none has this name.
    """
    groups = kernel_groups(spec)
    found = next((g for g in groups if name in (None, g.name)), None)
    if found is None:
        known = ", ".join(g.name for g in groups)
        raise UsageError(f"{spec.id} has no layer group {name!r} that kernels read", f"layer groups: {known}")
    return found


def kernel_groups(spec: ModelSpec) -> tuple[Group, ...]:
    """Layer groups that kernels read: attention, else MLA latents; those that keep all tokens come first.

    Raises:
        UnsupportedError: the model has neither.
    """
    groups = [g for g in spec.layer_groups if isinstance(g, AttentionGroup)]
    latents = [g for g in spec.layer_groups if isinstance(g, LatentGroup) and _plain(g)]
    if not groups and not latents:
        raise UnsupportedError(
            f"{spec.id} has no K and V and no latent of every token, and kvplan has no kernel for what else it caches",
            "validate a model with attention or MLA layers, such as llama-3.1-8b or deepseek-v3",
        )
    return tuple(sorted(groups or latents, key=lambda g: g.retain.law != "all"))


def _plain(group: LatentGroup) -> bool:
    """Whether it is what MLA kernels read: a row of every token, in the cache's format."""
    kept = group.retain.law == "all" and group.stride == 1
    return kept and group.role == "kv" and group.dtype is None


def geometry(group: Group, context: int, batch: int) -> Geometry:
    """Shape of the decode step of one layer."""
    return kind_of(group).geometry(group, context, batch)


def planned(
    spec: ModelSpec, fmt: str, context: int, batch: int, page_size: int | None, group: Group | None = None
) -> Planned:
    """Ask the planner for one format: of K and V alike, of each (`K / V`), or of the latent."""
    k, apart, v = fmt.partition(" / ")
    formats = {"k": k, "v": v} if apart else {kind_of(group or choose_group(spec)).option: fmt}
    asked = {"model": spec.id, "context": context, "batch": batch, "page_size": page_size} | formats
    resolved = resolve(PlanRequest.model_validate(asked), spec)
    plan = compose(resolved)
    assert plan.kv is not None and plan.gain is not None and resolved.page_size is not None
    return Planned(
        held_bytes=plan.kv.allocated_bytes + plan.kv.constant_bytes,
        native_bytes=plan.gain.fixed_requests.before_bytes,
        page_size=resolved.page_size,
        groups=resolved.groups,
    )
