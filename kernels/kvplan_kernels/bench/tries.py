"""Launch shapes to try around the table's entry, and compiling many kernels at once before anything is timed."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace

import torch

from kvplan_kernels.attention.config import SM_BYTES, DecodeConfig, count_sms, default_config, padded_words
from kvplan_kernels.attention.decode import decode
from kvplan_kernels.bench.cases import CASES, PAGE, Case, layout_for
from kvplan_kernels.bench.filled import filled, queries

TILES = (32, 64, 128)
# Resident warps per SM are a multiple of 4, equal on all four schedulers.
WARPS_AND_PROGRAMS = ((1, 4), (1, 8), (1, 12), (2, 2), (2, 4), (2, 6), (4, 1), (4, 2), (4, 3))
STAGES = (3, 4)
# (warps, programs per SM, registers): a cap that leaves room for one more program without spills.
CAPPED = ((2, 6, 160), (1, 12, 160))


def table_entry(fmt: str, case: Case, device: torch.device) -> DecodeConfig:
    """The launch shape that `decode` takes for this case by itself."""
    heads = len(case.lengths) * case.kv_heads
    return default_config(layout_for(fmt, case), PAGE, case.group, heads, count_sms(device))


def tries(fmt: str, case: Case, device: torch.device) -> list[DecodeConfig]:
    """The table's entry first, then the others that fit shared memory."""
    layout, heads, sms = layout_for(fmt, case), len(case.lengths) * case.kv_heads, count_sms(device)
    base = table_entry(fmt, case, device)
    row_bytes = sum(2 * padded_words(layout.view(role).words) for role in ("k", "v"))
    found = [base]
    for tokens in TILES:
        found += [DecodeConfig(tokens, w, s, p) for w, p in WARPS_AND_PROGRAMS for s in STAGES]
        found += [DecodeConfig(tokens, w, 3, p, cap) for w, p, cap in CAPPED]
    if 3 * sms <= heads <= 4 * sms:
        found += [DecodeConfig(t, w, s, 4, programs=heads) for t in TILES for w in (1, 2) for s in STAGES]
    fits = [c for c in found if c.ctas_per_sm * c.block_tokens * (c.num_stages - 1) * row_bytes <= SM_BYTES]
    return list(dict.fromkeys([base, *fits]))


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
