"""`kvplan reconcile`: what a start-up log says, beside what kvplan computes."""

from __future__ import annotations

from pathlib import Path

import click

from kvplan.cli.options import json_option
from kvplan.errors import InputError


@click.command("reconcile")
@click.argument("log", type=click.Path(path_type=Path))
@click.argument("model", required=False)
@click.option("--gpu", metavar="G", help="Id of a shipped device or path of a device file; default: what the log says.")
@click.option("--save", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False),
              help="Write what the log measured beside weights and cache, for estimate --calibration.")  # fmt: skip
@json_option
def command(log: Path, model: str | None, gpu: str | None, save: Path | None, as_json: bool) -> None:
    """Read a start-up LOG of vLLM, SGLang, llama.cpp, TensorRT-LLM, LMDeploy or Ollama, and explain each figure.

    MODEL is an id, a Hugging Face id or a path; without it, the model that the log names. Shown are each printed
    figure beside kvplan's own, what is left over, its likely cause, and the memory that activations, CUDA graphs and
    libraries took. No path, host or user name of the log is kept or printed.

    \b
    Examples:
      kvplan reconcile server.log
      kvplan reconcile server.log llama-3.1-8b --gpu h200 --save measured.json
    """
    from kvplan.reconcile.run import explain, read_log, to_json

    found = explain(read_log(log), model, gpu)
    if save is not None:
        from kvplan.reconcile.calibration import calibration_text

        text = calibration_text(found)
        try:
            save.write_text(text, encoding="utf-8")
        except OSError as error:
            raise InputError(f"{save.name} cannot be written: {error.strerror}", "give another path") from None
    if as_json:
        click.echo(to_json(found))
        return
    from kvplan.report.reconcile import print_reconciliation

    print_reconciliation(found)
