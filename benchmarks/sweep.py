"""Plans a second of the sweep API on one core: requests over models, formats, tp, GPUs, contexts and batches.

python benchmarks/sweep.py [--plans N] [--json FILE]

Every kind of request (model x format x tp x GPU) is prepared inside the timed part; requests are built outside it.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from itertools import cycle, islice, product
from pathlib import Path

from kvplan import __version__
from kvplan.memory.groups import roles
from kvplan.plan import PlanRequest, make_plan
from kvplan.plan.sweep import sweep
from kvplan.specs.load import load_model

MODELS = ("llama-3.1-8b", "llama-3.1-70b", "gemma-3-27b", "deepseek-v3.2", "qwen3-next-80b-a3b", "gpt-oss-120b")
FORMATS = ("bf16", "fp8_e4m3", "fp8_e4m3:token")
KV_FORMATS = (*FORMATS, "int8", "int8:channel/32,asym")
GPUS = ("h200", "b200")
TARGET = 20_000


def requests(count: int) -> list[PlanRequest]:
    """`count` requests; kinds alternate, contexts and batches differ from one request to the next."""
    kinds = []
    for model in MODELS:
        formats = KV_FORMATS if "k" in roles(load_model(model)) else FORMATS
        kinds += [{"model": model, "kv": kv, "gpu": gpu, "tp": tp} for kv, gpu, tp in product(formats, GPUS, (1, 2))]
    return [
        PlanRequest(**kind, context=1 + i * 7919 % 131_072, batch=1 + i % 64)
        for i, kind in enumerate(islice(cycle(kinds), count))
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plans", type=int, default=60_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, help="also write the figures here")
    args = parser.parse_args()
    made = requests(args.plans)
    rates = []
    for _ in range(args.repeats):
        start = time.perf_counter()
        rows = sum(1 for _ in sweep(made))
        rates.append(rows / (time.perf_counter() - start))
    start = time.perf_counter()
    for request in made[:200]:
        make_plan(request)
    plans = 200 / (time.perf_counter() - start)
    result = {
        "benchmark": "sweep",
        "kvplan": __version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "plans": args.plans,
        "plans_per_second": round(statistics.median(rates)),
        "plans_per_second_all": [round(r) for r in rates],
        "make_plan_per_second": round(plans),
        "target": TARGET,
    }
    print(f"sweep: {result['plans_per_second']:,} plans a second (median of {args.repeats}; target {TARGET:,})")
    print(f"make_plan, specs read anew each time: {result['make_plan_per_second']:,} plans a second")
    if args.json:
        args.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
