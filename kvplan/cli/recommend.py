"""`kvplan recommend`: which cache to use for a model on a GPU, and why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from kvplan.cli import complete
from kvplan.cli.options import ENGINE_OPTIONS, json_option, model_argument, plan_options
from kvplan.recommend.types import RecommendRequest
from kvplan.units import check_count, parse_count


@click.command("recommend")
@model_argument
@click.option("--gpu", metavar="G", required=True, shell_complete=complete.gpus,
              help="Id of a shipped device, path of a device file, or auto; several as G,G,G are ranked.")  # fmt: skip
@click.option(
    "--gpus", metavar="N", default="1", show_default=True, help="GPUs of the deployment, each layout compared."
)
@click.option("--context", metavar="N", help="Tokens of every request; without it the model's maximum.")
@click.option("--concurrency", metavar="N", default="1", show_default=True, help="Requests held at once.")
@click.option("--tp", metavar="N", help="Tensor-parallel ranks; without it every legal number.")
@plan_options("util", "weights_dtype", *ENGINE_OPTIONS)
@click.option("--quality", type=click.Choice(["strict", "balanced", "capacity"]),
              help="strict: no noticeable loss; balanced (default): as fp8; capacity: most in 4 bits.")  # fmt: skip
@click.option("--max-kl", metavar="X", type=float, help="Largest mean KL, instead of a level.")
@click.option("--min-top1", metavar="X", type=float, help="Least share of equal top tokens, instead of a level.")
@click.option("--slo-itl", metavar="MS", type=float, help="Longest time between two tokens, in milliseconds.")
@click.option("--evidence", type=click.Path(path_type=Path), multiple=True,
              help="Report of kvplan quality (--out), or of --predict, of this model; repeatable.")  # fmt: skip
@click.option("--tensors", type=click.Path(path_type=Path),
              help="File of kvplan capture of this model: predict the loss of every format from it.")  # fmt: skip
@click.option("--validation", type=click.Path(path_type=Path),
              help="Report of kvplan validate: its measured times replace predicted ones.")  # fmt: skip
@click.option(
    "--price", metavar="G=X", multiple=True, help="Price per hour of a GPU, your own; ranks a fleet by price."
)
@click.option("--verify", is_flag=True, help="Validate the recommended and the runner-up on this machine's GPU.")
@click.option("--verify-all", metavar="DIR", type=click.Path(path_type=Path, file_okay=False),
              help="As --verify, for every format with kernels: the time model is held to them. DIR keeps the "
              "validations, and a second run goes on with them.")  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path), help="Write the chosen configuration here, as YAML.")
@json_option
def command(
    model: str,
    gpu: str,
    gpus: str,
    context: str | None,
    concurrency: str,
    tp: str | None,
    slo_itl: float | None,
    evidence: tuple[Path, ...],
    tensors: Path | None,
    validation: Path | None,
    price: tuple[str, ...],
    verify: bool,
    verify_all: Path | None,
    out: Path | None,
    as_json: bool,
    **more: Any,
) -> int:
    """Which cache MODEL should use on a GPU: formats of K and V, layers apart, layout; with reasons and numbers.

    Capacity, attention latency and end-to-end throughput are three results, never mixed; each figure of quality says
    what kind of evidence it is. With --engine only formats that the engine has are considered, sized by its own rules.
    Exit code 6: this machine did not confirm the verdict (--verify), or not every prediction (--verify-all).

    \b
    Examples:
      kvplan recommend llama-3.1-8b --gpu h200 --context 32k --concurrency 60
      kvplan recommend qwen2.5-7b --gpu l4 --engine vllm --context 8k --concurrency 8
      kvplan recommend llama-3.1-70b --gpu h100-80gb,h200,l40s --gpus 8 --context 32k --concurrency 64
      kvplan recommend llama-3.1-8b --gpu h200 --context 32k --concurrency 40 --out plan.yaml
    """
    from kvplan.cli.recommending import Asked, run

    ranks = parse_count(tp, "tp") if tp else None
    request = RecommendRequest(
        model=model,
        gpu=gpu,
        gpus=max(check_count(parse_count(gpus, "gpus"), "gpus"), ranks or 1),
        context=parse_count(context, "context") if context else None,
        concurrency=check_count(parse_count(concurrency, "concurrency"), "concurrency"),
        tp=ranks,
        slo_itl_ms=slo_itl,
        **more,
    )
    return run(request, Asked(evidence, tensors, validation, price, verify, verify_all, out, as_json))
