"""`kvplan completion SHELL`: the script that makes a shell complete commands, options and names."""

from __future__ import annotations

import click

from kvplan.errors import UsageError, did_you_mean

SHELLS = ("bash", "zsh", "fish")


@click.command("completion")
@click.argument("shell", type=str)
def command(shell: str) -> None:
    """Print a script for SHELL (bash, zsh or fish) that completes commands, options, models, GPUs, engines, formats.

    \b
    Examples:
      kvplan completion bash >> ~/.bashrc
      kvplan completion zsh >> ~/.zshrc
      kvplan completion fish > ~/.config/fish/completions/kvplan.fish
    """
    from click.shell_completion import get_completion_class

    from kvplan.cli.main import COMPLETE, cli

    found = get_completion_class(shell) if shell in SHELLS else None
    if found is None:
        raise UsageError(f"no completion for {shell!r}", did_you_mean(shell, SHELLS))
    # Not source(): for bash that runs the bash of this machine to see its version.
    made = found(cli, {}, "kvplan", COMPLETE)
    click.echo(made.source_template % made.source_vars())
