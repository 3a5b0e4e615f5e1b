"""Time from a key to the drawn screen in `kvplan tui`, without a terminal.

python benchmarks/tui.py [--presses N] [--json FILE]

Each case changes the context with the right key, then back. `form` is the time until the form shows the new value;
`plan` until the screen with the new plan (bar, parts, verdict, launch command) is drawn, a fresh plan each time. The
tables of other formats and contexts follow 0.15 s after the last key and are not part of either.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import kvplan.cli.main  # noqa: F401  (sets how often garbage is looked for, as the command does)
from kvplan.tui.app import PlanApp
from kvplan.tui.choices import Choices
from kvplan.tui.field import Field

TARGET = 0.050
CASES = {
    "most layers, vllm": Choices("llama-3.1-405b", "h200", "vllm", context="4k", batch="8", tp="8"),
    "most parameters, vllm": Choices("kimi-k3", "b200", "vllm", context="4k", batch="8", tp="8"),
    "most layers, transformers": Choices("llama-3.1-405b", "h200", "transformers", context="4k", batch="8"),
    "slowest plan known": Choices("deepseek-v4-flash", "h200", "vllm", context="4k", batch="8"),
    "usual": Choices("llama-3.1-8b", "h100-80gb", context="4k"),
}
"""Name to where the form stands before the keys."""
SHOWN = ("form_median", "plan_median", "plan_best", "plan_worst")
SIZES = ((80, 24), (200, 60))


async def measure(start: Choices, size: tuple[int, int], presses: int) -> dict[str, float]:
    """Medians, the best and the worst of `presses` keys."""
    app = PlanApp(start)
    form: list[float] = []
    plan: list[float] = []
    async with app.run_test(size=size) as pilot:
        await drawn(app)
        if app.problem:
            raise SystemExit(f"{start}: {app.problem.message}")
        app.query_one("#field-context", Field).focus()
        await pilot.pause(1.5)
        for turn in range(presses):
            app._planner._plans.clear()
            key = "right" if turn % 6 < 3 else "left"
            began = time.perf_counter()
            app.simulate_key(key)
            while app.drawn == app.choices:
                await asyncio.sleep(0)
            app.call_after_refresh(lambda began=began: form.append(time.perf_counter() - began))
            plan.append(await drawn(app) - began)
            await pilot.pause(0.02)
    return {
        "form_median_seconds": round(statistics.median(form), 4),
        "form_worst_seconds": round(max(form), 4),
        "plan_best_seconds": round(min(plan), 4),
        "plan_median_seconds": round(statistics.median(plan), 4),
        "plan_worst_seconds": round(max(plan), 4),
    }


async def drawn(app: PlanApp) -> float:
    """When the screen shows the plan of the form."""
    while app.drawn != app.choices:
        await asyncio.sleep(0.0005)
    return app.drawn_at


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--presses", type=int, default=30)
    parser.add_argument("--json", type=Path, help="also write the figures here")
    args = parser.parse_args()
    result: dict[str, Any] = {
        "benchmark": "tui",
        "python": platform.python_version(),
        "textual": version("textual"),
        "load": round(os.getloadavg()[0], 2),
        "target_seconds": TARGET,
        "presses": args.presses,
        "cases": [],
    }
    for name, start in CASES.items():
        for size in SIZES:
            times = asyncio.run(measure(start, size, args.presses))
            asked = {"model": start.model, "gpu": start.gpu, "engine": start.engine}
            result["cases"].append({"case": name, **asked, "columns": size[0], "rows": size[1], **times})
            form, plan, best, worst = (times[f"{each}_seconds"] * 1e3 for each in SHOWN)
            head = f"{name:26} {size[0]:3} x {size[1]}"
            print(f"{head}: form {form:5.1f} ms, plan {plan:5.1f} ms (best {best:.1f}, worst {worst:.1f})")
    if args.json:
        args.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
