"""`kvplan diff A B`: two plans side by side."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import click

from kvplan.cli.options import CACHE_OPTIONS, GPU_OPTIONS, SHARDING_OPTIONS, json_option, plan_options
from kvplan.errors import UsageError
from kvplan.plan import Plan, make_plan
from kvplan.plan.types import PlanRequest


@click.command("diff")
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@click.option("--a", "only_a", metavar="OPTIONS", default="", help="Further options of A, in quotes.")
@click.option("--b", "only_b", metavar="OPTIONS", default="", help='Further options of B, such as "--kv int8 --tp 2".')
@plan_options(*CACHE_OPTIONS, *SHARDING_OPTIONS, *GPU_OPTIONS)
@json_option
def command(a: str, b: str, only_a: str, only_b: str, as_json: bool, **fields: Any) -> None:
    """Compare two plans: each of A and B is a plan stored with `kvplan estimate --json`, or a model.

    Options hold for both models; --a and --b add to them or replace them for one. A stored plan takes no options.

    \b
    Examples:
      kvplan diff llama-3.1-8b llama-3.1-8b --context 32k --b "--kv int8"
      kvplan diff before.json after.json
    """
    here = click.get_current_context()
    given = {name: value for name, value in fields.items() if _is_given(here, name)}
    plans = [_plan(name, given, only, option) for name, only, option in ((a, only_a, "--a"), (b, only_b, "--b"))]
    if given and not any(isinstance(made, PlanRequest) for made in plans):
        raise UsageError("both plans are stored; options change neither", "drop the options, or name a model")
    from kvplan.plan.diff import diff_plans

    made = diff_plans(*(plan if isinstance(plan, Plan) else make_plan(plan) for plan in plans))
    if as_json:
        from kvplan.plan.result import plain

        click.echo(json.dumps({"schema": "kvplan.diff/1", **plain(made)}, indent=2))
        return
    from kvplan.report.diff import print_diff

    print_diff(made)


def _is_given(context: click.Context, name: str) -> bool:
    return context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT


def _plan(name: str, given: dict[str, Any], only: str, option: str) -> Plan | PlanRequest:
    """A stored plan, or what is asked of a model."""
    stored = _stored(name)
    if stored is not None:
        if only:
            raise UsageError(f"{name} is a stored plan, which {option} cannot change", "name a model instead")
        return Plan.load(stored)
    return PlanRequest(model=name, **{**given, **_parse(only, option)})


def _stored(name: str) -> str | None:
    """The text of a file that holds a plan; None for anything else, which is a model's name or file."""
    try:
        text = Path(name).read_text(encoding="utf-8")
        data = json.loads(text)
    except (OSError, ValueError, RecursionError):
        return None
    is_plan = isinstance(data, dict) and str(data.get("schema", "")).startswith("kvplan.plan/")
    return text if is_plan else None


def _parse(only: str, option: str) -> dict[str, Any]:
    """Options in quotes, read as estimate reads them; defaults are left out."""
    try:
        words = shlex.split(only)
    except ValueError as error:
        raise UsageError(f"{option} {only!r} cannot be read: {error}", 'write options in quotes: "--kv int8"') from None
    with _one_side.make_context("kvplan diff", words) as context:
        return {name: value for name, value in context.params.items() if _is_given(context, name)}


@click.command("diff", add_help_option=False)
@plan_options(*CACHE_OPTIONS, *SHARDING_OPTIONS, *GPU_OPTIONS)
def _one_side(**_: Any) -> None:
    """Only read for its options."""
