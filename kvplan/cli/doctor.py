"""`kvplan doctor`: what is installed, what can be done here, and which defaults hold."""

from __future__ import annotations

import json

import click

from kvplan.cli.options import json_option


@click.command("doctor")
@json_option
def command(as_json: bool) -> None:
    """Versions, GPUs and their driver, what can be planned, drawn and validated here, and the defaults that were found.

    Nothing is changed, sent or downloaded; torch is not imported.

    \b
    Examples:
      kvplan doctor
      kvplan doctor --json
    """
    from kvplan.cli.examine import examine, lines

    found = examine()
    if as_json:
        click.echo(json.dumps({"schema": "kvplan.doctor/1", **found}, indent=1))
        return
    for line in lines(found):
        click.echo(line)
