"""`kvplan tui`: the planner as a full-screen terminal program, or in a browser of this machine."""

from __future__ import annotations

import os
import sys

import click

from kvplan.cli import complete
from kvplan.errors import UsageError

SERVED = "TEXTUAL_DRIVER"
"""Set by textual-serve for the processes whose terminal is a page."""


@click.command("tui")
@click.argument("model", default="llama-3.1-8b", shell_complete=complete.models)
@click.option(
    "--gpu", metavar="G", shell_complete=complete.gpus, help="Id of a shipped device, or none; default h100-80gb."
)
@click.option("--engine", metavar="E", shell_complete=complete.engines, help="Inference engine (see `kvplan engines`).")
@click.option("--context", metavar="N", default="32k", show_default=True, help="Tokens of every request.")
@click.option("--batch", metavar="N", default="1", show_default=True, help="Requests held at once.")
@click.option(
    "--web",
    is_flag=True,
    help="Serve it to a browser of this machine, on 127.0.0.1 only; needs textual-serve (kvplan-advisor[web]).",
)
@click.option("--port", type=click.IntRange(0, 65535), default=8765, show_default=True,
              help="With --web: the port; 0 takes a free one.")  # fmt: skip
def command(model: str, gpu: str | None, engine: str | None, context: str, batch: str, web: bool, port: int) -> None:
    """Plan MODEL on a full screen: every change is a new plan at once. `?` shows the keys.

    --web prints an address with a key. Whoever knows it may use the planner as you; other machines, other pages of the
    browser and addresses without the key are refused.

    \b
    Examples:
      kvplan tui
      kvplan tui qwen2.5-7b --gpu l4 --engine vllm
      kvplan tui --web --port 8080
    """
    from kvplan.tui.choices import Choices

    start = Choices(model=model, gpu=gpu or "h100-80gb", engine=engine or "none", context=context, batch=batch)
    if web:
        start.request()
        from kvplan.tui.web import serve

        serve([model, "--gpu", start.gpu, "--engine", start.engine, "--context", context, "--batch", batch], port)
        return
    if not (sys.stdin.isatty() and sys.stdout.isatty()) and SERVED not in os.environ:
        raise UsageError(
            "kvplan tui needs a terminal", "in a pipe or script use kvplan estimate, with --json for figures"
        )
    from kvplan.tui.app import PlanApp

    start.request()
    PlanApp(start).run()
