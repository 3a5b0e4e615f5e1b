"""Times of one format: fused, unfused and 16-bit paths, all by CUDA-graph replays over rotating copies."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from kvplan_kernels.attention.config import DecodeConfig
from kvplan_kernels.attention.variant import Variant
from kvplan_kernels.bench.timing import Timing, graph_time
from kvplan_kernels.cache import Cache
from kvplan_kernels.testing import bytes_taken, relative_error
from kvplan_kernels.tuning.launch import Launch

from kvplan.validate.kinds.table import kind_in
from kvplan.validate.report import Check, LaunchShape

UNFUSED_ERROR = 0.03
"""Large keys rounded to bf16 alone move outputs by some 1%; a path that computes something else is far above."""


def fused_time(
    q: torch.Tensor,
    caches: Sequence[Cache],
    sm_scale: float,
    variant: Variant,
    config: DecodeConfig,
    *,
    fp8_domain: bool = False,
) -> Timing:
    """Main kernel and combine, on preallocated workspace and output.

    The work list is made beforehand: all layers of a step share it.
    """
    kind = kind_in(caches[0].layout)
    space = kind.workspace(q, caches[0], config)
    how: dict[str, Any] = {
        "sm_scale": sm_scale,
        "variant": variant,
        "fp8_domain": fp8_domain,
        "out": q.new_empty(*q.shape[:2], kind.value_dim(caches[0].layout)),
        "workspace": space,
        "config": config,
    }
    kind.decode(q, caches[0], **how)
    return graph_time([partial(kind.decode, q, cache, work=space.tile_starts, **how) for cache in caches])


def unfused_time(q: torch.Tensor, caches: Sequence[Cache], sm_scale: float, tokens: int) -> Timing:
    """Dequantise to a preallocated 16-bit copy in HBM, then torch attention on it; all requests `tokens` long."""
    kind = kind_in(caches[0].layout)
    rows = kind.scratch(q, caches[0], tokens)

    def call(cache: Cache) -> None:
        kind.unfused(q, cache, sm_scale, num_tokens=tokens, uniform=True, scratch=rows)

    return graph_time([partial(call, cache) for cache in caches], launches=6)


def fusion_check(
    q: torch.Tensor, cache: Cache, sm_scale: float, variant: Variant, dense_bytes: int, config: DecodeConfig
) -> Check:
    """Peak memory of fused decode minus before: at most the declared workspace, under 5% of a 16-bit copy.

    Parts of a launch that do not grow with the tokens may be more than that beside a short cache.
    """
    kind = kind_in(cache.layout)
    out = q.new_empty(*q.shape[:2], kind.value_dim(cache.layout))
    declared = kind.workspace(q, cache, config).nbytes
    grown = bytes_taken(partial(kind.decode, q, cache, sm_scale=sm_scale, variant=variant, out=out, config=config))
    passed = grown <= declared and declared < max(0.05 * dense_bytes, kind.fixed_scratch_bytes)
    detail = f"decode took {grown:,} bytes, declared {declared:,}, a 16-bit copy {dense_bytes:,}"
    return Check(name="fusion is real", passed=passed, detail=detail)


def unfused_check(q: torch.Tensor, cache: Cache, sm_scale: float, reference: torch.Tensor) -> Check:
    """The path that fusion is compared with must compute the same; it rounds what it dequantises to 16 bit."""
    error = relative_error(kind_in(cache.layout).unfused(q, cache, sm_scale), reference)
    detail = f"relative L2 {error.relative:.1e} against fp64 on the dequantised codes, at most {UNFUSED_ERROR}"
    return Check(name="unfused computes the same", passed=error.relative <= UNFUSED_ERROR, detail=detail)


def launch_shape(launch: Launch) -> LaunchShape:
    """The kernel configuration in words."""
    c = launch.config
    programs = f"{c.programs} programs" if c.programs else f"{c.ctas_per_sm} programs per SM"
    cap = f", at most {c.maxnreg} registers" if c.maxnreg else ""
    text = f"tile {c.block_tokens}, warps {c.num_warps}, stages {c.num_stages}, {programs}{cap}"
    return LaunchShape(shape=text, source=launch.source)
