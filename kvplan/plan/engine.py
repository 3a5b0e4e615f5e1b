"""How a plan asks an engine: the request in the engine's terms, and one cache for each pipeline stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kvplan.errors import UsageError
from kvplan.memory.groups import DTYPES, CacheFormats, CacheGroup, roles
from kvplan.memory.sharding import Sharding
from kvplan.memory.terms import constant_terms
from kvplan.plan.types import PlanRequest

if TYPE_CHECKING:
    from kvplan.engines.shared.types import Engine, EngineCache
    from kvplan.specs.device import DeviceSpec
    from kvplan.specs.model import ModelSpec


@dataclass(frozen=True, slots=True)
class ChosenEngine:
    """The engine of a request.

    Attributes:
        options: every option, defaults filled in.
        formats: the engine's own option by tensor role.
    """

    engine: Engine
    version: str
    options: dict[str, Any]
    formats: dict[str, str]


@dataclass(frozen=True, slots=True)
class EngineRank:
    """What one rank holds in an engine, for searches: its cache and the constant scales of its formats."""

    cache: EngineCache
    constant: int

    def held(self, tokens: int, sequences: int) -> int:
        """Allocated and constant bytes of `sequences` sequences."""
        return self.constant + self.cache.held(tokens, sequences)

    def beside(self, tokens: int) -> int | None:
        """Bytes of one more, shorter sequence; None where all slots have one size."""
        return self.cache.beside(tokens)

    def shared_bytes(self, tokens: int) -> int:
        """Bytes of a prefix that requests can share."""
        return self.cache.shared_bytes(tokens)


def in_engine(
    request: PlanRequest, spec: ModelSpec, device: DeviceSpec | None = None
) -> tuple[PlanRequest, ChosenEngine]:
    """The request with every format spelled out as the engine stores it, on that device where it is known.

    Raises:
        UsageError: unknown engine, version, option or format, each with the nearest that exists.
    """
    from kvplan.engines import load_engine
    from kvplan.engines.shared.select import choose_formats, choose_version, read_options

    assert request.engine is not None
    engine = load_engine(request.engine)
    version = choose_version(engine, request.engine_version)
    options = read_options(engine, request.engine_options)
    if request.page_size is not None:
        if engine.page_option is None:
            raise UsageError(f"{engine.title} has no page size to choose", "drop --page-size")
        options[engine.page_option] = request.page_size
    if engine.tailor:
        engine = replace(engine, formats=engine.tailor(spec, version, options, capability_of(device)))
    asked = {role: getattr(request, role) for role in ("kv", "k", "v", "latent", "index")}
    native = DTYPES[spec.native_dtype]
    spelled, chosen, skips = choose_formats(engine, version, asked, roles(spec), native)
    if engine.respell is not None:
        spelled = engine.respell(spelled, chosen, options)
    if request.layers and request.layers != skips:
        raise UsageError(
            f"{engine.title} chooses the formats of single layers itself",
            "drop --layers, or plan without --engine",
        )
    update: dict[str, Any] = {"kv": None, "k": None, "v": None, "latent": None, "index": None} | spelled
    update |= {"layers": skips, "engine_version": version}
    return request.model_copy(update=update), ChosenEngine(engine, version, options, chosen)


def engine_ranks(
    chosen: ChosenEngine,
    spec: ModelSpec,
    stages: tuple[tuple[CacheGroup, ...], ...],
    sharding: Sharding,
    formats: CacheFormats,
    context: int,
    sequences: int,
    device: DeviceSpec | None,
    mtp: bool,
) -> tuple[EngineRank, ...]:
    """One rank of every pipeline stage."""
    from kvplan.engines.shared.types import Case

    made = []
    for stage, groups in enumerate(stages):
        case = Case(
            spec=spec,
            stages=stages,
            stage=stage,
            sharding=sharding,
            formats=formats,
            chosen=chosen.formats,
            version=chosen.version,
            options=chosen.options,
            context=context,
            sequences=sequences,
            capability=capability_of(device),
            memory_bytes=device.memory_bytes if device else None,
            mtp=mtp,
        )
        made.append(EngineRank(chosen.engine.cache(case), _constant(groups)))
    return tuple(made)


def native_engine(chosen: ChosenEngine) -> ChosenEngine:
    """The same engine with its default format for every tensor."""
    default = chosen.engine.formats[0].option
    return ChosenEngine(chosen.engine, chosen.version, chosen.options, dict.fromkeys(chosen.formats, default))


def capability_of(device: DeviceSpec | None) -> tuple[int, int] | None:
    """CUDA compute capability, `9.0` as (9, 0); None: not known, or no CUDA."""
    if device is None or not device.compute_capability:
        return None
    major, minor = device.compute_capability.split(".")
    return int(major), int(minor)


def _constant(groups: Sequence[CacheGroup]) -> int:
    return sum(t.nbytes for g in groups for t in constant_terms(g))
