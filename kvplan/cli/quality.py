"""`kvplan quality`: KL, agreement and perplexity of formats, measured in a model's own forward pass."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import click

from kvplan.cli.options import json_option
from kvplan.cli.progress import Bar
from kvplan.errors import InputError, UsageError
from kvplan.quality.law import PredictionReport
from kvplan.quality.models import DEFAULT
from kvplan.quality.report import QualityReport
from kvplan.quality.request import DEFAULT_TOKENS
from kvplan.units import parse_count


@click.command("quality")
@click.argument("model", default=DEFAULT)
@click.option("--kv", metavar="F", multiple=True,
              help="Candidate for K and V, or a pair as 'K / V'; repeat it for several.")  # fmt: skip
@click.option("--k", metavar="F", help="Format of K, with --v: one more candidate.")
@click.option("--v", metavar="F", help="Format of V, with --k.")
@click.option("--text", type=click.Path(path_type=Path), help="Text to read; default pydoc_data.topics of Python.")
@click.option("--calibration-text", type=click.Path(path_type=Path),
              help="Text for static scales; default the source of Python's argparse.")  # fmt: skip
@click.option("--tokens", metavar="N", default=str(DEFAULT_TOKENS), show_default=True, help="Positions to run.")
@click.option("--first-token", metavar="N", type=click.IntRange(min=0),
              help="Tokens of the text to leave out; default 0, 20000 for the default text.")  # fmt: skip
@click.option("--compute", type=click.Choice(["fp32", "bf16"]), default="fp32", show_default=True,
              help="Dtype of the forward pass; bf16 hides the error of 8-bit formats.")  # fmt: skip
@click.option("--device", type=click.Choice(["cpu", "cuda"]), help="Where to run; default cuda if there is one.")
@click.option("--tasks", type=click.Path(path_type=Path), metavar="FILE.jsonl",
              help="Your own prompts, a line each: prompt, expected, kind.")  # fmt: skip
@click.option("--probes", metavar="N", default="0", show_default=True,
              help="Needles in 512 to N tokens, chained sums, greedy text until it parts; 0: none.")  # fmt: skip
@click.option("--no-parts", is_flag=True, help="K and V together only: a third of the time.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Write the report here after every format, as JSON; as a page with pictures if it ends in .html.",
)
@click.option("--predict", is_flag=True, help="Predict KL from captured tensors in seconds; the model is not run.")
@click.option("--tensors", type=click.Path(path_type=Path),
              help="With --predict: file of kvplan capture; default a small set of SmolLM2-135M.")  # fmt: skip
@click.option("--calibration-tensors", type=click.Path(path_type=Path),
              help="With --predict: capture of another text for static scales.")  # fmt: skip
@click.option("--measured", type=click.Path(path_type=Path),
              help="With --predict: report of this command, whose figures come first.")  # fmt: skip
@click.option("--resume", is_flag=True, help="Keep what the file of --out has of the same model, text and formats.")
@json_option
def command(
    model: str,
    kv: tuple[str, ...],
    k: str | None,
    v: str | None,
    text: Path | None,
    calibration_text: Path | None,
    tokens: str,
    first_token: int | None,
    compute: str,
    device: str | None,
    tasks: Path | None,
    probes: str,
    no_parts: bool,
    out: Path | None,
    predict: bool,
    tensors: Path | None,
    calibration_tensors: Path | None,
    measured: Path | None,
    resume: bool,
    as_json: bool,
) -> None:
    """What cache formats cost MODEL in quality: a folder, a .gguf file, a downloaded hub id, or smollm2-135m.

    One teacher-forced pass per format with the quantised cache in every layer, against the untouched cache. Formats
    need a codec; latents (MLA) are refused.

    \b
    Examples:
      kvplan quality --kv int8 --kv fp8_e4m3 --kv kivi2
      kvplan quality --predict --kv kivi4 --kv nvfp4 --kv 'int8 / int4:group/64,asym'
      kvplan quality ./my-model --k int8 --v int4:group/32,asym --text corpus.txt
    """
    from kvplan.quality.models import require
    from kvplan.quality.request import candidates

    chosen = candidates(kv, k, v)
    require()
    if out is not None and not out.absolute().parent.is_dir():
        raise InputError(f"cannot write {out}: its folder does not exist", "create the folder or choose another file")
    if out is not None and out.suffix == ".html":
        from kvplan.report.quality_page import check_library

        check_library()
    words = shlex.join(["kvplan", *sys.argv[1:]])
    if predict:
        from kvplan.quality.forecast import forecast

        _show_prediction(forecast(model, chosen, tensors, measured, words, calibration_tensors), out, as_json)
        return
    if tensors or measured or calibration_tensors:
        raise UsageError(
            "--tensors, --calibration-tensors and --measured go with --predict", "add --predict, or leave them out"
        )
    from kvplan.quality.prepare import Reading
    from kvplan.quality.resume import read_previous
    from kvplan.quality.start import start

    previous = read_previous(out) if resume else None
    report: QualityReport | None = None
    try:
        with Bar(len(chosen)) as bar:
            for report in start(
                model,
                chosen,
                Reading(text, parse_count(tokens, "tokens"), first_token),
                calibration_text=calibration_text,
                compute=compute,
                device=device,
                parts=not no_parts,
                probes=parse_count(probes, "tokens") if probes != "0" else 0,
                tasks=tasks,
                command=words,
                progress=bar.say,
                previous=previous,
            ):
                bar.advance()
                if out is not None and out.suffix != ".html":
                    report.save(out)
    finally:
        # Also after Ctrl-C: what is finished is shown, and the interruption goes on to main().
        if report is not None:
            if out is not None and out.suffix == ".html":
                from kvplan.report.quality_page import quality_page

                out.write_text(quality_page(report), encoding="utf-8")
            _show(report, as_json)


def _show(report: QualityReport, as_json: bool) -> None:
    if as_json:
        click.echo(report.to_json())
        return
    from kvplan.report.quality import print_quality

    print_quality(report)


def _show_prediction(report: PredictionReport, out: Path | None, as_json: bool) -> None:
    if out is not None and out.suffix == ".html":
        from kvplan.report.quality_page import prediction_page

        out.write_text(prediction_page(report), encoding="utf-8")
    elif out is not None:
        report.save(out)
    if as_json:
        click.echo(report.to_json())
        return
    from kvplan.report.quality import print_prediction

    print_prediction(report)
