"""`kvplan layouts`: every layout of N GPUs that a model allows, ranked by the cache they hold."""

from __future__ import annotations

from typing import Any

import click

from kvplan.cli.options import GPU_OPTIONS, json_option, model_argument, plan_options
from kvplan.plan.types import PlanRequest
from kvplan.units import parse_count


@click.command("layouts")
@model_argument
@click.option("--gpus", metavar="N", required=True, help="GPUs of the whole layout.")
@plan_options("context", "kv", "k", "v", "latent", "index", "layers", "mtp", "page_size", *GPU_OPTIONS)
@json_option
def command(gpus: str, as_json: bool, **fields: Any) -> None:
    """Rank the tensor x pipeline x data (x decode context) parallel layouts of N GPUs for MODEL.

    With a GPU: by the tokens that fit per GPU at --context (without it, at the model's maximum). Without one: by the
    bytes that each GPU holds for a token. Copies across ranks are shown for one sequence.

    \b
    Examples:
      kvplan layouts llama-3.1-70b --gpus 8 --gpu h100-80gb --context 32k
      kvplan layouts deepseek-v3 --gpus 16
    """
    from kvplan.plan.layouts import rank_layouts

    table = rank_layouts(PlanRequest.model_construct(**fields), parse_count(gpus, "gpus"))
    if as_json:
        import json

        from kvplan.plan.result import plain

        click.echo(json.dumps({"schema": "kvplan.layouts/1", **plain(table)}, indent=2))
        return
    from kvplan.report.layouts import print_layouts

    print_layouts(table)
