"""`kvplan validate`: run the kernels of each format on this machine and report bytes, errors and times."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvplan.cli.options import json_option, model_argument
from kvplan.cli.progress import Bar
from kvplan.errors import ExitCode, InputError, UsageError
from kvplan.units import parse_count
from kvplan.validate.report import PHASES, PhaseName, ValidationReport, ValidationRequest

if TYPE_CHECKING:
    from kvplan.specs.model import ModelSpec

DEFAULT_SEED = 1


@click.command("validate")
@model_argument
@click.option("--context", metavar="N", help="Tokens per request; default 32k (300 on the CPU), at most the model's.")
@click.option("--batch", metavar="N", help="Requests; default 16 (2 on the CPU).")
@click.option("--kv", "formats", metavar="F", multiple=True,
              help="Candidate for K and V; repeat it for several. all: each kind that has kernels.")  # fmt: skip
@click.option("--latent", "latents", metavar="F", multiple=True,
              help="Candidate for an MLA latent; --kv F also carries 16 bit and latent records over.")  # fmt: skip
@click.option("--phase", "phases", type=click.Choice(PHASES), multiple=True, default=("decode",), show_default=True,
              help="What to run on each format's cache; repeat it for several.")  # fmt: skip
@click.option("--device", type=click.Choice(["cuda", "cpu"]), default="cuda", show_default=True,
              help="cpu: the same kernels in Triton's interpreter, small shapes, correctness only.")  # fmt: skip
@click.option("--layer-group", metavar="NAME",
              help="Layer group that runs, of a model with several; default one that keeps all tokens.")  # fmt: skip
@click.option("--page-size", metavar="N", help="Tokens per page; default 128.")
@click.option("--seed", type=int, default=DEFAULT_SEED, show_default=True, help="Seed of the synthetic tensors.")
@click.option("--tensors", type=click.Path(path_type=Path),
              help="File of kvplan capture for format errors; smollm2-135m has one of its own.")  # fmt: skip
@click.option("--no-tune", is_flag=True,
              help="No search of launch shapes at first use on a GPU that their table does not know.")  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path), help="Write the report as JSON here, after every format.")
@click.option("--resume", is_flag=True, help="Go on with the unfinished report in the file of --out.")
@json_option
def command(
    model: str,
    context: str | None,
    batch: str | None,
    formats: tuple[str, ...],
    latents: tuple[str, ...],
    phases: tuple[PhaseName, ...],
    device: str,
    layer_group: str | None,
    page_size: str | None,
    seed: int,
    tensors: Path | None,
    no_tune: bool,
    out: Path | None,
    resume: bool,
    as_json: bool,
) -> int:
    """Run the kernels of MODEL's cache on this machine, one layer, in each format.

    The 16-bit format of the model always runs first: it is the baseline. Finished formats survive an interruption.
    Without --batch and --context both become smaller where the GPU's memory is short, and the report says so.
    Exit code 6: a check is red, or a format or phase could not run.

    \b
    Examples:
      kvplan validate llama-3.1-8b --kv int8 --kv fp8_e4m3
      kvplan validate llama-3.1-8b --kv all --phase decode --phase append --out report.json
      kvplan validate llama-3.1-8b --kv all --phase decode --phase append --out report.json --resume
      kvplan validate deepseek-v3 --latent fp8_ds_mla --phase decode --phase append
      kvplan validate qwen2.5-7b --device cpu --kv int8
    """
    from kvplan.specs.load import load_model
    from kvplan.validate import device as machine
    from kvplan.validate.launch import start

    spec = load_model(model)
    machine.require(device)
    previous = _previous(out, resume)
    given = {name: text for name, text in (("batch", batch), ("context", context)) if text}
    if previous is not None:
        # The first run may have had to choose smaller ones.
        given = {"batch": str(previous.request.batch), "context": str(previous.request.context)} | given
    request = _request(
        spec,
        frozenset(given),
        context=parse_count(given["context"], "context") if "context" in given else None,
        batch=parse_count(given["batch"], "batch") if "batch" in given else None,
        formats=formats,
        latents=latents,
        phases=phases,
        device=device,
        layer_group=layer_group,
        page_size=parse_count(page_size, "page size") if page_size else None,
        seed=seed,
        tensors=None if tensors is None else str(tensors),
        tune=not no_tune,
    )
    if previous is not None:
        from kvplan.validate.resume import check_same

        check_same(previous, request, machine.device_info(device))
    words = shlex.join(["kvplan", *sys.argv[1:]])
    report = previous
    try:
        done = 0 if previous is None else sum(r.status != "not run" for r in previous.results)
        with Bar(len(request.formats) - done) as bar:
            for report in start(request, spec, model, words, bar.say, previous):
                bar.advance()
                if out is not None:
                    report.save(out)
    finally:
        # Also after Ctrl-C: what is finished is shown, and the interruption goes on to main().
        if report is not None:
            _show(report, as_json)
    return ExitCode.OK if report is not None and report.passed else ExitCode.CHECK_FAILED


def _previous(out: Path | None, resume: bool) -> ValidationReport | None:
    """The report to go on with; what --out and --resume need is checked before anything runs."""
    if out is not None and not out.absolute().parent.is_dir():
        raise InputError(f"cannot write {out}: its folder does not exist", "create the folder or choose another file")
    if not resume:
        return None
    if out is None:
        raise UsageError("--resume goes on with the file of --out, and there is none", "add --out FILE")
    from kvplan.validate.resume import read_previous

    return read_previous(out)


def _request(spec: ModelSpec, given: frozenset[str], **words: Any) -> ValidationRequest:
    """The complete request, made to fit the device's memory; files are read once so that wrong ones are refused."""
    from kvplan.validate.device import free_bytes
    from kvplan.validate.memory import fit
    from kvplan.validate.request import make_request

    request = make_request(spec, **words)
    if request.tensors_file is not None:
        from kvplan.validate.captured import load
        from kvplan.validate.subject import choose_group

        load(Path(request.tensors_file), choose_group(spec, request.layer_group))
    free = free_bytes(request.device)
    return request if free is None else fit(request, spec, free, given)


def _show(report: ValidationReport, as_json: bool) -> None:
    if as_json:
        click.echo(report.to_json())
        return
    from kvplan.report.validation import print_validation

    print_validation(report)
