"""`kvplan recommend`: which cache format to use for a model on a GPU, and why."""

from __future__ import annotations

from typing import Any

import click

from kvplan.cli import complete
from kvplan.cli.options import ENGINE_OPTIONS, json_option, model_argument, plan_options
from kvplan.recommend.types import RecommendRequest
from kvplan.units import check_count, parse_count


@click.command("recommend")
@model_argument
@click.option(
    "--gpu",
    metavar="G",
    required=True,
    shell_complete=complete.gpus,
    help="Id of a shipped device or path of a device file.",
)
@click.option("--context", metavar="N", help="Tokens of every request; without it the model's maximum.")
@click.option("--concurrency", metavar="N", default="1", show_default=True, help="Requests held at once.")
@click.option("--tp", metavar="N", default="1", show_default=True, help="Tensor-parallel ranks.")
@plan_options("util", "weights_dtype", *ENGINE_OPTIONS)
@json_option
def command(
    model: str,
    gpu: str,
    context: str | None,
    concurrency: str,
    tp: str,
    as_json: bool,
    **more: Any,
) -> None:
    """Which cache format MODEL should use on a GPU: bytes, requests that fit, predicted time, a reason for each.

    Only 16 and 8 bit are ranked; lower bits are listed as unranked, because their quality is not established. With
    --engine only formats that the engine has are considered, sized by its own rules.

    \b
    Examples:
      kvplan recommend llama-3.1-8b --gpu h200 --context 32k --concurrency 60
      kvplan recommend qwen2.5-7b --gpu l4 --engine vllm --concurrency 8
    """
    from kvplan.recommend import recommend

    request = RecommendRequest(
        model=model,
        gpu=gpu,
        context=parse_count(context, "context") if context else None,
        concurrency=check_count(parse_count(concurrency, "concurrency"), "concurrency"),
        tp=parse_count(tp, "tp"),
        **more,
    )
    result = recommend(request)
    if as_json:
        click.echo(result.to_json())
        return
    from kvplan.report.recommendation import print_recommendation

    print_recommendation(result)
