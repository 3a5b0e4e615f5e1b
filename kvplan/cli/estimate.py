"""`kvplan estimate`: bytes of a model's cache, with their formulas, and what fits on a GPU."""

from __future__ import annotations

from typing import Any

import click

from kvplan.cli.options import (
    CACHE_OPTIONS,
    ENGINE_OPTIONS,
    GPU_OPTIONS,
    SHARDING_OPTIONS,
    WORKLOAD_OPTIONS,
    json_option,
    model_argument,
    plan_options,
)
from kvplan.plan import PlanRequest, make_plan


@click.command("estimate")
@model_argument
@plan_options(*CACHE_OPTIONS, *SHARDING_OPTIONS, *ENGINE_OPTIONS, *GPU_OPTIONS, *WORKLOAD_OPTIONS)
@click.option("--explain", is_flag=True, help="Print each factor with the field it comes from and the arithmetic.")
@json_option
def command(as_json: bool, explain: bool, **fields: Any) -> None:
    """Exact cache bytes of MODEL: the id of a shipped spec, a Hugging Face id, or the path of a spec file, a
    config.json, a model folder or a .gguf file.

    Sizes accept 32k, 128k and 1M (binary). Without --context: bytes per token, fixed bytes per sequence, and a ladder
    of lengths up to the model's maximum. --explain changes nothing in --json, which always has every factor's source.

    \b
    Examples:
      kvplan estimate llama-3.1-8b --context 32k --kv int8:token --gpu h200
      kvplan estimate qwen3-8b --context 16k --batch 32 --gpu l40s --engine vllm --kv fp8
      kvplan estimate ./config.json --explain
    """
    # The options have checked every value; building pydantic's checks would take longer than the plan.
    plan = make_plan(PlanRequest.model_construct(**fields))
    if as_json:
        click.echo(plan.to_json())
        return
    from kvplan.report.terminal import print_plan

    print_plan(plan, explain=explain)
