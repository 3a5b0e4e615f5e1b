"""KL, agreement and perplexity on distributions that can be worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from kvplan.quality.measure import Run, buckets, compare, figures


def test_the_same_logits_differ_by_nothing() -> None:
    logits = torch.randn(200, 50, generator=torch.Generator().manual_seed(0)) * 30
    found = figures(compare(Run(logits, torch.zeros(200, dtype=torch.int64)), logits.clone()))
    assert found.kl_mean == found.kl_p99 == found.ppl_error == 0 and found.top1 == 1


def test_two_outcomes_by_hand() -> None:
    untouched = torch.tensor([[0.75, 0.25], [0.5, 0.5]]).log()
    other = torch.tensor([[0.5, 0.5], [0.25, 0.75]]).log()
    o = compare(Run(untouched, torch.tensor([0, 1])), other)
    kl = 0.75 * math.log(1.5) + 0.25 * math.log(0.5), 0.5 * math.log(2) + 0.5 * math.log(2 / 3)
    assert o.kl.tolist() == pytest.approx(kl)
    found = figures(o)
    assert found.kl_mean == pytest.approx(sum(kl) / 2)
    assert found.ppl == pytest.approx(math.exp(-(math.log(0.5) + math.log(0.75)) / 2))


def test_confident_positions_are_finite() -> None:
    logits = torch.tensor([[400.0, 0.0, -400.0]])
    assert math.isfinite(compare(Run(logits, torch.tensor([0])), -logits).kl.item())


def test_buckets_cover_all_positions() -> None:
    logits = torch.zeros(700, 4)
    found = buckets(compare(Run(logits, torch.zeros(700, dtype=torch.int64)), logits))
    assert [(b.start, b.stop) for b in found] == [(0, 128), (128, 256), (256, 512), (512, 700)]
