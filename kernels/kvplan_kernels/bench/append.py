"""`python -m kvplan_kernels.bench.append --json FILE`: quantise-and-append timed on this GPU, against its targets.

One token for each of 64 requests, as a decode step writes it, and bulk writes of 4k tokens and more against the speed
of a plain copy. Formats whose residual is flushed are timed at each of R following lengths: mean and worst step. A
format whose bytes differ from the reference writer's has no speed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kvplan_kernels.bench.baseline import bytes_read
from kvplan_kernels.bench.cases import FORMATS, PAGE, Case, layout_for
from kvplan_kernels.bench.report import stamp, with_reasons
from kvplan_kernels.bench.timing import Timing, captured, copies_needed, graph_time, replay_time
from kvplan_kernels.bench.tries import compile_ahead
from kvplan_kernels.cache import Cache, allocate
from kvplan_kernels.store.append import append
from kvplan_kernels.store.reference import write_reference
from kvplan_kernels.store.static import calibrate_cache
from kvplan_kernels.testing import SENTINELS, differing_bytes, poison

SCHEMA = "kvplan.append_bench/1"
METHOD = (
    "CUDA graph in which every launch has a cache and rows of its own, median of 7 replays, lengths reset before each; "
    "share: bytes read and written over those of a plain copy of 512 MiB, timed the same way"
)
ONE_TOKEN_MUST, BULK_MUST = 6.0, 0.70
REQUESTS, START, CAPACITY = 64, 1024, 16 * PAGE
BULK = ((1, 4096), (16, 4096), (1, 32768))
COPY_BYTES = 2**29
SHAPE = Case("", ())
"""Heads and channels."""
LEAST_LAUNCHES = 8
CHECKED = (3, 320, 40)
"""Of the comparison with the reference: requests, rows at once, single rows after them."""
Row = dict[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True, help="file that receives the results, format by format")
    parser.add_argument("--formats", nargs="+", default=FORMATS, choices=FORMATS, metavar="FORMAT")
    parser.add_argument("--jobs", type=int, default=8, help="processes that compile beforehand; 0: none")
    parser.add_argument("--device", default="cuda", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.jobs:
        compile_ahead([partial(writes_right, fmt, chosen.device) for fmt in chosen.formats], chosen.jobs)
    old = json.loads(chosen.json.read_text(encoding="utf-8")) if chosen.json.exists() else {}
    copy = copy_rate(chosen.device)
    report: Row = stamp(SCHEMA, "append", METHOD) | {"copy_bytes_per_second": copy, "rows": []}
    for fmt in chosen.formats:
        for row in measure(fmt, copy, chosen.device):
            report["rows"].append(row)
            print(line(row), flush=True)
        report["rows"] = with_reasons(report["rows"], old.get("rows", []))
        chosen.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return int(not all(row["green"] for row in report["rows"]))


def measure(fmt: str, copy: float, device: str) -> list[Row]:
    """The rows of one format; without a time where its bytes are wrong or its launch fails."""
    try:
        green, failed = writes_right(fmt, device), None
        timed = [one_token(fmt, device), *(bulk(fmt, *shape, copy, device) for shape in BULK)] if green else []
    except Exception as error:
        green, failed, timed = False, f"{type(error).__name__}: {error}"[:300], []
    if not timed:
        return [{"format": fmt, "case": "all", "green": False, "seconds": None, "misses": ["bytes"], "failed": failed}]
    return [{"format": fmt, "green": green, "reason": None} | row for row in timed]


def writes_right(fmt: str, device: str) -> bool:
    """Whether the kernel's bytes are the reference writer's, rows at once and one by one."""
    requests, many, few = CHECKED
    cache = empty(fmt, requests, device)
    twin = empty(fmt, requests, device)
    k, v = new_rows(fmt, requests, many + few, device)
    for each in (cache, twin):
        poison(each, SENTINELS[0])
        calibrate_cache(each, k, v)
    append(cache, k[:, :many].contiguous(), v[:, :many].contiguous())
    for i in range(many, many + few):
        append(cache, k[:, i : i + 1].contiguous(), v[:, i : i + 1].contiguous())
    write_reference(twin, k, v)
    return not differing_bytes(cache, twin)


def one_token(fmt: str, device: str) -> Row:
    """One token for every request; mean and worst of the steps after which the residuals have been flushed once."""
    calls, caches = prepared(fmt, REQUESTS, 1, CAPACITY, 24, device)
    layout = caches[0].layout
    steps = max(t.recent if t.flush == "whole" else 1 for t in layout.tensors)
    graph = captured(calls, warm_up=calls[:1])
    found = []
    for step in range(steps):
        reset = partial(set_lengths, caches, START + step)
        found.append(replay_time(graph, len(calls), len(caches), 7 if steps == 1 else 3, before=reset).seconds)
    mean, worst = sum(found) / steps, max(found)
    flushed = any(t.recent for t in layout.tensors)
    misses = [] if flushed or mean * 1e6 <= ONE_TOKEN_MUST else ["microseconds"]
    must = None if flushed else ONE_TOKEN_MUST
    row = {"case": f"{REQUESTS} x 1 token", "requests": REQUESTS, "tokens": 1, "steps": steps, "seconds": mean}
    return row | {"worst_seconds": worst, "microseconds_must": must, "misses": misses}


def bulk(fmt: str, requests: int, tokens: int, copy: float, device: str) -> Row:
    """Rows of a prompt at once."""
    rows_bytes = 2 * 2 * requests * tokens * SHAPE.kv_heads * SHAPE.dim
    launches = max(LEAST_LAUNCHES, copies_needed(rows_bytes))
    calls, caches = prepared(fmt, requests, tokens, tokens, launches, device)
    graph = captured(calls, warm_up=calls[:1])
    timing = replay_time(graph, launches, launches, before=partial(set_lengths, caches, 0))
    nbytes = rows_bytes + bytes_read(caches[0])
    share = nbytes / timing.seconds / copy
    row = {"case": f"{requests} x {tokens} tokens", "requests": requests, "tokens": tokens, "bytes": nbytes}
    row |= {"seconds": timing.seconds, "spread": timing.spread, "share": share, "share_must": BULK_MUST}
    return row | {"misses": [] if share >= BULK_MUST else ["share"]}


def prepared(
    fmt: str, requests: int, tokens: int, capacity: int, launches: int, device: str
) -> tuple[list[Callable[[], object]], list[Cache]]:
    """One append per launch, each to a cache of its own and from rows of its own."""
    k, v = new_rows(fmt, requests, tokens, device)
    first = empty(fmt, requests, device, capacity)
    calibrate_cache(first, k, v)
    caches = [first, *(first.clone() for _ in range(launches - 1))]
    for cache in caches[1:]:
        cache.lengths = first.lengths.clone()
    return [partial(append, c, k.clone(), v.clone()) for c in caches], caches


def set_lengths(caches: Sequence[Cache], length: int) -> None:
    for cache in caches:
        cache.lengths.fill_(length)


def empty(fmt: str, requests: int, device: str, capacity: int = CAPACITY) -> Cache:
    layout = layout_for(fmt, SHAPE)
    return allocate(layout, num_sequences=requests, max_tokens=capacity, page_size=PAGE, device=device)


def new_rows(fmt: str, requests: int, tokens: int, device: str) -> tuple[Tensor, Tensor]:
    draw = torch.Generator(device).manual_seed(5)
    dtype = torch.bfloat16 if fmt == "bf16" else torch.float16
    shape = (requests, tokens, SHAPE.kv_heads, SHAPE.dim)
    k, v = (torch.randn(shape, generator=draw, device=device, dtype=dtype) for _ in range(2))
    return k, v


def copy_rate(device: str) -> float:
    """Bytes per second, read and written, of the plain copy that bulk writes are compared with."""
    pairs = [[torch.ones(COPY_BYTES, dtype=torch.uint8, device=device) for _ in range(2)] for _ in range(2)]
    timing: Timing = graph_time([partial(a.copy_, b) for a, b in pairs])
    return 2 * COPY_BYTES / timing.seconds


def line(row: Row) -> str:
    """One row of the printed table."""
    name = f"{row['format']:20} {row['case']:18}"
    if not row["seconds"]:
        return f"{name} {row.get('failed') or 'red: bytes differ from the reference, no speed'}"
    mark = "no" if row["misses"] else "ok"
    if "share" in row:
        return f"{name} {row['seconds'] * 1e6:9.1f} us  {row['share']:.2f} of a copy, must {row['share_must']} {mark}"
    worst = f", worst {row['worst_seconds'] * 1e6:.1f}" if row["steps"] > 1 else ""
    must = f", must {row['microseconds_must']} {mark}" if row["microseconds_must"] else ""
    return f"{name} {row['seconds'] * 1e6:9.1f} us{worst}{must}"


if __name__ == "__main__":
    sys.exit(main())
