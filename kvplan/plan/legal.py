"""Which layouts of GPUs a model allows. Query heads count here, and nowhere in the bytes."""

from __future__ import annotations

from math import gcd
from typing import TYPE_CHECKING

from kvplan.errors import UsageError
from kvplan.memory.groups import dcp_obstacle, shares_rows, tp_obstacle
from kvplan.memory.sharding import Sharding
from kvplan.plan.types import PlanRequest
from kvplan.units import check_count

if TYPE_CHECKING:
    from kvplan.specs.model import ModelSpec

MOST_RANKS = 256
"""Tensor-parallel ranks that a model without attention heads is tried with."""


def legal_tps(spec: ModelSpec) -> tuple[int, ...]:
    """Tensor-parallel sizes that fit: query heads divide, KV heads split or copy evenly, state heads divide."""
    heads = [g.q_heads for g in spec.layer_groups if g.kind in ("attention", "latent", "cross") and g.q_heads]
    ceiling = gcd(*heads) if heads else MOST_RANKS
    fits = (n for n in range(1, ceiling + 1) if not any(h % n for h in heads))
    return tuple(n for n in fits if not any(tp_obstacle(g, n) for g in spec.layer_groups))


def legal_dcps(spec: ModelSpec, tp: int, pcp: int = 1) -> tuple[int, ...]:
    """Decode-context-parallel sizes for `tp` ranks that share attention.

    vLLM's rules: a divisor of tp (with prefill context parallel 1, pcp or tp x pcp), no more than the copies of each
    KV head, and a divisor of the query heads of a KV head. For latents any such divisor. Only 1 where no rows grow.
    """
    growing = [g for g in spec.layer_groups if shares_rows(g)]
    sizes = {1, pcp, tp * pcp} if pcp > 1 else {n for n in range(1, tp + 1) if tp % n == 0}

    def fits(dcp: int) -> bool:
        sharding = Sharding(tp=tp, pcp=pcp, dcp=dcp)
        for g in growing:
            if dcp_obstacle(g, sharding) or (g.kind == "attention" and g.q_heads // g.kv_heads % dcp):
                return False
        return bool(growing)

    return tuple(n for n in sorted(sizes) if n == 1 or fits(n))


def check_sharding(request: PlanRequest, spec: ModelSpec) -> Sharding:
    """The layout of GPUs that a request asks for.

    Raises:
        UsageError: a size that the model does not allow, with the legal ones.
    """
    for name in ("tp", "pp", "dcp", "pcp"):
        check_count(getattr(request, name), name)
    dp = request.dp if request.dp is not None else request.tp if request.dp_attention else 1
    check_count(dp, "dp")
    if request.dp_attention and request.tp % dp:
        inside = [n for n in range(1, request.tp + 1) if request.tp % n == 0]
        raise UsageError(
            f"--dp-attention splits the {request.tp} tensor-parallel ranks over dp {dp}, which does not divide them",
            "legal values of --dp: " + _spell(inside),
        )
    sharding = Sharding(request.tp, request.pp, dp, request.dcp, request.pcp, request.dp_attention)
    _check_tp(spec, sharding.attention_tp)
    if request.pp > spec.layers:
        raise UsageError(f"pp {request.pp} is more than the {spec.layers} layers of {spec.id}", "use fewer stages")
    legal = legal_dcps(spec, sharding.attention_tp, request.pcp)
    if request.dcp not in legal:
        why = "shares rows only between ranks that would hold copies of them"
        raise UsageError(
            f"dcp {request.dcp} does not fit {spec.id} at tp {sharding.attention_tp}: it {why}",
            "legal values: " + _spell(legal),
        )
    return sharding


def _check_tp(spec: ModelSpec, tp: int) -> None:
    legal = legal_tps(spec) if tp > 1 else (1,)
    if tp in legal:
        return
    hint = "legal values: " + _spell(legal)
    for group in spec.layer_groups:
        heads = group.q_heads if group.kind in ("attention", "latent", "cross") else None
        why = f"{heads} query heads do not divide by {tp}" if heads and heads % tp else tp_obstacle(group, tp)
        if why:
            raise UsageError(f"tp {tp} does not fit {spec.id}: {why}", hint)
    raise UsageError(f"tp {tp} does not fit {spec.id}", hint)


def _spell(sizes: tuple[int, ...] | list[int]) -> str:
    return ", ".join(map(str, sizes))
