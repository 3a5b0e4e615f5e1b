"""`kvplan check`: whether a stored configuration still holds."""

from __future__ import annotations

import json
from pathlib import Path

import click

from kvplan.cli.options import json_option
from kvplan.errors import ExitCode


@click.command("check")
@click.argument("plan", metavar="PLAN.yaml", type=click.Path(path_type=Path))
@click.option("--evidence", type=click.Path(path_type=Path), multiple=True,
              help="Report of kvplan quality (--out), or of --predict, of this model; repeatable.")  # fmt: skip
@json_option
def command(plan: Path, evidence: tuple[Path, ...], as_json: bool) -> int:
    """Hold PLAN.yaml, which `kvplan recommend --out` wrote, to its bounds: a gate for CI.

    Green only if the engine still has the formats, the cache still fits and the quality bound still holds, by what this
    version of kvplan and the given evidence know. Exit code 6: one of these is red.

    \b
    Examples:
      kvplan check plan.yaml
      kvplan check plan.yaml --evidence quality.json --json
    """
    from kvplan.recommend.checks import check
    from kvplan.recommend.config import read_config

    config = read_config(plan)
    bodies = []
    if evidence:
        from kvplan.cli.evidence_files import from_report

        bodies = [from_report(path, config.request.model) for path in evidence]
    done = check(config, bodies)
    good = all(c.passed for c in done)
    if as_json:
        rows = [{"name": c.name, "passed": c.passed, "detail": c.detail} for c in done]
        click.echo(
            json.dumps({"schema": "kvplan.check/1", "plan": str(plan), "passed": good, "checks": rows}, indent=2)
        )
    else:
        for c in done:
            click.echo(f"{'ok  ' if c.passed else 'FAIL'} {c.name}: {c.detail}")
    return ExitCode.OK if good else ExitCode.CHECK_FAILED
