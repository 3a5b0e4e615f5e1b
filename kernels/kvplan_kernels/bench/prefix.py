"""`python -m kvplan_kernels.bench.prefix --json FILE`: prefix hits and prefill timed on this GPU.

For each format and chunk size behind a quantised prefix: the fused path, the dequantise path, and dequantising followed
by torch's attention. Then plain prefill: ours, torch's, and ours with the quantised cache written. Every way is first
held to float64 on a sample of rows; one that fails has no time. The stored times fill `attention.prefix.CROSSOVER`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention

from kvplan.formats.grammar import Pair, parse_kv
from kvplan.formats.grid import Tensor as Stored
from kvplan.formats.grid import bind
from kvplan_kernels.attention.config import format_class
from kvplan_kernels.attention.prefill import prefill
from kvplan_kernels.attention.prefix import make_scratch, prefix_attention
from kvplan_kernels.attention.reference import attention_reference
from kvplan_kernels.attention.unfused import dequantise
from kvplan_kernels.bench.timing import copies_needed, graph_time
from kvplan_kernels.cache import Cache, allocate
from kvplan_kernels.store.append import append
from kvplan_kernels.store.reference import read_reference, write_reference
from kvplan_kernels.store.static import calibrate_cache
from kvplan_kernels.testing import KERNEL, differing_bytes, relative_error

FORMATS = ("fp16", "int8", "fp8_e4m3", "int4:token,asym", "int4:group/32,asym", "kivi2", "nvfp4")
CHUNKS = (1, 4, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
PREFIX_ROWS, PROMPTS = 32768, (4096, 32768)
WRITTEN = ("fp16", "int8", "int4:token,asym")
HEADS, GROUP, DIM, PAGE = 8, 4, 128, 128
SCALE = DIM**-0.5
# fp16, so that rounding an output stays far below the tolerance.
DTYPE = torch.float16
Way = Callable[[Cache, Tensor], Tensor]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True, help="file that receives the results, format by format")
    parser.add_argument(
        "--formats", nargs="*", default=FORMATS, help="formats of prefix hits; none: plain prefill only"
    )
    parser.add_argument("--chunks", nargs="*", type=int, default=CHUNKS, help="chunk sizes in rows")
    parser.add_argument("--prefix-rows", type=int, default=PREFIX_ROWS)
    parser.add_argument("--prompts", nargs="*", type=int, default=PROMPTS, help="rows of plain prefills")
    chosen = parser.parse_args()
    report: dict[str, Any] = {
        "device": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": triton.__version__,
        "geometry": {"kv_heads": HEADS, "group": GROUP, "head_dim": DIM, "prefix_rows": chosen.prefix_rows, "batch": 1},
        "prefill": [], "prefix": [],
    }  # fmt: skip
    for rows in chosen.prompts:
        report["prefill"] += prompt_rows(rows)
        chosen.json.write_text(json.dumps(report, indent=1))
    for fmt in chosen.formats:
        report["prefix"] += prefix_rows(fmt, chosen.prefix_rows, chosen.chunks)
        chosen.json.write_text(json.dumps(report, indent=1))
    return int(any(row["seconds"] is None for row in report["prefill"] + report["prefix"]))


def prefix_rows(fmt: str, prefix: int, chunks: list[int]) -> list[dict[str, Any]]:
    """Every path of one format, at every chunk size."""
    cache = filled(fmt, prefix, prefix + max(chunks))
    caches = [cache, *(cache.clone() for _ in range(copies_needed(cache.nbytes) - 1))]
    before = [read_reference(cache, role, 0) for role in ("k", "v")]
    found = []
    for rows in chunks:
        q, k, v = new_rows(rows)
        sample = sampled(q, k, v, before)
        scratch = make_scratch(q, cache, prefix)
        dense = make_scratch(q, cache, prefix + rows)
        ways: dict[str, Way] = {
            "fused": lambda c, out, q=q, k=k, v=v: prefix_attention(q, k, v, c, path="fused", out=out),
            "dequantise": lambda c, out, q=q, k=k, v=v, s=scratch: prefix_attention(
                q, k, v, c, path="dequantise", out=out, scratch=s
            ),
            "dequantise, torch": lambda c, out, q=q, k=k, v=v, s=dense: torch_attention(q, k, v, c, s),
        }
        for name, way in ways.items():
            row = {"format": fmt, "class": format_class(cache.layout), "rows": rows, "path": name}
            found.append(row | timed(way, caches, torch.empty_like(q), sample))
            show(found[-1])
    return found


def prompt_rows(rows: int) -> list[dict[str, Any]]:
    """Plain prefill of one prompt: ours, torch's, and ours with the rows written to a quantised cache."""
    q, k, v = new_rows(rows)
    sample = sampled(q, k, v, [])
    empty = [filled(fmt, 0, rows) for fmt in WRITTEN]

    def causal(cache: Cache, out: Tensor) -> Tensor:
        heads = (x.transpose(1, 2) for x in (q, k, v))
        return scaled_dot_product_attention(*heads, is_causal=True, enable_gqa=True).transpose(1, 2)

    def write(cache: Cache) -> None:
        cache.lengths.zero_()
        append(cache, k, v)

    def both(cache: Cache, out: Tensor) -> Tensor:
        write(cache)
        return prefill(q, k, v, out=out)

    ways: list[tuple[str, Way, Cache, list[Any]]] = [
        ("prefill", lambda _, out: prefill(q, k, v, out=out), empty[0], sample),
        ("torch", causal, empty[0], sample),
    ]
    for fmt, cache in zip(WRITTEN, empty, strict=True):
        write(cache)
        twin = cache.clone()
        twin.lengths.zero_()
        write_reference(twin, k, v)
        # Without a sample there is no time.
        right = not differing_bytes(cache, twin)
        ways.append((f"prefill and write {fmt}", both, cache, sample if right else []))
    found = []
    for name, way, cache, want in ways:
        row = {"rows": rows, "path": name} | timed(way, [cache], torch.empty_like(q), want)
        if row["seconds"]:
            # Products of the visible half: two matrix products of 2 operations.
            row["tflops"] = 2 * rows * (rows + 1) * HEADS * GROUP * DIM / row["seconds"] / 1e12
        found.append(row)
        show(row)
    return found


def torch_attention(q: Tensor, k: Tensor, v: Tensor, cache: Cache, dense: tuple[Tensor, Tensor]) -> Tensor:
    """Dequantise the prefix, put the chunk's rows behind it, and let torch attend."""
    dequantise(cache, *dense)
    rows, total = q.shape[1], dense[0].shape[2]
    for buffer, own in zip(dense, (k, v), strict=True):
        buffer[:, :, total - rows :].copy_(own.transpose(1, 2))
    mask = causal_lower_right(rows, total)
    return scaled_dot_product_attention(q.transpose(1, 2), *dense, attn_mask=mask, enable_gqa=True).transpose(1, 2)


def filled(fmt: str, rows: int, max_tokens: int) -> Cache:
    """A cache of one request with `rows` rows."""
    pair = parse_kv(fmt)
    formats = (pair.k, pair.v) if isinstance(pair, Pair) else (pair, pair)
    layout = bind([Stored(role, f, DIM) for role, f in zip("kv", formats, strict=True)], HEADS, "fp16")
    cache = allocate(layout, num_sequences=1, max_tokens=max_tokens, page_size=PAGE, device="cuda")
    if rows:
        _, k, v = new_rows(rows, seed=1)
        calibrate_cache(cache, k, v)
        append(cache, k, v)
    return cache


def new_rows(rows: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator("cuda").manual_seed(seed)
    shapes = ((1, rows, HEADS * GROUP, DIM), (1, rows, HEADS, DIM), (1, rows, HEADS, DIM))
    q, k, v = (torch.randn(s, generator=draw, device="cuda", dtype=DTYPE) for s in shapes)
    return q, k, v


def sampled(q: Tensor, k: Tensor, v: Tensor, before: list[Tensor]) -> list[tuple[int, Tensor]]:
    """(row, float64 output `(HQ, D)`) of a few rows: the ends, the middle, and the ends of a tile."""
    own = [x[0].transpose(0, 1).float() for x in (k, v)]
    k_all, v_all = (
        (torch.cat(pair, 1)[None] for pair in zip(before, own, strict=True)) if before else (x[None] for x in own)
    )
    rows, total = q.shape[1], k_all.shape[2]
    want = []
    for row in sorted({r for r in (0, 31, 32, rows // 2, rows - 2, rows - 1) if 0 <= r < rows}):
        length = torch.tensor([total - rows + row + 1])
        want.append((row, attention_reference(q[:, row : row + 1], k_all, v_all, length, SCALE)[0, 0]))
    return want


def timed(way: Way, caches: list[Cache], out: Tensor, want: list[tuple[int, Tensor]]) -> dict[str, Any]:
    """Errors on the sampled rows and, only if they are within the tolerance table, seconds per call."""
    found: dict[str, Any] = {"seconds": None}
    if not want:
        return found
    out.fill_(float("nan"))
    got_all = way(caches[0], out)
    got = torch.stack([got_all[0, row] for row, _ in want])
    error = relative_error(got, torch.stack([x for _, x in want]))
    found["relative_error"] = error.relative
    if not KERNEL.accepts(error) or not got_all.isfinite().all():
        return found
    timing = graph_time([partial(way, cache, out) for cache in caches], launches=4, replays=5)
    return found | {"seconds": timing.seconds, "spread": timing.spread}


def show(row: dict[str, Any]) -> None:
    name = f"{row.get('format', 'prompt'):20} {row['rows']:6} {row['path']:32}"
    rate = f" {row['tflops']:6.0f} TFLOP/s" if "tflops" in row else ""
    time = f"{row['seconds'] * 1e6:12.1f} us{rate}" if row["seconds"] else "red: no time"
    print(name, time, f"error {row['relative_error']:.1e}" if "relative_error" in row else "", flush=True)


if __name__ == "__main__":
    sys.exit(main())
