"""`python -m kvplan_kernels.bench.latent`: time the latent kernels on this GPU, fused and unfused, as JSON.

Each call reads another copy of the cache, so nothing stays in the L2.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from typing import Any

import torch

from kvplan.formats.ds_mla import latent_view
from kvplan.formats.grammar import parse_any
from kvplan.formats.grid import Tensor, bind
from kvplan_kernels.attention.latent import latent_decode, make_latent_workspace
from kvplan_kernels.attention.latent_config import LatentConfig, latent_config
from kvplan_kernels.attention.latent_unfused import latent_unfused_decode
from kvplan_kernels.attention.work import tile_starts
from kvplan_kernels.bench.timing import copies_needed, graph_time
from kvplan_kernels.cache import Cache, allocate
from kvplan_kernels.dialect import capability_of
from kvplan_kernels.store.latent import append_latent

NOPE, ROPE, PAGE = 512, 64, 64
SM_SCALE = 192**-0.5
CONFIGS = (
    LatentConfig(64, 4, 2, 1, columns=16),
    LatentConfig(64, 8, 2, 1, columns=16),
    LatentConfig(64, 4, 2, 1, columns=32),
    LatentConfig(64, 8, 2, 1, columns=32),
    LatentConfig(64, 8, 2, 1, columns=64),
    LatentConfig(32, 4, 2, 2, columns=16),
)
"""Shapes of a launch that are tried beside the default."""


def filled(spelling: str, batch: int, tokens: int) -> Cache:
    """A full cache of random rows."""
    layout = bind([Tensor("latent", parse_any(spelling), NOPE + ROPE, ROPE)], 1, "bf16")
    cache = allocate(layout, num_sequences=batch, max_tokens=tokens, page_size=PAGE, device="cuda")
    generator = torch.Generator("cuda").manual_seed(5)
    for first in range(0, tokens, 4096):
        shape = (batch, min(4096, tokens - first), NOPE + ROPE)
        append_latent(cache, torch.randn(shape, generator=generator, device="cuda").bfloat16(), max_length=tokens)
    return cache


def time_fused(caches: list[Cache], q: torch.Tensor, config: LatentConfig) -> dict[str, Any]:
    """Time one launch shape; a shape that the compiler or the device refuses is named, not hidden."""
    cache, view = caches[0], latent_view(caches[0].layout)
    row: dict[str, Any] = {"columns": config.columns, "tokens": config.block_tokens, "warps": config.num_warps}
    try:
        space = make_latent_workspace(q, cache, config)
        out = torch.empty((*q.shape[:-1], view.nope), dtype=q.dtype, device="cuda")
        work = tile_starts(cache.lengths, config.block_tokens, view)
        shared = {"sm_scale": SM_SCALE, "config": config, "workspace": space, "out": out, "work": work}
        seconds = graph_time([partial(latent_decode, q, c, **shared) for c in caches]).seconds
    except Exception as error:
        return row | {"failed": f"{type(error).__name__}: {error}"[:200]}
    read = int(cache.lengths.sum()) * view.slot_bytes
    flops = 2 * int(cache.lengths.sum()) * q.shape[1] * (view.dim + view.nope)
    rates = {"terabytes_per_second": read / seconds / 1e12, "teraflops": flops / seconds / 1e12}
    return row | {"microseconds": seconds * 1e6} | rates


def measure(spelling: str, batch: int, tokens: int, heads: int, try_all: bool) -> dict[str, Any]:
    """Fused times by launch shape, and the unfused time, of one case."""
    cache = filled(spelling, batch, tokens)
    caches = [cache, *(cache.clone() for _ in range(copies_needed(cache.nbytes) - 1))]
    q = torch.randn(batch, heads, NOPE + ROPE, device="cuda").bfloat16()
    default = latent_config(latent_view(cache.layout), PAGE, heads, capability_of(q.device))
    fused = [time_fused(caches, q, config) for config in (default, *(CONFIGS if try_all else ()))]
    scratch = torch.empty(batch, tokens, NOPE + ROPE, dtype=q.dtype, device="cuda")
    calls = [partial(latent_unfused_decode, q, c, SM_SCALE, uniform=True, scratch=scratch) for c in caches]
    unfused = graph_time(calls, launches=4, replays=3).seconds
    case = {"format": spelling, "batch": batch, "tokens": tokens, "heads": heads}
    return case | {"fused": fused, "unfused_microseconds": unfused * 1e6}


def main() -> int:
    rows = []
    for batch, tokens, try_all in ((16, 8192, True), (1, 32768, False), (64, 4096, False)):
        for heads in (16, 128):
            for spelling in ("bf16", "fp8_ds_mla"):
                rows.append(measure(spelling, batch, tokens, heads, try_all))
                torch.cuda.empty_cache()
    json.dump({"device": torch.cuda.get_device_name(), "cases": rows}, sys.stdout, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
