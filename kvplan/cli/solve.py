"""`kvplan solve`: how many users, how long a context, how many GPUs, which share of the memory."""

from __future__ import annotations

from typing import Any

import click

from kvplan.cli.options import (
    CACHE_OPTIONS,
    ENGINE_OPTIONS,
    GPU_OPTIONS,
    SHARDING_OPTIONS,
    json_option,
    model_argument,
    plan_options,
)
from kvplan.plan.types import PlanRequest


@click.command("solve")
@model_argument
@plan_options(*CACHE_OPTIONS, *SHARDING_OPTIONS, *ENGINE_OPTIONS, *GPU_OPTIONS, "draft", "calibration")
@json_option
def command(as_json: bool, **fields: Any) -> None:
    """The inverse questions for MODEL on a GPU, each answered exactly on the allocator's own function.

    How many requests of --context tokens fit; how long each of --batch requests may be; the fewest GPUs of this kind
    that hold them; the least share of memory (gpu_memory_utilization and the like); and what ends it first.

    \b
    Examples:
      kvplan solve llama-3.1-70b --gpu h100-80gb --context 32k --batch 16
      kvplan solve llama-3.1-8b --gpu l4 --engine vllm --context 8k
    """
    from kvplan.plan.solve import solve

    found = solve(PlanRequest.model_construct(**fields))
    if as_json:
        import json
        from dataclasses import asdict

        click.echo(json.dumps({"schema": "kvplan.solution/1", **asdict(found)}, indent=1))
        return
    from kvplan.report.solve import solution_lines

    for line in solution_lines(found):
        click.echo(line)
