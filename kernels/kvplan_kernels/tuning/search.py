"""The fastest of a few launch shapes, each of which must first compute what the table's entry computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kvplan_kernels.attention.config import DecodeConfig
from kvplan_kernels.testing import KERNEL, relative_error

Say = Callable[[str], None]


@dataclass(frozen=True)
class Found:
    """The fastest shape, its seconds for a decode and those of the table's entry."""

    config: DecodeConfig
    seconds: float
    table_seconds: float


def search(
    tried: Sequence[DecodeConfig],
    run: Callable[[DecodeConfig], Tensor],
    seconds: Callable[[DecodeConfig], float],
    say: Say,
) -> Found:
    """Try all; what does not compile, does not run, or computes something else than the first is left out.

    Args:
        tried: the table's entry first.
        run: the output of a decode with this shape, in fp32.
        seconds: the time of one.
        say: told how far the search is.

    Raises:
        Exception: the table's entry itself fails, or the device was lost (an illegal access ends the CUDA context).
    """
    base, *others = tried
    want = run(base)
    table = best = seconds(base)
    fastest = base
    for i, config in enumerate(others, 2):
        say(f"searching a launch shape for this GPU, {i} of {len(tried)}")
        try:
            if not KERNEL.accepts(relative_error(run(config), want)):
                continue
            time = seconds(config)
        except Exception:
            if want.is_cuda:
                # Raises where nothing can run any more: a search that was cut off has found nothing.
                torch.cuda.synchronize()
            continue
        if time < best:
            fastest, best = config, time
    return Found(fastest, best, table)
