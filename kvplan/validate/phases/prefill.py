"""Prefill: causal attention of a first chunk on its original 16-bit rows, which are then quantised into the cache."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from kvplan_kernels.attention.prefill import prefill, prefill_and_write
from kvplan_kernels.attention.reference import attention_reference
from kvplan_kernels.bench.timing import graph_time
from kvplan_kernels.store.append import append
from kvplan_kernels.testing import Error, differing_bytes
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from kvplan.validate.filled import Filled
from kvplan.validate.memory import CHUNK_TOKENS, LAUNCH_TOKENS
from kvplan.validate.phases.result import Paths, finish, micro, path
from kvplan.validate.proofs import agreement
from kvplan.validate.report import Check, PhaseResult
from kvplan.validate.session import Session

CHECKED_ROWS = 64
"""First and last rows that are compared with fp64."""
WRITE, ATTENTION, TORCH = "prefill and write", "attention only", "torch causal attention"


@dataclass(frozen=True)
class Chunk:
    """(B, R, heads, channels) of the requests that are prefilled together."""

    q: Tensor
    k: Tensor
    v: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        """Requests and tokens of each."""
        return self.q.shape[0], self.q.shape[1]


def run(session: Session, filled: Filled) -> PhaseResult:
    chunk = _chunk(session)
    error, right = _matches_fp64(session, filled, chunk)

    def verdict(paths: Paths) -> str:
        requests, tokens = chunk.shape
        text = f"{micro(paths[0].seconds)} for {requests} x {tokens:,} tokens of one layer, attention and write"
        native = session.native_seconds("prefill", WRITE)
        if filled.native:
            return f"{text}; {', '.join(f'{p.name} {micro(p.seconds)}' for p in paths[1:])}"
        return text if native is None else f"{text}, {paths[0].seconds / native:.3f}x of 16 bit ({micro(native)})"

    checks = (right, _writes_like_append(session, filled, chunk))
    return finish(session, filled, "prefill", checks, partial(_timed, session, filled, chunk), verdict, error=error)


def _chunk(session: Session) -> Chunk:
    tokens = min(CHUNK_TOKENS, session.geometry.tokens)
    requests = min(session.geometry.batch, max(1, LAUNCH_TOKENS // tokens))
    k, v = (x[:requests, :tokens] for x in (session.tensors.k, session.tensors.v))
    return Chunk(session.query_rows(requests, tokens), k, v)


def _matches_fp64(session: Session, filled: Filled, chunk: Chunk) -> tuple[Error, Check]:
    """The first and the last rows of the chunk, computed while the cache is written, against fp64 on the originals."""
    requests, tokens = chunk.shape
    out = chunk.q.new_full((*chunk.q.shape[:3], chunk.v.shape[3]), float("nan"), dtype=torch.float32)
    cache = filled.empty(requests, tokens)
    prefill_and_write(
        chunk.q, chunk.k, chunk.v, cache, sm_scale=session.sm_scale, variant=session.variant, max_length=tokens, out=out
    )
    rows = min(CHECKED_ROWS, tokens)
    references = []
    for stop in (rows, tokens):
        k, v = (x[:, :stop].transpose(1, 2) for x in (chunk.k, chunk.v))
        lengths = torch.full((requests,), stop)
        q = chunk.q[:, stop - rows : stop]
        references.append(attention_reference(q, k, v, lengths, session.sm_scale, session.variant))
    got = torch.cat([out[:, :rows], out[:, tokens - rows :]], 1)
    # A row that was not written would be a number that is none, wherever it is.
    got = torch.where(out.isfinite().all(), got, float("nan"))
    return agreement("prefill attention", got, torch.cat(references, 1), "fp64 on the original rows")


def _writes_like_append(session: Session, filled: Filled, chunk: Chunk) -> Check:
    """What prefill leaves in the cache are the bytes of a plain append."""
    requests, tokens = chunk.shape
    got, want = filled.empty(requests, tokens), filled.empty(requests, tokens)
    prefill_and_write(chunk.q, chunk.k, chunk.v, got, sm_scale=session.sm_scale, variant=session.variant)
    append(want, chunk.k, chunk.v)
    wrong = sum(differing_bytes(got, want).values())
    return Check(name="prefill writes as append", passed=wrong == 0, detail=f"{wrong} of {want.nbytes:,} bytes differ")


def _timed(session: Session, filled: Filled, chunk: Chunk) -> Paths:
    requests, tokens = chunk.shape
    q, k, v = chunk.q, chunk.k.contiguous(), chunk.v.contiguous()
    cache, out = filled.empty(requests, tokens), q.new_empty((*q.shape[:3], v.shape[3]))

    def write() -> None:
        cache.lengths.zero_()
        prefill_and_write(q, k, v, cache, sm_scale=session.sm_scale, variant=session.variant, out=out)

    def attention() -> None:
        prefill(q, k, v, sm_scale=session.sm_scale, variant=session.variant, out=out)

    found = path(WRITE, graph_time([write], launches=6))
    if not filled.native:
        return (found,)
    q_t, k_t, v_t = (x.transpose(1, 2).contiguous() for x in (q, k, v))

    def plain() -> None:
        scaled_dot_product_attention(q_t, k_t, v_t, is_causal=True, scale=session.sm_scale, enable_gqa=True)

    return (
        found,
        path(ATTENTION, graph_time([attention], launches=6)),
        path(TORCH, graph_time([plain], launches=6)),
    )
