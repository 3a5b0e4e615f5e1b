"""Prefix hit: new rows in 16 bit that also attend to a prefix which the cache already holds, quantised."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from kvplan_kernels.attention.prefix import Path, make_scratch, prefix_attention
from kvplan_kernels.attention.reference import attention_reference
from kvplan_kernels.bench.timing import Timing, graph_time
from kvplan_kernels.store.reference import read_reference
from kvplan_kernels.testing import Error, relative_error
from torch import Tensor

from kvplan.validate.filled import Filled
from kvplan.validate.memory import NEW_TOKENS
from kvplan.validate.phases.result import Paths, finish, micro, path
from kvplan.validate.proofs import agreement
from kvplan.validate.report import Check, PhaseResult
from kvplan.validate.session import Session

Rows = tuple[Tensor, Tensor, Tensor]
CHOSEN, FUSED, DEQUANTISE = "chosen", "fused", "dequantise"


def run(session: Session, filled: Filled) -> PhaseResult:
    rows = _new_rows(session)
    error, fused = _fused_check(session, filled, rows)
    checks = (fused, *_dequantise_checks(session, filled, rows))

    def timed() -> Paths:
        ways: tuple[tuple[str, Path | None], ...] = ((CHOSEN, None), (FUSED, "fused"), (DEQUANTISE, "dequantise"))
        return tuple(path(name, _time(session, filled, rows, way)) for name, way in ways)

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
        return f"{text}{beside}, {seconds[DEQUANTISE] / own:.2f}x that of dequantising first"

    return finish(session, filled, "prefix", checks, timed, verdict, error=error)


def _new_rows(session: Session) -> Rows:
    """q, k and v of the rows behind the prefix; k and v repeat the newest cached rows, whose statistics are right."""
    count = max(1, min(NEW_TOKENS, session.geometry.tokens // 4))
    k, v = (x[:, -count:].contiguous() for x in (session.tensors.k, session.tensors.v))
    return session.query_rows(session.geometry.batch, count), k, v


def _fused_check(session: Session, filled: Filled, rows: Rows) -> tuple[Error, Check]:
    """Codes decoded in registers, against fp64 on what the cache holds."""

    def stored(role: str, request: int) -> Tensor:
        return read_reference(filled.cache, role, request, session.geometry.tokens)

    got = _attend(session, filled, rows, "fused", None)
    return agreement("prefix attention, fused", got, _reference(session, rows, stored))


def _dequantise_checks(session: Session, filled: Filled, rows: Rows) -> tuple[Check, Check]:
    """The dense copy is the dequantised cache but for 16-bit rounding; attention is right on that copy."""
    scratch = make_scratch(rows[0], filled.cache, session.geometry.tokens)
    got = _attend(session, filled, rows, "dequantise", scratch)
    dense = dict(zip("kv", scratch, strict=True))
    _, attention = agreement(
        "prefix attention, dequantised first",
        got,
        _reference(session, rows, lambda role, request: dense[role][request]),
        "fp64 on the dense 16-bit copy",
    )
    bound = torch.finfo(rows[0].dtype).eps
    worst = max(
        relative_error(copy[b], read_reference(filled.cache, role, b, session.geometry.tokens)).relative
        for role, copy in dense.items()
        for b in range(len(copy))
    )
    detail = f"relative L2 {worst:.1e} against the dequantised codes, at most {bound:.1e} (16-bit rounding)"
    return attention, Check(name="dense copy of the prefix", passed=worst <= bound, detail=detail)


def _attend(session: Session, filled: Filled, rows: Rows, way: Path, scratch: tuple[Tensor, Tensor] | None) -> Tensor:
    """The output in fp32 over NaN: what is not written shows."""
    q, k, v = rows
    out = q.new_full((*q.shape[:3], v.shape[3]), float("nan"), dtype=torch.float32)
    return prefix_attention(
        q, k, v, filled.cache, sm_scale=session.sm_scale, variant=session.variant, path=way, out=out, scratch=scratch
    )


def _reference(session: Session, rows: Rows, prefix: Callable[[str, int], Tensor]) -> Tensor:
    """fp64 attention of the new rows over a prefix, `(HKV, T, D)` of a role and request, and over themselves."""
    q, k, v = rows

    def with_new(role: str, new: Tensor, request: int) -> Tensor:
        return torch.cat([prefix(role, request).float(), new[request].transpose(0, 1).float()], 1)

    lengths = torch.full((len(q),), session.geometry.tokens + q.shape[1])
    sources = (partial(with_new, "k", k), partial(with_new, "v", v))
    return attention_reference(q, *sources, lengths, session.sm_scale, session.variant)


def _time(session: Session, filled: Filled, rows: Rows, way: Path | None) -> Timing:
    q, k, v = rows
    out = q.new_empty((*q.shape[:3], v.shape[3]))
    scratch = make_scratch(q, filled.cache, session.geometry.tokens)
    how: dict[str, Any] = {"sm_scale": session.sm_scale, "variant": session.variant, "path": way}

    def call() -> None:
        prefix_attention(q, k, v, filled.cache, out=out, scratch=scratch, **how)

    return graph_time([call], launches=6)
