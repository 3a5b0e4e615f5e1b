"""The only composer: a request becomes a plan."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from kvplan import __version__
from kvplan.memory.figures import (
    KvFigures,
    constant_tree,
    growth_tree,
    kv_figures,
    logical_tree,
)
from kvplan.memory.groups import CacheFormats
from kvplan.memory.parts import NAMED_DIFFERENCES, parts_tree
from kvplan.memory.scratch import prefix_scratch
from kvplan.plan.answers import Capacity, FixedRequests, Gain, GainRatio, PreallocatedPool
from kvplan.plan.capacity import capacity, check_weights_dtype, fit_at, verdict
from kvplan.plan.draft import with_draft
from kvplan.plan.engine import EngineRank
from kvplan.plan.notes import plan_notes
from kvplan.plan.resolve import Resolved, resolve
from kvplan.plan.result import Plan
from kvplan.plan.types import (
    Breakdown,
    DeviceSummary,
    EngineSummary,
    ModelSummary,
    PlanRequest,
    ShardingSummary,
    StageSummary,
)

if TYPE_CHECKING:
    from kvplan.specs.device import DeviceSpec
    from kvplan.specs.model import ModelSpec

LADDER_START = 1024


def make_plan(request: PlanRequest, spec: ModelSpec | None = None, device: DeviceSpec | None = None) -> Plan:
    """Compute a plan. `spec` and `device` spare reading them again.

    Raises:
        UsageError, InputError: see `resolve`. A request that does not fit is no error.
    """
    return compose(resolve(request, spec, device))


def compose(resolved: Resolved) -> Plan:
    """The plan of a resolved request."""
    request = resolved.request
    lengths = (request.context,) if request.context else ladder_lengths(resolved.spec.max_context)
    figures = tuple(figures_at(resolved, n) for n in lengths)
    kv = figures[0] if request.context else None
    check_weights_dtype(resolved)  # also where no GPU asks for it
    room = capacity(resolved, lengths) if resolved.device else None
    return Plan.of(
        request=request,
        model=model_summary(resolved.spec),
        device=device_summary(resolved.device) if resolved.device else None,
        kv=kv,
        ladder=() if kv else figures,
        breakdown=_breakdown(resolved),
        capacity=room,
        verdict=verdict(resolved, kv, room) if kv and room else None,
        gain=_gain(resolved, kv, room) if kv else None,
        notes=(*resolved.notes, *plan_notes(resolved), *resolved.spec.assumptions),
        versions={"kvplan": __version__},
        sharding=sharding_summary(resolved),
        engine=_engine_summary(resolved, room),
    )


def _engine_summary(resolved: Resolved, room: Capacity | None) -> EngineSummary | None:
    chosen, rank = resolved.engine, resolved.ranks[resolved.stage]
    if chosen is None or not isinstance(rank, EngineRank):
        return None
    from kvplan.plan.launch import launch_of

    context = resolved.request.context or resolved.spec.max_context
    return EngineSummary(
        name=chosen.engine.name,
        title=chosen.engine.title,
        version=chosen.version,
        formats=chosen.formats,
        options=chosen.options,
        page_size=resolved.page_size,
        launch=launch_of(resolved),
        figures=rank.cache.figures(context, room.pool_bytes if room and room.pool_bytes > 0 else None),
    )


def ladder_lengths(max_context: int) -> tuple[int, ...]:
    """1024, 2048, ... below the maximum, then the maximum itself."""
    lengths = []
    length = LADDER_START
    while length < max_context:
        lengths.append(length)
        length *= 2
    return (*lengths, max_context)


def figures_at(resolved: Resolved, context: int) -> KvFigures:
    """The byte figures of a resolved request at another length."""
    batch, parts = resolved.request.batch, resolved.parts(context)
    return kv_figures(resolved.groups, resolved.unsharded, resolved.sharding, context, batch, parts=parts)


def model_summary(spec: ModelSpec) -> ModelSummary:
    """The model in a few words."""
    return ModelSummary(
        id=spec.id,
        hf_ids=spec.hf_ids,
        layers=spec.layers,
        max_context=spec.max_context,
        native_dtype=spec.native_dtype,
        params_total=spec.params.total if spec.params else None,
        params_active=spec.params.active if spec.params else None,
        confidence=spec.provenance.confidence if spec.provenance else None,
    )


def device_summary(device: DeviceSpec) -> DeviceSummary:
    """The GPU as plans echo it."""
    return DeviceSummary(
        id=device.id,
        name=device.name,
        memory_bytes=device.memory_bytes,
        memory_nominal=device.memory_nominal,
        bandwidth_bytes_per_second=device.bandwidth_bytes_per_second,
    )


def sharding_summary(resolved: Resolved) -> ShardingSummary:
    """The layout of GPUs, with what every stage holds."""
    sharding, sequences = resolved.sharding, resolved.sequences
    length = resolved.request.context or resolved.spec.max_context
    stages = []
    for index, rank in enumerate(resolved.ranks):
        span = sharding.stage_layers(resolved.spec.layers, index)
        held = rank.held(length, sequences)
        stages.append(StageSummary(stage=index + 1, first_layer=span[0], last_layer=span[-1], held_bytes=held))
    return ShardingSummary(
        gpus=sharding.gpus,
        replicas=sharding.dp,
        sequences=sequences,
        stage=resolved.stage + 1,
        stages=tuple(stages),
    )


def _breakdown(resolved: Resolved) -> Breakdown:
    groups, context, batch = resolved.groups, resolved.request.context, resolved.sequences
    tokens, growth = growth_tree(groups)
    parts = resolved.parts(context) if context else ()
    trees = {kind: parts_tree(parts, kind) if context else None for kind in ("allocated", *NAMED_DIFFERENCES)}
    return Breakdown(
        logical=logical_tree(groups, context, batch) if context else None,
        **trees,
        constant=constant_tree(groups),
        growth=growth,
        growth_tokens=tokens,
        prefix_scratch=prefix_scratch(groups, context) if context and not resolved.engine else None,
    )


def _gain(resolved: Resolved, kv: KvFigures, room: Capacity | None) -> Gain | None:
    """Both gains over the native dtype; None for a model without any cache."""
    request = resolved.request
    if not kv.allocated_bytes:
        return None
    native = CacheFormats.native(resolved.spec)
    ranks = resolved.ranks_with(formats=native)
    # Native formats have no constant scales, so what a rank holds is what its allocator takes.
    before = ranks[resolved.stage].held(kv.context, resolved.sequences)
    ratio = Fraction(before, kv.allocated_bytes)
    pool = None
    if room:
        was = fit_at(with_draft(ranks, resolved.draft), room.pool_bytes, kv.context, resolved.sharding.dp)
        pool = PreallocatedPool(
            pool_bytes=room.pool_bytes,
            requests_before=was.requests,
            requests_after=room.requests or 0,
            tokens_before=was.tokens,
            tokens_after=room.tokens or 0,
        )
    return Gain(
        before_formats={role: native.k.spelling for role in ("k", "v", "latent", "index") if getattr(request, role)},
        fixed_requests=FixedRequests(
            before_bytes=before,
            after_bytes=kv.allocated_bytes,
            ratio=GainRatio(numerator=ratio.numerator, denominator=ratio.denominator, value=float(ratio)),
        ),
        preallocated_pool=pool,
    )
