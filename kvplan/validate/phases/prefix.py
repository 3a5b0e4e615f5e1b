"""Prefix hit: new rows in 16 bit that also attend to a prefix which the cache already holds, quantised."""

from __future__ import annotations

from functools import partial
from typing import Literal

import torch
from kvplan_kernels.attention.prefix import prefix_attention
from kvplan_kernels.attention.reference import attention_reference
from kvplan_kernels.bench.timing import Timing, graph_time
from kvplan_kernels.store.reference import read_reference
from torch import Tensor

from kvplan.validate.filled import Filled
from kvplan.validate.memory import NEW_TOKENS
from kvplan.validate.phases.result import Paths, finish, micro, path
from kvplan.validate.proofs import agreement
from kvplan.validate.report import PhaseResult
from kvplan.validate.session import Session

Way = Literal["fused", "dequantise"]
WAYS: tuple[Way, ...] = ("fused", "dequantise")
CHOSEN = "chosen"


def run(session: Session, filled: Filled) -> PhaseResult:
    rows = _new_rows(session)
    reference = _reference(session, filled, rows)
    found = [agreement(f"prefix attention, {way}", _attend(session, filled, rows, way), reference) for way in WAYS]

    def timed() -> Paths:
        chosen = path(CHOSEN, _time(session, filled, rows, None))
        return (chosen, *(path(way, _time(session, filled, rows, way)) for way in WAYS))

    def verdict(paths: Paths) -> str:
        seconds = {p.name: p.seconds for p in paths}
        own, native = seconds[CHOSEN], session.native_seconds("prefix", CHOSEN)
        text = (
            f"{micro(own)} for {rows[0].shape[1]:,} new tokens of each of {len(rows[0])} requests on "
            f"{session.geometry.tokens:,} cached ones, one layer"
        )
        if filled.native:
            return text
        beside = "" if native is None else f"; {native / own:.2f}x the speed of 16 bit ({micro(native)})"
        return f"{text}{beside}, {seconds['dequantise'] / own:.2f}x that of dequantising first"

    return finish(session, filled, "prefix", [c for _, c in found], timed, verdict, error=found[0][0])


def _new_rows(session: Session) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v of the rows behind the prefix; k and v repeat the newest cached rows, whose statistics are right."""
    count = max(1, min(NEW_TOKENS, session.geometry.tokens // 4))
    k, v = (x[:, -count:].contiguous() for x in (session.tensors.k, session.tensors.v))
    return session.query_rows(session.geometry.batch, count), k, v


def _attend(session: Session, filled: Filled, rows: tuple[Tensor, Tensor, Tensor], way: Way | None) -> Tensor:
    q, _, v = rows
    out = q.new_full((*q.shape[:3], v.shape[3]), float("nan"), dtype=torch.float32)
    return prefix_attention(*rows, filled.cache, sm_scale=session.sm_scale, variant=session.variant, path=way, out=out)


def _reference(session: Session, filled: Filled, rows: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """fp64 attention of the new rows over what the cache holds, dequantised, and over themselves."""
    q, k, v = rows

    def with_new(role: str, new: Tensor, request: int) -> Tensor:
        stored = read_reference(filled.cache, role, request, session.geometry.tokens)
        return torch.cat([stored, new[request].transpose(0, 1).float()], 1)

    lengths = torch.full((len(q),), session.geometry.tokens + q.shape[1])
    sources = (partial(with_new, "k", k), partial(with_new, "v", v))
    return attention_reference(q, *sources, lengths, session.sm_scale, session.variant)


def _time(session: Session, filled: Filled, rows: tuple[Tensor, Tensor, Tensor], way: Way | None) -> Timing:
    q, k, v = rows
    out = q.new_empty((*q.shape[:3], v.shape[3]))

    def call() -> None:
        prefix_attention(q, k, v, filled.cache, sm_scale=session.sm_scale, variant=session.variant, path=way, out=out)

    return graph_time([call], launches=6)
