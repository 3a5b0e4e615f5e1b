"""`kvplan estimate`: bytes of a model's cache, with their formulas, and what fits on a GPU."""

from __future__ import annotations

from typing import Any

import click

from kvplan.cli.options import json_option, plan_options
from kvplan.plan import PlanRequest, make_plan


@click.command("estimate")
@click.argument("model")
@plan_options("context", "batch", "kv", "k", "v", "latent", "index", "state_dtype", "conv_dtype", "page_size", "tp")
@plan_options("gpu", "gpu_memory", "bandwidth", "util", "weights_dtype", "beyond_max")
@json_option
def command(as_json: bool, **fields: Any) -> None:
    """Exact cache bytes of MODEL: the id of a shipped spec, a Hugging Face id, or the path of a spec file, a
    config.json, a model folder or a .gguf file.

    Sizes accept 32k, 128k and 1M (binary). Without --context: bytes per token, fixed bytes per sequence, and a ladder
    of lengths up to the model's maximum.
    """
    plan = make_plan(PlanRequest(**fields))
    if as_json:
        click.echo(plan.to_json())
        return
    from kvplan.report.terminal import print_plan

    print_plan(plan)
