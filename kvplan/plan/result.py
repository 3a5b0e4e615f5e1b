"""The plan: written as one JSON object, read back only if every number follows from its factors."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from fractions import Fraction
from typing import Any, Self

from pydantic import BaseModel, ValidationError

from kvplan.breakdown import Node, Product, Sum, to_dict
from kvplan.errors import InputError
from kvplan.memory.figures import SUMMED, Figures, GroupFigures, KvFigures
from kvplan.memory.parts import NAMED_DIFFERENCES
from kvplan.memory.terms import LOGICAL_KINDS
from kvplan.plan.answers import Capacity
from kvplan.plan.capacity import usable_bytes
from kvplan.plan.types import PlanFields
from kvplan.units import cdiv

_HINT = "write the plan again with kvplan estimate --json"


class Plan(PlanFields):
    """One result object: the echo of the request, byte figures with their breakdown, capacity, verdict and gains."""

    @classmethod
    def of(cls, **parts: Any) -> Self:
        """A plan of parts computed here; building pydantic's checks would take longer than the plan."""
        return cls.model_construct(**parts)

    def to_dict(self) -> dict[str, Any]:
        """The JSON object, as built-in types."""
        return {f.alias or name: plain(getattr(self, name)) for name, f in type(self).model_fields.items()}

    def to_json(self) -> str:
        """One JSON object, indented, ASCII."""
        return json.dumps(self.to_dict(), indent=2)

    @classmethod
    def load(cls, stored: str | bytes | dict[str, Any]) -> Self:
        """Read a dumped plan.

        Raises:
            InputError: not a plan, or a number in it does not follow from its factors or parts.
        """
        try:
            # Checked as JSON: strict about numbers, lenient about tuples and nested objects.
            plan = cls.model_validate_json(json.dumps(stored) if isinstance(stored, dict) else stored)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "the plan"
            raise InputError(f"not a plan of this version: {where}: {first['msg']}", _HINT) from None
        except (ValueError, RecursionError) as error:
            raise InputError(f"not a plan: {error}", _HINT) from None
        _check(plan)
        return plan


def plain(value: Any) -> Any:
    """A part of a plan as built-in types, for JSON."""
    if isinstance(value, Product | Sum):
        return to_dict(value)
    if isinstance(value, BaseModel):
        return {name: plain(getattr(value, name)) for name in type(value).model_fields}
    if is_dataclass(value):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    return [plain(item) for item in value] if isinstance(value, tuple) else value


def _check(plan: PlanFields) -> None:
    """Refuse figures that are not the sums of their parts or differ from the breakdown."""
    for figures in (*plan.ladder, *([plan.kv] if plan.kv else [])):
        _check_figures(figures)
    trees = plan.breakdown
    if (plan.kv is None) != (trees.logical is None) or (plan.kv is None) != (trees.allocated is None):
        raise InputError("the plan's kv figures and its breakdown do not belong together", _HINT)
    shown = plan.kv or plan.ladder[0] if plan.kv or plan.ladder else None
    if shown is None:
        raise InputError("the plan has neither kv figures nor a ladder", _HINT)
    if plan.kv and trees.logical and trees.allocated:
        # Plans of earlier releases have no trees of the differences.
        found = {kind: getattr(trees, kind) for kind in NAMED_DIFFERENCES}
        differences = {kind: tree for kind, tree in found.items() if tree is not None}
        for group in plan.kv.by_group:
            _check_group(group, trees.logical, trees.allocated, differences)
        _same("kv.logical_bytes", plan.kv.logical_bytes, trees.logical.nbytes)
        _same("kv.allocated_bytes", plan.kv.allocated_bytes, trees.allocated.nbytes)
    _check_sharding(plan)
    _check_capacity(plan)
    _same("kv.constant_bytes", shown.constant_bytes, trees.constant.nbytes)
    slope = shown.bytes_per_token
    _same("kv.bytes_per_token", slope.numerator * trees.growth_tokens, trees.growth.nbytes * slope.denominator)


def _check_figures(kv: KvFigures) -> None:
    for figures in (kv, *kv.by_group):
        _check_identities(figures)
    for name in SUMMED:
        _same(f"kv.{name}", getattr(kv, name), sum(getattr(g, name) for g in kv.by_group))
    ratios = [g.bytes_per_token for g in (kv, *kv.by_group)]
    if any(r.denominator < 1 for r in ratios):
        raise InputError("bytes_per_token has no positive denominator", _HINT)
    whole, *parts = (Fraction(r.numerator, r.denominator) for r in ratios)
    _same("kv.bytes_per_token", whole, sum(parts, Fraction(0)))


def _check_identities(f: Figures) -> None:
    logical = f.payload_bytes + f.metadata_bytes + f.residual_bytes + f.state_bytes
    _same("logical_bytes", f.logical_bytes, logical)
    _same("padding_bytes", f.padding_bytes, f.allocated_bytes - f.reserved_bytes - logical + f.engine_saves_bytes)


def _check_group(group: GroupFigures, logical: Node, allocated: Node, differences: dict[str, Node]) -> None:
    kinds = logical.child(group.name) if isinstance(logical, Sum) else None
    for kind in LOGICAL_KINDS:
        node = kinds.child(kind) if isinstance(kinds, Sum) else None
        _same(f"{group.name}.{kind}_bytes", getattr(group, f"{kind}_bytes"), node.nbytes if node else 0)
    taken = allocated.child(group.name) if isinstance(allocated, Sum) else None
    _same(f"{group.name}.allocated_bytes", group.allocated_bytes, taken.nbytes if taken else 0)
    for kind, tree in differences.items():
        node = tree.child(group.name) if isinstance(tree, Sum) else None
        named = node.nbytes if node else 0
        stated = {"reserved": group.reserved_bytes, "saves": group.engine_saves_bytes}.get(kind)
        if stated is not None:
            _same(f"{group.name}.{kind}", stated, named)
        elif named > group.padding_bytes:
            raise InputError(f"the plan names more padding of {group.name} than it has", _HINT)


def _check_sharding(plan: PlanFields) -> None:
    """The stage that is shown holds what the figures say, and no other holds more."""
    ranks, kv, batch = plan.sharding, plan.kv, plan.request.batch
    if ranks is None:
        return
    _same("sharding.sequences", ranks.sequences, cdiv(batch, max(ranks.replicas, 1)))
    held = [s.held_bytes for s in ranks.stages if s.stage == ranks.stage]
    if kv:
        _same("sharding.stages.held_bytes", sum(held), kv.allocated_bytes + kv.constant_bytes)
    _same("sharding.stage", max((s.held_bytes for s in ranks.stages), default=-1), sum(held))


def _check_capacity(plan: PlanFields) -> None:
    room, gain = plan.capacity, plan.gain
    if room:
        share = Fraction(str(room.util))
        _same("capacity.usable_bytes", room.usable_bytes, usable_bytes(room.memory_bytes, share))
        _check_pool(plan, room, share)
    if gain and plan.kv:
        fixed = gain.fixed_requests
        _same("gain.fixed_requests.after_bytes", fixed.after_bytes, plan.kv.allocated_bytes)
        _same(
            "gain.fixed_requests.ratio",
            fixed.ratio.numerator * fixed.after_bytes,
            fixed.ratio.denominator * fixed.before_bytes,
        )


def _check_pool(plan: PlanFields, room: Capacity, share: Fraction) -> None:
    """The pool is what is left beside the weights, or what the engine's rule makes of the needs."""
    if room.budget is None or plan.engine is None:
        loaded = room.weights.nbytes + (room.draft.weights.nbytes if room.draft else 0)
        _same("capacity.pool_bytes", room.pool_bytes, room.usable_bytes - loaded)
        return
    from kvplan.engines import load_engine
    from kvplan.plan.budget import pool_range

    engine, budget = plan.engine, room.budget
    rule = load_engine(engine.name).pool
    low, high = pool_range(
        rule, budget.needs, room.memory_bytes, share, budget.vocab_size, engine.version, engine.options
    )
    _same("capacity.pool_bytes", room.pool_bytes, low)
    _same("capacity.budget.pool_low_bytes", budget.pool_low_bytes, low)
    _same("capacity.budget.pool_high_bytes", budget.pool_high_bytes, high)


def _same(name: str, stored: int | Fraction, computed: int | Fraction) -> None:
    if stored != computed:
        raise InputError(f"the plan says {name} = {stored}, its parts give {computed}", _HINT)
