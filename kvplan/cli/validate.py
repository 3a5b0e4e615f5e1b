"""`kvplan validate`: run the kernels of each format on this machine and report bytes, errors and times."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import click

from kvplan.cli.options import json_option, model_argument
from kvplan.cli.progress import Bar
from kvplan.errors import ExitCode, InputError
from kvplan.units import parse_count
from kvplan.validate.report import ValidationReport

DEFAULT_SEED = 1


@click.command("validate")
@model_argument
@click.option("--context", metavar="N", help="Tokens per request; default 32k (300 on the CPU), at most the model's.")
@click.option("--batch", metavar="N", help="Requests; default 16 (2 on the CPU).")
@click.option("--kv", "formats", metavar="F", multiple=True, help="Candidate for K and V; repeat it for several.")
@click.option("--device", type=click.Choice(["cuda", "cpu"]), default="cuda", show_default=True,
              help="cpu: the same kernels in Triton's interpreter, small shapes, correctness only.")  # fmt: skip
@click.option("--page-size", metavar="N", help="Tokens per page; default 128.")
@click.option("--seed", type=int, default=DEFAULT_SEED, show_default=True, help="Seed of the synthetic tensors.")
@click.option("--tensors", type=click.Path(path_type=Path),
              help="File of kvplan capture: format errors on these tensors instead of synthetic ones.")  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path), help="Write the report as JSON here, after every format.")
@json_option
def command(
    model: str,
    context: str | None,
    batch: str | None,
    formats: tuple[str, ...],
    device: str,
    page_size: str | None,
    seed: int,
    tensors: Path | None,
    out: Path | None,
    as_json: bool,
) -> int:
    """Run the kernels of MODEL's cache on this machine, one layer, in each format.

    The 16-bit format of the model always runs first: it is the baseline. Finished formats survive an interruption.
    Exit code 6: a check is red or a format could not run.

    \b
    Examples:
      kvplan validate llama-3.1-8b --kv int8 --kv fp8_e4m3
      kvplan validate qwen2.5-7b --device cpu --kv int8
    """
    from kvplan.specs.load import load_model
    from kvplan.validate import device as machine
    from kvplan.validate.launch import start
    from kvplan.validate.request import make_request

    spec = load_model(model)
    request = make_request(
        spec,
        context=parse_count(context, "context") if context else None,
        batch=parse_count(batch, "batch") if batch else None,
        formats=formats,
        device=device,
        page_size=parse_count(page_size, "page size") if page_size else None,
        seed=seed,
        tensors=None if tensors is None else str(tensors),
    )
    machine.require(device)
    if tensors is not None:
        from kvplan.validate.captured import load
        from kvplan.validate.subject import choose_group

        # Read once here so that a wrong file is refused before anything runs.
        load(tensors, choose_group(spec))
    if out is not None and not out.absolute().parent.is_dir():
        raise InputError(f"cannot write {out}: its folder does not exist", "create the folder or choose another file")
    words = shlex.join(["kvplan", *sys.argv[1:]])
    report: ValidationReport | None = None
    try:
        with Bar(len(request.formats)) as bar:
            for report in start(request, spec, model, words, bar.say):
                bar.advance()
                if out is not None:
                    report.save(out)
    finally:
        # Also after Ctrl-C: what is finished is shown, and the interruption goes on to main().
        if report is not None:
            _show(report, as_json)
    return ExitCode.OK if report is not None and report.passed else ExitCode.CHECK_FAILED


def _show(report: ValidationReport, as_json: bool) -> None:
    if as_json:
        click.echo(report.to_json())
        return
    from kvplan.report.validation import print_validation

    print_validation(report)
