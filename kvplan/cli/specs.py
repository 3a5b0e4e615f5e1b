"""`kvplan specs`: list, show and check specs, and write one from another project's model file."""

from __future__ import annotations

from pathlib import Path

import click

from kvplan.cli.options import json_option
from kvplan.errors import ExitCode
from kvplan.specs.load import import_model, list_models, load_model
from kvplan.specs.model import ModelSpec


@click.group("specs")
def command() -> None:
    """Specs of models: what is shipped, what a file says, and a spec from a config.json.

    \b
    Examples:
      kvplan specs list
      kvplan specs show llama-3.1-8b
      kvplan specs import ./config.json > spec.yaml
    """


@command.command("list")
@json_option
def list_command(as_json: bool) -> None:
    """All shipped models: layers, kinds of caches, longest context, how well the figures are known."""
    rows = [_row(load_model(name)) for name in list_models()]
    if as_json:
        import json

        click.echo(json.dumps({"schema": "kvplan.specs/1", "models": rows}, indent=1))
        return
    from kvplan.report.specs import print_specs

    print_specs(rows)


@command.command("show")
@click.argument("model")
def show_command(model: str) -> None:
    """The spec of MODEL as YAML; MODEL is anything that `kvplan estimate` takes."""
    from kvplan.specs.importers.write import imported_yaml, spec_yaml

    found = import_model(model)
    click.echo(spec_yaml(found) if isinstance(found, ModelSpec) else imported_yaml(found), nl=False)


@command.command("import")
@click.argument("source")
def import_command(source: str) -> None:
    """A spec from SOURCE (a config.json, a model folder, a .gguf file or a Hugging Face id), as YAML on stdout.

    Each number has its origin as a comment: read from which field, defaulted as the model's own class does, or assumed.
    """
    from kvplan.specs.importers.write import imported_yaml, spec_yaml

    found = import_model(source)
    click.echo(spec_yaml(found) if isinstance(found, ModelSpec) else imported_yaml(found), nl=False)
    if isinstance(found, ModelSpec):
        click.echo(f"note: {found.id} is a spec already", err=True)


@command.command("check")
@click.argument("file", type=click.Path(path_type=Path))
def check_command(file: Path) -> int:
    """Read FILE (a spec or anything that can be imported) and say what is in it, or which field is wrong."""
    found = import_model(str(file))
    spec = found if isinstance(found, ModelSpec) else found.spec
    row = _row(spec)
    click.echo(f"{file}: good: {row['id']}, {row['layers']} layers, {row['kinds']}")
    for note in (*spec.assumptions, *spec.notes):
        click.echo(f"note: {note}")
    return ExitCode.OK


def _row(spec: ModelSpec) -> dict[str, str | int | None]:
    """One line of the list; it states shapes, not bytes."""
    kinds = [f"{len(spec.positions(group))} {group.name}" for group in spec.layer_groups]
    return {
        "id": spec.id,
        "layers": spec.layers,
        "kinds": ", ".join(kinds),
        "max_context": spec.max_context,
        "confidence": spec.provenance.confidence if spec.provenance else None,
    }
