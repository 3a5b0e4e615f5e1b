"""Launch shapes to try for a case, and compiling many kernels at once before anything is timed."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace

import torch

from kvplan_kernels.attention.config import DecodeConfig, count_sms, default_config
from kvplan_kernels.attention.decode import decode
from kvplan_kernels.bench.cases import CASES, PAGE, Case, layout_for
from kvplan_kernels.bench.filled import filled, queries
from kvplan_kernels.tuning.candidates import candidates


def table_entry(fmt: str, case: Case, device: torch.device) -> DecodeConfig:
    """The launch shape that `decode` takes for this case by itself."""
    heads = len(case.lengths) * case.kv_heads
    return default_config(layout_for(fmt, case), PAGE, case.group, heads, count_sms(device))


def tries(fmt: str, case: Case, device: torch.device) -> list[DecodeConfig]:
    """The table's entry first, then the others that fit shared memory."""
    heads = len(case.lengths) * case.kv_heads
    return candidates(table_entry(fmt, case, device), layout_for(fmt, case), PAGE, heads, count_sms(device))


def compile_ahead(jobs: Sequence[Callable[[], object]], workers: int) -> None:
    """Run jobs that compile into Triton's cache, several processes at a time.

    What fails here fails again, and is named, where it is timed.
    """
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        for job in [pool.submit(job) for job in jobs]:
            job.exception()


def launch_once(case_name: str, fmt: str, share: int, shares: int, try_all: bool) -> None:
    """Every `shares`-th launch shape from `share` on, on short caches: lengths and requests change no kernel."""
    case = next(c for c in CASES if c.name == case_name)
    small = replace(case, lengths=(16 * PAGE,) * 2 if case.uniform else (16 * PAGE, PAGE))
    layout = layout_for(fmt, case)
    cache, q = filled(layout, small, "cuda"), queries(layout, small, "cuda")
    configs = tries(fmt, case, q.device) if try_all else [table_entry(fmt, case, q.device)]
    for config in configs[share::shares]:
        try:
            decode(q, cache, config=config)
            decode(q, cache, config=config, out=q.new_empty(q.shape, dtype=torch.float32))
        except Exception:
            # Named by the timed run.
            continue
