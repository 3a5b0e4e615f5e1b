"""What happens to a format with static scales when its rows grow after calibration."""

from __future__ import annotations

import torch
from kvplan_kernels.attention.reference import attention_reference
from kvplan_kernels.cache import allocate
from kvplan_kernels.testing import relative_error

from kvplan.formats.layout import Layout
from kvplan.validate.filled import write
from kvplan.validate.proofs import stored_attention
from kvplan.validate.report import CLIPPED_FLAG, Clipping, Drift
from kvplan.validate.session import Session

AMPLITUDE = 2.0
DRIFT_REQUESTS, DRIFT_TOKENS = 2, 4096
"""Enough rows for shares of 0.1%; fp64 attention of more would take longer than the rest."""


def measure_drift(run: Session, layout: Layout, page_size: int, amplitude: float = AMPLITUDE) -> Drift | None:
    """Calibrate on the first half of the rows, double the second half, store both; None for other formats."""
    tokens = min(run.geometry.tokens, DRIFT_TOKENS)
    if not run.kind.static_roles(layout) or tokens < 2:
        return None
    clipped, error = _feed(run, layout, page_size, tokens, amplitude)
    _, calm = _feed(run, layout, page_size, tokens, 1.0)
    flagged = any(c.max > CLIPPED_FLAG for c in clipped.values())
    return Drift(clipped=clipped, output_error=error, output_error_without=calm, flagged=flagged)


def _feed(
    run: Session, layout: Layout, page_size: int, tokens: int, amplitude: float
) -> tuple[dict[str, Clipping], float]:
    """Clipped shares of the second half, and the error of attention over all rows against fp64 on the originals."""
    half = tokens // 2
    q = run.tensors.q[:DRIFT_REQUESTS]
    k, v = (x[:DRIFT_REQUESTS, :tokens].clone() for x in (run.tensors.k, run.tensors.v))
    for x in (k, v):
        x[:, half:] *= amplitude
    cache = allocate(layout, num_sequences=len(q), max_tokens=tokens, page_size=page_size, device=k.device)
    run.kind.calibrate(cache, k[:, :half], v[:, :half])
    write(cache, k[:, :half], v[:, :half])
    clipped = write(cache, k[:, half:], v[:, half:], half)
    rows = [x.transpose(1, 2) for x in (k, v)]
    lengths = torch.full((len(q),), tokens, device=k.device)
    reference = attention_reference(q, rows[0], rows[1], lengths, run.sm_scale, run.variant)
    return clipped, relative_error(stored_attention(q, cache, run.sm_scale, run.variant), reference).relative
