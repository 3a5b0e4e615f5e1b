"""`kvplan report FILE`: a stored result as HTML, Markdown or a picture."""

from __future__ import annotations

from pathlib import Path

import click

from kvplan.cli.options import read_result_file
from kvplan.errors import InputError, UsageError


@click.command("report")
@click.argument("file")
@click.option("--html", "form", flag_value="html", help="One HTML file that loads nothing, has no scripts and prints.")
@click.option("--md", "form", flag_value="md", help="Markdown.")
@click.option("--png", "form", flag_value="png", help="A picture of a plan's memory; needs matplotlib, and --out.")
@click.option("--out", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False),
              help="Write there instead of standard output.")  # fmt: skip
def command(file: str, form: str | None, out: Path | None) -> None:
    """Turn FILE, any result stored with --json, into a page; `-` reads standard input.

    \b
    Examples:
      kvplan estimate llama-3.1-8b --context 32k --gpu h200 --json > plan.json
      kvplan report plan.json --html --out plan.html
      kvplan report plan.json --md
    """
    if form is None:
        raise UsageError("no form is given", "add --html, --md or --png")
    if form == "png" and out is None:
        raise UsageError("a picture is not written to standard output", "add --out FILE.png")
    from kvplan.report.document import document
    from kvplan.report.stored import load_result, page

    found, result = load_result(*read_result_file(file))
    made = document(found, result)
    try:
        if form == "png" and out is not None:
            from kvplan.report.png import write_png

            write_png(made, out)
            return
        from kvplan.report.html import to_html
        from kvplan.report.markdown import to_markdown

        text = (page(found, result) or to_html(made)) if form == "html" else to_markdown(made)
        if out is None:
            click.echo(text, nl=False)
        else:
            out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{out} cannot be written: {error.strerror}", "give another file") from None
