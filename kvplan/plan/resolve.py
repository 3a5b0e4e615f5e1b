"""From a request to everything a plan is computed from: spec, device, formats, cache groups, all defaults."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING

from kvplan.errors import UsageError
from kvplan.formats.grammar import parse_kv
from kvplan.memory.curves import Rank, RankCurves, rank_curves
from kvplan.memory.figures import check_page_size, default_page_size
from kvplan.memory.groups import DTYPES, CacheFormats, CacheGroup, cache_groups, roles
from kvplan.memory.parts import Part, own_parts
from kvplan.memory.sharding import Sharding
from kvplan.plan.choose import ROLES, choose
from kvplan.plan.engine import ChosenEngine, EngineRank, engine_ranks, in_engine, native_engine
from kvplan.plan.layer_rules import layer_rules
from kvplan.plan.legal import check_sharding
from kvplan.plan.types import PlanRequest
from kvplan.units import check_count

if TYPE_CHECKING:
    from kvplan.specs.device import DeviceSpec
    from kvplan.specs.model import ModelSpec

DEFAULT_SHARE = Fraction(9, 10)
PUBLISHED = "published"
"""`weights_dtype` for the byte count that the spec itself states."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """A request with all that it names.

    Attributes:
        request: the echo: defaults filled in, formats in canonical spelling.
        formats: the cache configuration.
        stages: the cache of one rank of each pipeline stage.
        stage: index of the stage that holds most at the request's length (without one: at the model's maximum).
        unsharded: the cache of one rank that holds everything.
        ranks: what each of `stages` holds at any length, for searches and sweeps.
        page_size: tokens per page; None in an engine without pages.
        engine: the engine whose allocation is computed; None: kvplan's own.
        share: of the GPU's memory, as asked, as the engine takes it, or 0.9.
        draft: the draft model in the same layout; None without one.
        notes: what the user should know about options that have no effect.
    """

    request: PlanRequest
    spec: ModelSpec
    device: DeviceSpec | None
    formats: CacheFormats
    sharding: Sharding
    stages: tuple[tuple[CacheGroup, ...], ...]
    stage: int
    unsharded: tuple[CacheGroup, ...]
    ranks: tuple[Rank, ...]
    page_size: int | None
    notes: tuple[str, ...]
    engine: ChosenEngine | None = None
    share: Fraction = DEFAULT_SHARE
    draft: Resolved | None = None

    @property
    def groups(self) -> tuple[CacheGroup, ...]:
        """The cache of one rank of the stage that holds most."""
        return self.stages[self.stage]

    @property
    def sequences(self) -> int:
        """Sequences of the fullest replica."""
        return self.sharding.sequences(self.request.batch)

    def parts(self, context: int) -> tuple[Part, ...]:
        """What the allocator takes on the shown rank for the whole batch."""
        rank = self.ranks[self.stage]
        if isinstance(rank, EngineRank):
            return rank.cache.parts(context, self.sequences)
        assert self.page_size is not None
        return own_parts(self.groups, context, self.sequences, self.page_size)

    def ranks_with(self, *, formats: CacheFormats | None = None, sharding: Sharding | None = None) -> tuple[Rank, ...]:
        """What every stage would hold with the native formats, or in another layout of GPUs."""
        formats, sharding = formats or self.formats, sharding or self.sharding
        stages = sharded_groups(self.spec, formats, sharding, self.request.mtp)
        if self.engine is None:
            assert self.page_size is not None
            return stage_curves(stages, self.page_size)
        chosen = self.engine if formats is self.formats else native_engine(self.engine)
        return _engine_ranks(chosen, self.request, self.spec, self.device, stages, sharding, formats)


def resolve(request: PlanRequest, spec: ModelSpec | None = None, device: DeviceSpec | None = None) -> Resolved:
    """Check a request and fill it in.

    Args:
        spec: the model, if the caller has read it already; otherwise `request.model` is looked up.
        device: likewise for `request.gpu`.

    Raises:
        UsageError: an impossible or contradictory value.
        InputError: a spec that cannot be found or read.
    """
    check_count(request.batch, "batch")
    if request.page_size is not None:
        check_count(request.page_size, "page size")
    if request.util is not None and not 0 < request.util <= 1:
        raise UsageError(
            f"util {request.util} is not a share of memory", "give a number above 0 and up to 1, such as 0.9"
        )
    spec = spec or _load_spec(request)
    if request.engine is None and (request.engine_version or request.engine_options):
        raise UsageError("an engine's version or option is given, but no engine", "add --engine; see: kvplan engines")
    device = device or _load_device(request)
    asked_page, chosen = request.page_size, None
    if request.engine:
        request, chosen = in_engine(request, spec, device)
    formats, notes = _formats(request, spec)
    _check_context(request, spec)
    sharding = check_sharding(request, spec)
    notes += _mtp_notes(request, spec)
    stages = sharded_groups(spec, formats, sharding, request.mtp)
    plain = sharding == Sharding()
    unsharded = stages[0] if plain else cache_groups(spec, formats, mtp=request.mtp)
    ranks: tuple[Rank, ...]
    page_size: int | None
    if chosen:
        caches = _engine_ranks(chosen, request, spec, device, stages, sharding, formats)
        ranks, page_size = caches, caches[0].cache.page_size
        notes += tuple(dict.fromkeys(note for rank in caches for note in rank.cache.notes))
    else:
        page_size = default_page_size(unsharded) if asked_page is None else check_page_size(unsharded, asked_page)
        ranks = stage_curves(stages, page_size)
    stage = fullest_stage(ranks, request.context or spec.max_context, sharding.sequences(request.batch))
    echo = _echo(request, spec, formats)
    # An engine may make larger pages than it is asked for, so there the echo repeats what was asked.
    share = _share(request, chosen, device, sharding)
    page = asked_page if chosen else page_size
    update = {**echo, "page_size": page, "dp": sharding.dp, "util": float(share)}
    echoed = request.model_copy(update=update)
    found = Resolved(
        echoed, spec, device, formats, sharding, stages, stage, unsharded, ranks, page_size, notes, chosen, share
    )
    if not request.draft:
        return found
    from kvplan.plan.draft import resolve_draft

    return replace(found, draft=resolve_draft(found))


def _share(
    request: PlanRequest, chosen: ChosenEngine | None, device: DeviceSpec | None, sharding: Sharding
) -> Fraction:
    """The share of memory: exact in the decimal that the user wrote, else the engine's own default."""
    if request.util is not None:
        return Fraction(str(request.util))
    if chosen is None or device is None:
        return DEFAULT_SHARE
    return chosen.engine.pool.default_share(chosen.version, device.memory_bytes, sharding.tp * sharding.pp)


def sharded_groups(
    spec: ModelSpec, formats: CacheFormats, sharding: Sharding, mtp: bool
) -> tuple[tuple[CacheGroup, ...], ...]:
    """The cache of one rank of every pipeline stage."""
    return tuple(cache_groups(spec, formats, sharding, stage=stage, mtp=mtp) for stage in range(sharding.pp))


def stage_curves(stages: tuple[tuple[CacheGroup, ...], ...], page_size: int) -> tuple[RankCurves, ...]:
    """What one rank of every stage holds at any length."""
    return tuple(rank_curves(groups, page_size) for groups in stages)


def _engine_ranks(
    chosen: ChosenEngine,
    request: PlanRequest,
    spec: ModelSpec,
    device: DeviceSpec | None,
    stages: tuple[tuple[CacheGroup, ...], ...],
    sharding: Sharding,
    formats: CacheFormats,
) -> tuple[EngineRank, ...]:
    context, sequences = request.context or spec.max_context, sharding.sequences(request.batch)
    return engine_ranks(chosen, spec, stages, sharding, formats, context, sequences, device, request.mtp)


def fullest_stage(ranks: Sequence[Rank], context: int, sequences: int) -> int:
    """Index of the first stage that holds most."""
    return max(range(len(ranks)), key=lambda s: (ranks[s].held(context, sequences), -s))


def _formats(request: PlanRequest, spec: ModelSpec) -> tuple[CacheFormats, tuple[str, ...]]:
    formats, notes = choose(request, spec)
    if not request.layers:
        return formats, notes
    rules, more = layer_rules(request.layers, spec)
    return replace(formats, rules=rules), notes + more


def _echo(request: PlanRequest, spec: ModelSpec, formats: CacheFormats) -> dict[str, object]:
    """Formats in canonical spelling; None for a tensor that the model does not have."""
    present = roles(spec)
    echo: dict[str, object] = {role: getattr(formats, role).spelling if role in present else None for role in ROLES}
    echo["kv"] = parse_kv(request.kv).spelling if request.kv else None
    echo["layers"] = tuple(rule.spelling for rule in formats.rules)
    echo["weights_dtype"] = weights_dtype(request, spec)
    return echo


def _mtp_notes(request: PlanRequest, spec: ModelSpec) -> tuple[str, ...]:
    if not request.mtp:
        return ()
    if spec.mtp is None:
        return (f"--mtp has no effect: {spec.id} has no multi-token prediction layers.",)
    if not spec.mtp.cache_like:
        raise UsageError(
            f"spec {spec.id} does not say which cache its prediction layers repeat", "add cache_like to its mtp"
        )
    return ()


def _load_spec(request: PlanRequest) -> ModelSpec:
    from kvplan.specs.load import load_model

    return load_model(request.model)


def _load_device(request: PlanRequest) -> DeviceSpec | None:
    memory, bandwidth = request.gpu_memory, request.bandwidth
    if request.gpu and (memory or bandwidth):
        raise UsageError("a GPU name and a GPU memory or bandwidth are both given", "give --gpu, or the two figures")
    if request.gpu:
        from kvplan.specs.load import load_device

        return load_device(request.gpu)
    if memory is None and bandwidth is None:
        return None
    if memory is None or bandwidth is None:
        raise UsageError(
            "a GPU without a name needs its memory and its bandwidth",
            "for example --gpu-memory 24GiB --bandwidth 936GB/s",
        )
    from kvplan.specs.device import adhoc_device

    return adhoc_device(memory, bandwidth)


def _check_context(request: PlanRequest, spec: ModelSpec) -> None:
    if request.context is None:
        return
    check_count(request.context, "context")
    if request.context > spec.max_context and not request.beyond_max:
        raise UsageError(
            f"context {request.context:,} is above the maximum of {spec.id}, {spec.max_context:,}",
            f"use --context {spec.max_context}, or add --beyond-max",
        )


def weights_dtype(request: PlanRequest, spec: ModelSpec) -> str:
    """The number type of the weights: as asked, else the spec's published bytes, else the native dtype."""
    asked = request.weights_dtype
    if asked is None:
        return PUBLISHED if spec.weights else DTYPES[spec.native_dtype]
    if asked == PUBLISHED and spec.weights is None:
        raise UsageError(f"{spec.id} states no published weight bytes", "give a number type such as bf16")
    return asked
