"""`kvplan tui`: the planner as a full-screen terminal program."""

from __future__ import annotations

import sys

import click

from kvplan.cli import complete
from kvplan.errors import UsageError


@click.command("tui")
@click.argument("model", default="llama-3.1-8b", shell_complete=complete.models)
@click.option(
    "--gpu", metavar="G", shell_complete=complete.gpus, help="Id of a shipped device, or none; default h100-80gb."
)
@click.option("--engine", metavar="E", shell_complete=complete.engines, help="Inference engine (see `kvplan engines`).")
@click.option("--context", metavar="N", default="32k", show_default=True, help="Tokens of every request.")
@click.option("--batch", metavar="N", default="1", show_default=True, help="Requests held at once.")
def command(model: str, gpu: str | None, engine: str | None, context: str, batch: str) -> None:
    """Plan MODEL on a full screen: every change is a new plan at once. `?` shows the keys.

    \b
    Examples:
      kvplan tui
      kvplan tui qwen2.5-7b --gpu l4 --engine vllm
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError(
            "kvplan tui needs a terminal", "in a pipe or script use kvplan estimate, with --json for figures"
        )
    from kvplan.tui.app import PlanApp
    from kvplan.tui.choices import Choices

    start = Choices(model=model, gpu=gpu or "h100-80gb", engine=engine or "none", context=context, batch=batch)
    start.request()
    PlanApp(start).run()
