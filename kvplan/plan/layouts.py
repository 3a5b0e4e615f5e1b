"""Every layout of N GPUs that a model allows, ranked by how much cache each GPU is good for.

A layout is tp x pp x dp, with each decode-context-parallel size that its ranks allow and, where the model has latents,
attention replicas inside the tensor-parallel group. Prefill context parallel is left out: it holds no more cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvplan.errors import UnsupportedError, UsageError
from kvplan.memory.figures import Ratio
from kvplan.memory.groups import roles
from kvplan.plan.capacity import usable_bytes, weights_term
from kvplan.plan.compose import device_summary, figures_at
from kvplan.plan.legal import legal_dcps, legal_tps
from kvplan.plan.resolve import Resolved, resolve
from kvplan.plan.sweep import kind_of
from kvplan.plan.types import DeviceSummary, PlanRequest
from kvplan.units import check_count

if TYPE_CHECKING:
    from kvplan.specs.device import DeviceSpec
    from kvplan.specs.model import ModelSpec


@dataclass(frozen=True, kw_only=True)
class RankedLayout:
    """One layout. Bytes are of one rank of the fullest pipeline stage.

    Attributes:
        rank: place in the order, from 1; layouts of equal capacity and waste share one.
        weights_bytes: of one rank, an estimate.
        pool_bytes: what is left for the cache on one GPU; None without one, negative where the weights do not fit.
        requests, tokens: of all replicas, at the context; None without a GPU.
        tokens_per_gpu: tokens / GPUs, a fraction.
        bytes_per_token: logical slope of one rank, for a token of its replica.
        bytes_per_token_per_gpu: the same spread over the replicas: what each GPU holds for a token of the whole layout.
        fixed_bytes_per_gpu: likewise for the fixed bytes of a sequence.
        replicated_bytes: copies over all GPUs, for one sequence at the context.
    """

    rank: int
    tp: int
    pp: int
    dp: int
    dcp: int
    dp_attention: bool
    weights_bytes: int
    pool_bytes: int | None
    requests: int | None
    tokens: int | None
    tokens_per_gpu: Ratio | None
    bytes_per_token: Ratio
    bytes_per_token_per_gpu: Ratio
    fixed_bytes_per_gpu: Ratio
    replicated_bytes: int


@dataclass(frozen=True, kw_only=True)
class LayoutTable:
    """All legal layouts, best first: by tokens per GPU with a GPU, else by bytes per token and GPU, then by waste."""

    model: str
    gpus: int
    context: int
    device: DeviceSummary | None
    formats: dict[str, str]
    ranked_by: str
    layouts: tuple[RankedLayout, ...]
    notes: tuple[str, ...]


def rank_layouts(
    request: PlanRequest, gpus: int, spec: ModelSpec | None = None, device: DeviceSpec | None = None
) -> LayoutTable:
    """Enumerate and rank.

    Args:
        request: the model, formats and GPU; its own sharding is ignored. Without a context, the model's maximum.
        gpus: GPUs of the whole layout.

    Raises:
        UsageError: no layout of that many GPUs is legal.
        KvplanError: what `make_plan` refuses.
    """
    check_count(gpus, "gpus")
    plain = {"tp": 1, "pp": 1, "dp": None, "dcp": 1, "pcp": 1, "dp_attention": False}
    first = resolve(request.model_copy(update=plain), spec, device)
    context = first.request.context or first.spec.max_context
    base = request.model_copy(update={**plain, "context": context, "batch": 1})
    rows = list(_rows(first, base, gpus))
    if not rows:
        raise UsageError(
            f"{first.spec.id} has no legal layout of {gpus} GPUs",
            "tensor-parallel sizes: " + ", ".join(map(str, legal_tps(first.spec))),
        )
    rows.sort(key=lambda row: (_merit(row), row["replicated_bytes"], row["tp"], row["pp"], row["dp_attention"]))
    by = "tokens that fit per GPU" if first.device else "bytes per token and GPU"
    return LayoutTable(
        model=first.spec.id,
        gpus=gpus,
        context=context,
        device=device_summary(first.device) if first.device else None,
        formats={role: f for role in ("k", "v", "latent", "index") if (f := getattr(first.request, role))},
        ranked_by=by,
        layouts=tuple(_ranked(rows)),
        notes=first.notes,
    )


def shardings(spec: ModelSpec, gpus: int) -> Iterator[dict[str, Any]]:
    """The fields of a request for every legal layout of that many GPUs."""
    latent = "latent" in roles(spec)
    tps = legal_tps(spec)
    for tp in tps:
        for pp in range(1, min(spec.layers, gpus // tp) + 1):
            if gpus % (tp * pp) == 0:
                for dcp in legal_dcps(spec, tp):
                    yield {"tp": tp, "pp": pp, "dp": gpus // tp // pp, "dcp": dcp}
    # With attention replicas the tensor-parallel group is all GPUs of a stage, and its weights are split over them.
    for pp in range(1, min(spec.layers, gpus) + 1) if latent else ():
        tp, odd = divmod(gpus, pp)
        for inner in tps if not odd else ():
            if inner < tp and tp % inner == 0:
                for dcp in legal_dcps(spec, inner):
                    yield {"tp": tp, "pp": pp, "dp": tp // inner, "dcp": dcp, "dp_attention": True}


def _rows(first: Resolved, base: PlanRequest, gpus: int) -> Iterator[dict[str, Any]]:
    for sharding in shardings(first.spec, gpus):
        try:
            resolved = resolve(base.model_copy(update=sharding), first.spec, first.device)
        except (UsageError, UnsupportedError):
            # A format may not fit the shorter row of a rank, or an engine have no rule for several ranks.
            continue
        yield _row(resolved, gpus)


def _row(resolved: Resolved, gpus: int) -> dict[str, Any]:
    request, sharding = resolved.request, resolved.sharding
    assert request.context is not None and sharding.gpus == gpus
    swept = kind_of(resolved).plan(request.context, request.batch)
    kv = figures_at(resolved, request.context)
    weights = weights_term(resolved).nbytes
    memory = resolved.device.memory_bytes if resolved.device else None
    slope, dp = kv.bytes_per_token, sharding.dp
    return {
        "tp": sharding.tp,
        "pp": sharding.pp,
        "dp": dp,
        "dcp": sharding.dcp,
        "dp_attention": sharding.dp_attention,
        "weights_bytes": weights,
        "pool_bytes": usable_bytes(memory, resolved.share) - weights if memory else None,
        "requests": swept.requests,
        "tokens": swept.tokens,
        "tokens_per_gpu": None if swept.tokens is None else Ratio.quotient(swept.tokens, gpus),
        "bytes_per_token": slope,
        "bytes_per_token_per_gpu": Ratio.quotient(slope.numerator, slope.denominator * dp),
        "fixed_bytes_per_gpu": Ratio.quotient(kv.fixed_bytes_per_sequence, dp),
        "replicated_bytes": kv.replicated_bytes,
    }


def _merit(row: dict[str, Any]) -> tuple[float, float]:
    """Less is better."""
    if row["tokens"] is not None:
        return -row["tokens"], 0
    return row["bytes_per_token_per_gpu"].value, row["fixed_bytes_per_gpu"].value


def _ranked(rows: list[dict[str, Any]]) -> Iterator[RankedLayout]:
    before, rank = None, 0
    for place, row in enumerate(rows, 1):
        now = (_merit(row), row["replicated_bytes"])
        rank = rank if now == before else place
        before = now
        yield RankedLayout(rank=rank, **row)
