"""KL, agreement and perplexity of one run against the untouched one, position by position, in fp64."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from kvplan.quality.report import Bucket, Figures

CHUNK = 64
FIRST_BUCKET = 128


@dataclass(frozen=True)
class Run:
    """Logits fp32 `(T, V)` and the tokens that really came next, int64 `(T,)`."""

    logits: Tensor
    targets: Tensor


@dataclass(frozen=True)
class Outcome:
    """Per position, fp64 `(T,)`: KL(untouched || run), whether the top token is the same, both log losses."""

    kl: Tensor
    same: Tensor
    loss: Tensor
    loss_untouched: Tensor


def compare(untouched: Run, logits: Tensor) -> Outcome:
    """One run's logits `(T, V)` against the untouched run's."""
    parts = []
    for start in range(0, logits.shape[0], CHUNK):
        at = slice(start, start + CHUNK)
        # fp64: differences of 1e-9 are the floor of the method.
        p, q = (x[at].double().log_softmax(-1) for x in (untouched.logits, logits))
        target = untouched.targets[at, None]
        kl = (p.exp() * (p - q)).sum(-1).clamp(min=0)
        same = (p.argmax(-1) == q.argmax(-1)).double()
        parts.append((kl, same, -q.gather(-1, target)[:, 0], -p.gather(-1, target)[:, 0]))
    return Outcome(*(torch.cat(column) for column in zip(*parts, strict=True)))


def figures(o: Outcome) -> Figures:
    """Means over all positions."""
    ppl = math.exp(o.loss.mean().item())
    difference = o.loss - o.loss_untouched
    error = difference.std().item() / math.sqrt(len(difference)) if len(difference) > 1 else 0.0
    return Figures(
        kl_mean=o.kl.mean().item(),
        kl_p99=o.kl.quantile(0.99).item(),
        top1=o.same.mean().item(),
        ppl=ppl,
        ppl_error=ppl * error,
    )


def buckets(o: Outcome) -> tuple[Bucket, ...]:
    """Positions 0 to 128, then doubling."""
    edges = [0]
    while edges[-1] < len(o.kl):
        edges.append(min(max(FIRST_BUCKET, 2 * edges[-1]), len(o.kl)))
    return tuple(
        Bucket(
            start=a,
            stop=b,
            kl_mean=o.kl[a:b].mean().item(),
            kl_p99=o.kl[a:b].quantile(0.99).item(),
            top1=o.same[a:b].mean().item(),
        )
        for a, b in pairwise(edges)
    )
