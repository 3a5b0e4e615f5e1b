"""`kvplan engines`: inference engines whose allocation kvplan computes: versions, formats, options and rules."""

from __future__ import annotations

import click

from kvplan.cli.options import json_option
from kvplan.engines import engine_names, load_engine
from kvplan.engines.shared.describe import describe


@click.command("engines")
@click.argument("name", required=False)
@json_option
def command(name: str | None, as_json: bool) -> None:
    """Engines that --engine takes; with NAME, its versions, cache formats, options and block rules with their sources.

    The first version and the first format of an engine are its defaults.

    \b
    Examples:
      kvplan engines
      kvplan engines vllm
    """
    found = [describe(load_engine(each)) for each in ([name] if name else engine_names())]
    if as_json:
        import json

        click.echo(json.dumps({"schema": "kvplan.engines/1", "engines": found}, indent=1))
        return
    from kvplan.report.engines import print_engine, print_engines

    if name:
        print_engine(found[0])
    else:
        print_engines(found)
