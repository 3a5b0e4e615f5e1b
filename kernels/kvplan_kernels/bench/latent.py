"""`python -m kvplan_kernels.bench.latent --json FILE`: decode of MLA latents timed on this GPU.

Main kernel and combine, by CUDA-graph replays over caches that rotate; the work list is made beforehand, as serving
does once per step. Rows that are `main` or `short` fit the recommender's time model (`tools/fit_times.py`), those
`held out` judge it. That the kernels are right is what `kvplan validate` and the tests show.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from kvplan.formats.ds_mla import latent_view
from kvplan.formats.grammar import parse_any
from kvplan.formats.grid import Tensor, bind
from kvplan_kernels.attention.latent import latent_decode, make_latent_workspace
from kvplan_kernels.attention.latent_config import LatentConfig, latent_config
from kvplan_kernels.attention.latent_unfused import latent_unfused_decode
from kvplan_kernels.attention.work import tile_starts
from kvplan_kernels.bench.baseline import bytes_read, rotating
from kvplan_kernels.bench.report import stamp
from kvplan_kernels.bench.roofline import measure_roof
from kvplan_kernels.bench.timing import graph_time
from kvplan_kernels.bench.tries import compile_ahead
from kvplan_kernels.cache import Cache, allocate
from kvplan_kernels.dialect import capability_of
from kvplan_kernels.store.latent import append_latent

SCHEMA = "kvplan.latent_bench/1"
METHOD = "main + combine kernels, CUDA graph of 24 launches or more, median of 7 replays, rotating caches above 300 MB"
NOPE, ROPE, PAGE = 512, 64, 128
SM_SCALE = 192**-0.5
FORMATS = ("bf16", "fp8_ds_mla")
K = 1024
CASES = (
    # Name, requests, tokens of each, query heads, use.
    ("16x32k", 16, 32 * K, (16, 128), "main"),
    ("64x4k", 64, 4 * K, (16, 128), "main"),
    ("1x128k", 1, 128 * K, (16, 128), "main"),
    ("1x4k", 1, 4 * K, (16, 128), "short"),
    ("8x16k", 8, 16 * K, (16, 64, 128), "held out"),
    ("4x64k", 4, 64 * K, (16, 128), "held out"),
)
CONFIGS = (
    LatentConfig(64, 4, 2, 1, columns=16),
    LatentConfig(64, 8, 2, 1, columns=16),
    LatentConfig(64, 4, 2, 1, columns=32),
    LatentConfig(64, 8, 2, 1, columns=32),
    LatentConfig(64, 8, 2, 1, columns=64),
    LatentConfig(32, 4, 2, 2, columns=16),
)
"""Shapes of a launch that --try-configs times beside the default."""
Row = dict[str, Any]


def filled(spelling: str, batch: int, tokens: int, device: str = "cuda") -> Cache:
    """A full cache of random rows."""
    layout = bind([Tensor("latent", parse_any(spelling), NOPE + ROPE, ROPE)], 1, "bf16")
    cache = allocate(layout, num_sequences=batch, max_tokens=tokens, page_size=PAGE, device=device)
    generator = torch.Generator(device).manual_seed(5)
    for first in range(0, tokens, 4096):
        shape = (batch, min(4096, tokens - first), NOPE + ROPE)
        append_latent(cache, torch.randn(shape, generator=generator, device=device).bfloat16(), max_length=tokens)
    return cache


def queries(batch: int, heads: int, device: str = "cuda") -> torch.Tensor:
    return torch.randn(batch, heads, NOPE + ROPE, device=device).bfloat16()


def compile_one(spelling: str, heads: int) -> None:
    """Into Triton's cache; lengths and requests change no kernel."""
    latent_decode(queries(2, heads), filled(spelling, 2, 256), sm_scale=SM_SCALE)


def time_fused(caches: list[Cache], q: torch.Tensor, config: LatentConfig) -> Row:
    """Time one launch shape; a shape that the compiler or the device refuses is named, not hidden."""
    cache, view = caches[0], latent_view(caches[0].layout)
    row: Row = {
        "config": {"columns": config.columns, "tokens": config.block_tokens, "warps": config.num_warps},
        "seconds": None,
    }
    try:
        space = make_latent_workspace(q, cache, config)
        out = q.new_empty((*q.shape[:-1], view.nope))
        work = tile_starts(cache.lengths, config.block_tokens, view)
        shared = {"sm_scale": SM_SCALE, "config": config, "workspace": space, "out": out, "work": work}
        timing = graph_time([partial(latent_decode, q, c, **shared) for c in caches])
    except Exception as error:
        return row | {"failed": f"{type(error).__name__}: {error}"[:200]}
    return row | {"seconds": timing.seconds, "spread": timing.spread}


def measure(spelling: str, batch: int, tokens: int, heads: int, *, unfused: bool, try_all: bool, device: str) -> Row:
    """Bytes, operations and seconds of one case, by the table's launch shape."""
    cache, q = filled(spelling, batch, tokens, device), queries(batch, heads, device)
    view, caches = latent_view(cache.layout), rotating(cache)
    default = latent_config(view, PAGE, heads, capability_of(q.device))
    operations = 2 * batch * tokens * heads * (view.dim + view.nope)
    row = {"bytes": bytes_read(cache), "flops": operations} | time_fused(caches, q, default)
    if try_all:
        row["tries"] = [time_fused(caches, q, config) for config in CONFIGS]
    if unfused:
        scratch = q.new_empty(batch, tokens, NOPE + ROPE)
        calls = [partial(latent_unfused_decode, q, c, SM_SCALE, uniform=True, scratch=scratch) for c in caches]
        row["unfused_seconds"] = graph_time(calls, launches=4, replays=3).seconds
    return row


def rows(chosen: argparse.Namespace) -> Iterator[Row]:
    """One after the other, shape by shape."""
    for name, batch, tokens, all_heads, use in CASES:
        if name not in chosen.cases:
            continue
        for heads in all_heads:
            for spelling in chosen.formats:
                row: Row = {"latent": parse_any(spelling).spelling, "case": name, "use": use}
                row |= {"requests": batch, "tokens": batch * tokens, "heads": heads}
                how = {"unfused": chosen.unfused, "try_all": chosen.try_configs, "device": chosen.device}
                try:
                    row |= measure(spelling, batch, tokens, heads, **how)
                except Exception as error:
                    row |= {"seconds": None, "failed": f"{type(error).__name__}: {error}"[:300]}
                yield row
                if torch.cuda.is_available():
                    torch.cuda.empty_cache()


def line(row: Row) -> str:
    if not row["seconds"]:
        return f"{row['case']:7} {row['heads']:4} heads  {row['latent']:12} {row.get('failed')}"
    rate, flops = row["bytes"] / row["seconds"] / 1e12, row["flops"] / row["seconds"] / 1e12
    time = f"{row['seconds'] * 1e6:8.1f} us"
    return f"{row['case']:7} {row['heads']:4} heads  {row['latent']:12} {time} {rate:6.2f} TB/s {flops:6.0f} TFLOP/s"


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    names = [case[0] for case in CASES]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True, help="file that receives the results, row by row")
    parser.add_argument("--formats", nargs="+", default=FORMATS, choices=FORMATS)
    parser.add_argument("--cases", nargs="+", default=names, choices=names)
    parser.add_argument("--unfused", action="store_true", help="time dequantising, then torch's attention, too")
    parser.add_argument("--try-configs", action="store_true", help="time other launch shapes too")
    parser.add_argument("--jobs", type=int, default=8, help="processes that compile beforehand; 0: none")
    parser.add_argument("--device", default="cuda", help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def main() -> int:
    """Exit code 1 if a row has no time."""
    chosen = arguments()
    if chosen.jobs:
        heads = sorted({n for case in CASES if case[0] in chosen.cases for n in case[3]})
        compile_ahead([partial(compile_one, f, n) for f in chosen.formats for n in heads], chosen.jobs)
    roof = measure_roof()
    report = stamp(SCHEMA, "latent", METHOD)
    report |= {"roof": {"bytes_per_second": roof.bytes_per_second, "config": roof.config}, "rows": []}
    for row in rows(chosen):
        report["rows"].append(row)
        print(line(row), flush=True)
        chosen.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return int(not all(row["seconds"] for row in report["rows"]))


if __name__ == "__main__":
    sys.exit(main())
