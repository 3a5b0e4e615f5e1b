"""`kvplan schema KIND`: the JSON schema of what a command prints with --json."""

from __future__ import annotations

import json

import click
from click.shell_completion import CompletionItem

from kvplan.errors import UsageError


def _kinds(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from kvplan.report.schema import schema_names

    return [CompletionItem(name) for name in schema_names() if name.startswith(incomplete)]


@click.command("schema")
@click.argument("kind", required=False, shell_complete=_kinds)
def command(kind: str | None) -> None:
    """Print the JSON schema (draft 2020-12) of a KIND of result, made from its own class.

    KIND is plan, recommendation, fleet, validation, reconciliation, diff, layouts, solution,
    quality, prediction, specs, engines, doctor, check, scales or verification.

    \b
    Examples:
      kvplan schema plan
      kvplan schema recommendation > recommendation.schema.json
    """
    from kvplan.report.schema import result_schema, schema_names

    if kind is None:
        raise UsageError("no kind of result is named", "one of: " + ", ".join(schema_names()))
    click.echo(json.dumps(result_schema(kind), indent=2))
