"""Append: what it costs to quantise new rows into the cache, one token per request and many at once."""

from __future__ import annotations

from functools import partial

from kvplan_kernels.bench.timing import Timing, graph_time
from kvplan_kernels.testing import differing_bytes

from kvplan.validate.filled import Filled
from kvplan.validate.memory import BULK_TOKENS
from kvplan.validate.phases.result import Paths, finish, micro, path
from kvplan.validate.report import Check, PhaseResult
from kvplan.validate.session import Session

ONE, MANY = "one token", "many tokens"
CUT_TOKENS = 300
STEPS = 512
"""Room for single tokens: more than a timing appends, so that every launch writes."""


def run(session: Session, filled: Filled) -> PhaseResult:
    def timed() -> Paths:
        return path(ONE, _time_one(session, filled)), path(MANY, _time_many(session, filled))

    def verdict(paths: Paths) -> str:
        many = min(BULK_TOKENS, session.geometry.tokens)
        told = []
        for each, what in zip(paths, ("one token", f"{many:,} tokens"), strict=True):
            native = session.native_seconds("append", each.name)
            beside = "" if filled.native or native is None else f" (16 bit: {micro(native)})"
            told.append(f"{what} per request {micro(each.seconds)}{beside}")
        return f"{', '.join(told)}; one layer, {session.kind.words}"

    return finish(session, filled, "append", [_cuts_agree(session, filled)], timed, verdict)


def _cuts_agree(session: Session, filled: Filled) -> Check:
    """Rows appended in uneven pieces leave the same bytes as at once."""
    tokens = min(CUT_TOKENS, session.geometry.tokens)
    k, v = (x[:, :tokens] for x in (session.tensors.k, session.tensors.v))
    whole, cut = filled.empty(session.geometry.batch, tokens), filled.empty(session.geometry.batch, tokens)
    session.kind.append(whole, k, v)
    start, size = 0, 1
    while start < tokens:
        stop = min(start + size, tokens)
        session.kind.append(cut, k[:, start:stop], v[:, start:stop], max_length=stop)
        start, size = stop, 3 * size
    wrong = sum(differing_bytes(whole, cut).values())
    detail = f"{wrong} of {whole.nbytes:,} bytes differ after {tokens} tokens in pieces of 1, 3, 9, ..."
    return Check(name="appending in pieces = at once", passed=wrong == 0, detail=detail)


def _time_one(session: Session, filled: Filled) -> Timing:
    """A decode step's write: lengths go on from launch to launch, so that residuals also flush as they do in use."""
    cache = filled.empty(session.geometry.batch, STEPS)
    k, v = (x[:, :1].contiguous() for x in (session.tensors.k, session.tensors.v))
    return graph_time([partial(session.kind.append, cache, k, v)])


def _time_many(session: Session, filled: Filled) -> Timing:
    tokens = min(BULK_TOKENS, session.geometry.tokens)
    cache = filled.empty(session.geometry.batch, tokens)
    k, v = (x[:, :tokens] for x in (session.tensors.k, session.tensors.v))

    def call() -> None:
        cache.lengths.zero_()
        session.kind.append(cache, k, v)

    return graph_time([call], launches=6)
