"""Many plans at once: bytes and capacity of each request, equal to `make_plan`'s, without its trees.

    for request, row in zip(requests, sweep(requests)): ...

Requests that differ only in context and batch share their coefficients; the first of each kind takes about as long as a
plan. Specs and devices are read once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

from kvplan.errors import UsageError
from kvplan.memory.curves import RankCurves
from kvplan.plan.capacity import usable_bytes, weights_term
from kvplan.plan.resolve import Resolved, resolve
from kvplan.plan.types import PlanRequest
from kvplan.units import MAX_TOKENS, check_count

if TYPE_CHECKING:
    from kvplan.specs.device import DeviceSpec
    from kvplan.specs.model import ModelSpec

_KEY = itemgetter(*(name for name in PlanRequest.model_fields if name not in ("context", "batch")))


class Swept(NamedTuple):
    """The figures of one plan, named as there. Without a GPU the last five are None.

    Bytes are those of one rank of the fullest pipeline stage; an allocator takes allocated + constant. Requests and
    tokens are of all replicas.
    """

    context: int
    batch: int
    logical_bytes: int
    allocated_bytes: int
    constant_bytes: int
    pool_bytes: int | None
    requests: int | None
    tokens: int | None
    longest_request: int | None
    fits: bool | None


def sweep(requests: Iterable[PlanRequest]) -> Iterator[Swept]:
    """Plan each request; see `Sweep.plan` for errors."""
    plan = Sweep().plan
    for request in requests:
        yield plan(request)


class Sweep:
    """Keeps the coefficients of every kind of request it has seen."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[object, ...], Kind | EngineKind] = {}
        self._specs: dict[str, ModelSpec] = {}
        self._devices: dict[str, DeviceSpec] = {}

    def plan(self, request: PlanRequest) -> Swept:
        """The figures of one request.

        Raises:
            UsageError: no context, or what `make_plan` refuses.
            InputError, UnsupportedError: as `make_plan`.
        """
        key = _KEY(request.__dict__)
        kind = self._kinds.get(key)
        if kind is None:
            kind = self._kinds[key] = self._prepare(request)
        return kind.plan(request.context, request.batch)

    def _prepare(self, request: PlanRequest) -> Kind | EngineKind:
        spec, device = self._specs.get(request.model), self._devices.get(request.gpu or "")
        resolved = resolve(request, spec, device)
        self._specs[request.model] = resolved.spec
        if request.gpu and resolved.device:
            self._devices[request.gpu] = resolved.device
        return kind_of(resolved)


def kind_of(resolved: Resolved) -> Kind | EngineKind:
    """Requests that differ from a resolved one only in context and batch."""
    return EngineKind(resolved) if resolved.engine else Kind(resolved)


class EngineKind:
    """Requests to an engine, which rounds by its own rules: each is a plan of its own."""

    def __init__(self, resolved: Resolved) -> None:
        self._request, self._spec, self._device = resolved.request, resolved.spec, resolved.device

    def plan(self, context: int | None, batch: int) -> Swept:
        """The figures at one context and batch."""
        from kvplan.plan.compose import make_plan

        if context is None:
            raise UsageError("a sweep needs the context of every request", "give each request a context")
        made = make_plan(
            self._request.model_copy(update={"context": context, "batch": batch}), self._spec, self._device
        )
        kv, room = made.kv, made.capacity
        assert kv is not None
        figures = (context, batch, kv.logical_bytes, kv.allocated_bytes, kv.constant_bytes)
        if room is None or made.verdict is None:
            return Swept(*figures, None, None, None, None, None)
        return Swept(*figures, room.pool_bytes, room.requests, room.tokens, room.longest_request, made.verdict.fits)


class Kind:
    """Requests that differ only in context and batch."""

    def __init__(self, resolved: Resolved) -> None:
        self._request, self._longest = resolved.request, dict[int, int]()
        self._max_context, self._dp = resolved.spec.max_context, resolved.sharding.dp
        self._stages = [rank for rank in resolved.ranks if isinstance(rank, RankCurves)]
        self._pool: int | None = None
        weights = weights_term(resolved).nbytes
        if resolved.device:
            self._pool = usable_bytes(resolved.device.memory_bytes, resolved.share) - weights

    def plan(self, context: int | None, batch: int) -> Swept:
        """The figures at one context and batch."""
        if context is None:
            raise UsageError("a sweep needs the context of every request", "give each request a context")
        if not (1 <= batch <= MAX_TOKENS and 1 <= context <= self._max_context):
            check_count(batch, "batch")
            check_count(context, "context")
            if not self._request.beyond_max:
                resolve(self._request.model_copy(update={"context": context}))
        sequences = -(-batch // self._dp)
        worst, each, held = self._stages[0], 0, -1
        for stage in self._stages:
            one = stage.allocated(context)
            if stage.constant + sequences * one > held:
                worst, each, held = stage, one, stage.constant + sequences * one
        logical, constant = sequences * worst.logical(context), worst.constant
        if self._pool is None:
            return Swept(context, batch, logical, held - constant, constant, None, None, None, None, None)
        requests, tokens = self._fit(context, each)
        longest = self._longest_request(max(self._max_context, context))
        fits = held <= self._pool
        return Swept(context, batch, logical, held - constant, constant, self._pool, requests, tokens, longest, fits)

    def _fit(self, context: int, each: int) -> tuple[int, int]:
        """Requests and tokens of all replicas: bytes are a multiple of the sequences, so this division is exact."""
        assert self._pool is not None
        if len(self._stages) == 1:
            stage = self._stages[0]
            room = self._pool - stage.constant
            requests = max(0, min(MAX_TOKENS, room // each if each else MAX_TOKENS if room >= 0 else 0))
            shorter = 0 if requests == MAX_TOKENS else stage.most_tokens(room - requests * each, context - 1)
            return self._dp * requests, self._dp * (requests * context + shorter)
        requests, costs = MAX_TOKENS, [stage.allocated(context) for stage in self._stages]
        for stage, cost in zip(self._stages, costs, strict=True):
            room = self._pool - stage.constant
            requests = min(requests, max(0, room // cost if cost else MAX_TOKENS if room >= 0 else 0))
        shorter = 0 if requests == MAX_TOKENS else context - 1
        for stage, cost in zip(self._stages, costs, strict=True):
            shorter = stage.most_tokens(self._pool - stage.constant - requests * cost, shorter)
        return self._dp * requests, self._dp * (requests * context + shorter)

    def _longest_request(self, ceiling: int) -> int:
        if ceiling not in self._longest:
            assert self._pool is not None
            longest = ceiling
            for stage in self._stages:
                longest = stage.most_tokens(self._pool - stage.constant, longest)
            self._longest[ceiling] = longest
        return self._longest[ceiling]
