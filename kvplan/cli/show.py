"""`kvplan show FILE`: a stored result, drawn again."""

from __future__ import annotations

from typing import Any

import click

from kvplan.cli.options import read_result_file
from kvplan.errors import UsageError


@click.command("show")
@click.argument("file")
@click.option("--explain", is_flag=True, help="Of a plan: print each factor with its field and the arithmetic.")
def command(file: str, explain: bool) -> None:
    """Draw FILE again as the command drew it that wrote it with --json; `-` reads standard input.

    Plans, recommendations, validations, reconciliations, comparisons, layouts, solutions, qualities and predictions. A
    plan is recomputed from its factors, and refused if one number differs.

    \b
    Examples:
      kvplan estimate llama-3.1-8b --context 32k --json > plan.json
      kvplan show plan.json --explain
      kvplan recommend llama-3.1-8b --gpu h200 --json | kvplan show -
    """
    from kvplan.report.stored import draw, load_result

    kind, result = load_result(*read_result_file(file))
    if explain and kind.command != "estimate":
        raise UsageError(f"--explain is for plans, and {file} is a {kind.schema}", "leave it out")
    how: dict[str, Any] = {"explain": True} if explain else {}
    draw(kind, result, **how)
