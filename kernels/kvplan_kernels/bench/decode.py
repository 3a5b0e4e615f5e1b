"""`python -m kvplan_kernels.bench.decode --json FILE`: decode attention timed on this GPU, against its targets.

Main kernel and combine, by CUDA-graph replays over caches that rotate. The work list is made beforehand, as serving
does once per step for all layers; the time with it is in the file too. Every row is first held to float64 attention on
the dequantised codes of a sample of (request, KV head) pairs: one that fails has no speed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kvplan_kernels.attention.config import DecodeConfig
from kvplan_kernels.attention.decode import decode, make_workspace
from kvplan_kernels.attention.work import tile_starts
from kvplan_kernels.bench.baseline import bytes_read, dense_time, rotating, torch_ways
from kvplan_kernels.bench.cases import BASELINE, CASES, ERROR_MUST, FORMATS, Case, Goal, goal, layout_for, measured
from kvplan_kernels.bench.filled import Sample, filled, queries, sample_error, sampled
from kvplan_kernels.bench.peers import peer_times
from kvplan_kernels.bench.report import stamp, with_reasons
from kvplan_kernels.bench.roofline import measure_roof
from kvplan_kernels.bench.timing import graph_time
from kvplan_kernels.bench.tries import compile_ahead, launch_once, table_entry, tries
from kvplan_kernels.cache import Cache
from kvplan_kernels.testing import KERNEL

SCHEMA = "kvplan.decode_bench/1"
METHOD = (
    "main + combine kernels, CUDA graph of 24 launches or more, median of 7 replays, caches of more than 300 MB in all "
    "rotating; seconds without the work list, which all layers of a step share; error: relative L2 against float64 on "
    "the dequantised codes of 4 (request, KV head) pairs"
)
Row = dict[str, Any]


def main() -> int:
    chosen = arguments()
    formats, cases = chosen.formats, chosen.cases
    items = list(measured(formats, cases))
    if chosen.jobs:
        compile_ahead(compile_jobs(items, chosen), chosen.jobs)
    old = json.loads(chosen.json.read_text(encoding="utf-8")) if chosen.json.exists() else {}
    report = start_report()
    print(HEADER, flush=True)
    case_formats: dict[str, list[str]] = {}
    for case, fmt in items:
        case_formats.setdefault(case.name, []).append(fmt)
    for case in (c for c in CASES if c.name in case_formats):
        measure_case(report, case, case_formats[case.name], chosen)
        report["rows"] = with_reasons(report["rows"], old.get("rows", []))
        chosen.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    return int(not all(row["green"] for row in report["rows"]))


def compile_jobs(items: Sequence[tuple[Case, str]], chosen: argparse.Namespace) -> list[Callable[[], object]]:
    """One job for each kernel, several where many launch shapes are tried: lengths and tables change no kernel."""
    device = torch.device(chosen.device)
    kernels = {(fmt, case.group, case.dim, table_entry(fmt, case, device)): case.name for case, fmt in reversed(items)}
    shares = max(1, chosen.jobs // len(kernels)) if chosen.try_configs else 1
    return [
        partial(launch_once, name, fmt, share, shares, chosen.try_configs)
        for (fmt, *_), name in kernels.items()
        for share in range(shares)
    ]


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True, help="file that receives the results, case by case")
    parser.add_argument("--formats", nargs="+", default=FORMATS, choices=FORMATS, metavar="FORMAT")
    parser.add_argument("--cases", nargs="+", default=[c.name for c in CASES], choices=[c.name for c in CASES])
    parser.add_argument("--try-configs", action="store_true", help="time other launch shapes too and print the best")
    parser.add_argument("--peers", action="store_true", help="time FlashInfer too, where it can be imported")
    parser.add_argument("--jobs", type=int, default=8, help="processes that compile beforehand; 0: none")
    parser.add_argument("--device", default="cuda", help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def start_report() -> Row:
    """Where and how, and the read roof."""
    roof = measure_roof()
    found: Row = {"roof": {"bytes_per_second": roof.bytes_per_second, "config": roof.config}}
    return stamp(SCHEMA, "decode", METHOD) | found | {"baselines": [], "peers": [], "rows": [], "tries": []}


def measure_case(report: Row, case: Case, formats: list[str], chosen: argparse.Namespace) -> None:
    """All formats at one shape, 16 bit first: the others are compared with the fastest 16-bit way."""
    baseline, rival = {"case": case.name} | torch_baseline(case, chosen.device), None
    report["baselines"].append(baseline)
    if chosen.peers and case.use in ("main", "short"):
        peers = peer_times(case)
        report["peers"] += peers
        for peer in peers:
            print(peer_line(peer), flush=True)
            if peer["bits"] == 16:
                baseline[peer["name"]] = peer["seconds"]
        rival = min((p["seconds"] for p in peers if p["bits"] == 8 and p["seconds"]), default=None)
    for fmt in formats:
        row = {"format": fmt, "case": case.name, "use": case.use, "reason": None}
        try:
            row |= measure(fmt, case, report, chosen)
        except Exception as error:
            row |= {"seconds": None, "green": False, "failed": f"{type(error).__name__}: {error}"[:300]}
        if fmt == BASELINE:
            baseline["kernel"] = row["seconds"]
        row |= judge(row, goal(fmt, case), best_16_bit(baseline), rival, report["roof"]["bytes_per_second"])
        report["rows"].append(row)
        print(line(row), flush=True)


def measure(fmt: str, case: Case, report: Row, chosen: argparse.Namespace) -> Row:
    """Bytes, error and seconds of one format at one shape, by the table's launch shape."""
    layout = layout_for(fmt, case)
    cache, q = filled(layout, case, chosen.device), queries(layout, case, chosen.device)
    sample = sampled(q, cache, case.dim**-0.5)
    config = table_entry(fmt, case, q.device)
    caches = rotating(cache)
    names = [layout.tensor(role).spelling for role in ("k", "v")]
    shape = {"requests": len(case.lengths), "tokens": sum(case.lengths), "kv_heads": case.kv_heads}
    row = {"k": names[0], "v": names[1], **shape, "group": case.group, "dim": case.dim, "bytes": bytes_read(cache)}
    row |= timed(q, caches, sample, config)
    if chosen.try_configs:
        others = [timed(q, caches, sample, c, replays=3) for c in tries(fmt, case, q.device)[1:]]
        found = [{"format": fmt, "case": case.name} | t for t in (row_times(row), *others)]
        report["tries"] += found
        print(tries_line(found), flush=True)
    return row


def row_times(row: Row) -> Row:
    return {name: row[name] for name in ("config", "error", "green", "seconds")}


def timed(q: Tensor, caches: list[Cache], sample: Sample, config: DecodeConfig, replays: int = 7) -> Row:
    """Error of one launch shape and, if the tolerance table accepts it, its seconds; a shape that fails is named."""
    cache, scale = caches[0], q.shape[-1] ** -0.5
    row: Row = {"config": asdict(config), "error": None, "green": False, "seconds": None}
    try:
        error = sample_error(q, cache, sample, scale, config)
        row |= {"error": error.relative, "max_error": error.max_ratio, "green": KERNEL.accepts(error)}
        if not row["green"]:
            return row
        shared: Row = {"sm_scale": scale, "config": config, "workspace": make_workspace(q, cache, config)}
        shared["out"] = q.new_empty(*q.shape[:2], cache.layout.view("v").dim)
        work = tile_starts(cache.lengths, config.block_tokens, cache.layout.view("v"))
        timing = graph_time([partial(decode, q, c, work=work, **shared) for c in caches], replays=replays)
        with_list = graph_time([partial(decode, q, c, **shared) for c in caches], replays=replays)
    except Exception as failure:
        return row | {"green": False, "failed": f"{type(failure).__name__}: {failure}"[:300]}
    seconds = {"seconds": timing.seconds, "spread": timing.spread, "copies": timing.copies}
    return row | seconds | {"seconds_with_work_list": with_list.seconds}


def torch_baseline(case: Case, device: str) -> Row:
    """torch's attention on dense rows of 16 bit; it has no way to read requests of different lengths."""
    if not case.uniform:
        return {"torch": None}
    q = queries(layout_for(BASELINE, case), case, device)
    shape = (len(case.lengths), case.kv_heads, case.lengths[0], case.dim)
    k, v = (torch.randn(shape, dtype=q.dtype, device=device) for _ in range(2))
    return {"torch": dense_time(torch_ways(q, case.dim**-0.5), k, v).seconds}


def best_16_bit(baseline: Row) -> float | None:
    """The fastest of the 16-bit ways that have a time."""
    return min((s for name, s in baseline.items() if name != "case" and s), default=None)


def judge(row: Row, want: Goal, best: float | None, rival: float | None, roof: float) -> Row:
    """Shares, musts and which are missed; None where there is no must or no time.

    Args:
        best: seconds of the fastest 16-bit way of this run.
        rival: seconds of the fastest fp8 peer; its must counts only where a peer was timed.
    """
    seconds, error = row["seconds"], row.get("error")
    rate = row["bytes"] / seconds if seconds else None
    fraction = rate / roof if rate else None
    speedup, rival_speedup = (other / seconds if other and seconds else None for other in (best, rival))
    found = {
        "bytes_per_second": rate, "fraction": fraction, "fraction_must": want.fraction,
        "fraction_stretch": want.fraction_stretch, "speedup": speedup, "speedup_must": want.speedup,
        "speedup_stretch": want.speedup_stretch, "rival_speedup": rival_speedup, "rival_must": want.rival,
        "microseconds_must": want.microseconds, "error_ok": error is not None and error <= ERROR_MUST,
    }  # fmt: skip
    misses = {
        "fraction": below(fraction, want.fraction),
        "speedup": below(speedup, want.speedup),
        "rival": rival is not None and below(rival_speedup, want.rival),
        "microseconds": want.microseconds is not None and not (seconds and seconds * 1e6 <= want.microseconds),
        "error": not found["error_ok"],
    }
    return found | {"misses": [name for name, missed in misses.items() if missed]}


def below(got: float | None, must: float | None) -> bool:
    return must is not None and (got is None or got < must)


HEADER = (
    f"{'format':20} {'case':16} {'us':>8} {'TB/s':>5} {'share':>6} {'must':>5}    {'x 16 bit':>8} {'must':>5}    "
    f"{'error':>7}  misses"
)


def line(row: Row) -> str:
    """One row of the printed table."""
    if not row["seconds"]:
        why = row.get("failed") or f"red: error {row.get('error')}, no speed"
        return f"{row['format']:20} {row['case']:16} {why}"
    marks = ["no" if m in row["misses"] else "ok" for m in ("fraction", "speedup")]
    shown = [
        f"{row['seconds'] * 1e6:8.1f} {row['bytes_per_second'] / 1e12:5.2f} {row['fraction']:6.3f}",
        f"{row['fraction_must']:5.3f} {marks[0]}" if row["fraction_must"] else "    -   ",
        f"{row['speedup']:8.2f}" if row["speedup"] else "       -",
        f"{row['speedup_must']:5.2f} {marks[1]}" if row["speedup_must"] else "    -   ",
        f"{row['error']:8.1e}  {', '.join(row['misses'])}",
    ]
    return " ".join([f"{row['format']:20} {row['case']:16}", *shown])


def tries_line(found: list[Row]) -> str:
    """The best launch shapes of one format at one shape, beside the table's."""
    best = sorted((t for t in found if t["seconds"]), key=lambda t: t["seconds"])[:3]
    return "    " + "; ".join(f"{config_text(t['config'])} {t['seconds'] * 1e6:.1f} us" for t in best)


def config_text(config: Row) -> str:
    cap = f", {config['maxnreg']} registers" if config["maxnreg"] else ""
    grid = f"{config['programs']} programs" if config.get("programs") else f"{config['ctas_per_sm']} per SM"
    return f"({config['block_tokens']}, {config['num_warps']} warps, {config['num_stages']} stages, {grid}{cap})"


def peer_line(peer: Row) -> str:
    time = f"{peer['seconds'] * 1e6:8.1f}" if peer["seconds"] else peer.get("failed", "red: no speed")
    return f"{peer['name']:20} {peer['case']:16} {time}"


if __name__ == "__main__":
    sys.exit(main())
