"""How long `kvplan recommend` searches, and that pruning loses nothing: python benchmarks/recommend.py [FILE.json]

For each model the pruned and the exhaustive search of the whole space, CPU seconds in one process, and whether both
have the same Pareto set.
"""

from __future__ import annotations

import json
import platform
import sys
import time
from pathlib import Path
from typing import Any

from kvplan.recommend import RecommendRequest
from kvplan.recommend.bounds import bounds_of
from kvplan.recommend.evidence import Evidence
from kvplan.recommend.scored import Scored, Scorer, pareto
from kvplan.recommend.search import Search
from kvplan.specs.load import load_device, load_model

CASES = (
    ("llama-3.1-8b", "h200", 1, 32768, 40),
    ("deepseek-v3", "h200", 8, 32768, 64),
    ("qwen3-next-80b-a3b", "h200", 2, 32768, 40),
    ("gemma-3-4b", "l4", 1, 32768, 8),
    ("qwen2.5-7b", "l4", 1, 8192, 8),
)
MOST_SECONDS = 10


def search(request: RecommendRequest, exhaustive: bool) -> tuple[list[Scored], float]:
    """All choices, and the CPU seconds that they took."""
    spec, device = load_model(request.model), load_device(request.gpu)
    evidence = Evidence(spec)
    one = Search(request, spec, device, evidence, Scorer(evidence, device, bounds_of(request), None))
    start = time.process_time()
    return one.run(exhaustive).choices, time.process_time() - start


def row(model: str, gpu: str, gpus: int, context: int, concurrency: int) -> dict[str, Any]:
    request = RecommendRequest(model=model, gpu=gpu, gpus=gpus, context=context, concurrency=concurrency)
    pruned, seconds = search(request, False)
    whole, all_seconds = search(request, True)
    fronts = [{c.point: (c.choice, c.resolved.sharding) for c in pareto(found)} for found in (pruned, whole)]
    return {
        "model": model,
        "gpu": gpu,
        "gpus": gpus,
        "pruned": {"choices": len(pruned), "seconds": round(seconds, 3)},
        "exhaustive": {"choices": len(whole), "seconds": round(all_seconds, 3)},
        "pareto": len(fronts[1]),
        "same": fronts[0] == fronts[1],
    }


def main() -> int:
    """Print a row for each model; 1 if one is too slow or the sets differ."""
    row(*CASES[0])
    rows = [row(*case) for case in CASES]
    for r in rows:
        print(json.dumps(r))
    if len(sys.argv) > 1:
        made = {"command": f"python benchmarks/recommend.py {sys.argv[1]}", "python": platform.python_version()}
        Path(sys.argv[1]).write_text(json.dumps(made | {"rows": rows}, indent=1) + "\n", encoding="utf-8")
    return int(any(not r["same"] or r["exhaustive"]["seconds"] > MOST_SECONDS for r in rows))


if __name__ == "__main__":
    sys.exit(main())
