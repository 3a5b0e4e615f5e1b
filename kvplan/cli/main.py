"""Entry point of `kvplan`: a table of commands, imported only when invoked, and the one place that catches errors."""

from __future__ import annotations

import gc
import os
import sys
from importlib import import_module
from typing import Any

import click

from kvplan import __version__
from kvplan.errors import ExitCode, KvplanError, UsageError, did_you_mean

# Imports make many objects and little garbage: looking for it among them costs a tenth of a plan's time.
gc.set_threshold(100_000)

COMMANDS = {
    "estimate": (
        "kvplan.cli.estimate",
        "Exact cache bytes of a model, with the formula of each, and what fits on a GPU.",
    ),
    "tui": ("kvplan.cli.tui", "Plan on a full screen: every change is a new plan at once."),
    "solve": ("kvplan.cli.solve", "Users, context, GPUs or share of memory: the questions turned round."),
    "layouts": ("kvplan.cli.layouts", "All layouts of N GPUs that a model allows, ranked by the cache they hold."),
    "diff": ("kvplan.cli.diff", "Two plans side by side: stored ones, or models with options."),
    "engines": ("kvplan.cli.engines", "Inference engines: versions, cache formats, options and block rules."),
    "recommend": ("kvplan.cli.recommend", "Which cache to use for a model on a GPU: formats, layers, layout, and why."),
    "check": (
        "kvplan.cli.check",
        "A gate for CI: whether a recommended configuration still fits and keeps its bounds.",
    ),
    "reconcile": ("kvplan.cli.reconcile", "A start-up log of an engine, each figure explained by kvplan's own."),
    "show": ("kvplan.cli.show", "A stored result, drawn again."),
    "report": ("kvplan.cli.report", "A stored result as HTML, Markdown or a picture."),
    "schema": ("kvplan.cli.schema", "JSON schemas of what the commands print with --json."),
    "completion": ("kvplan.cli.completion", "Completion of commands, options and names for bash, zsh or fish."),
    "doctor": ("kvplan.cli.doctor", "What is installed, what can be done here, which defaults hold."),
    "specs": ("kvplan.cli.specs", "Models that kvplan knows, and specs from a config.json, GGUF file or hub id."),
    "capture": ("kvplan.cli.capture", "A model's own Q, K and V on a text, in a safetensors file."),
    "calibrate": ("kvplan.cli.calibrate", "Static scales for int8 and fp8 caches, checked on another text."),
    "quality": ("kvplan.cli.quality", "What formats cost a model in quality: KL, agreement, perplexity, measured."),
    "validate": ("kvplan.cli.validate", "Run the kernels: bytes, errors and times of a format on this machine."),
}
"""Command name to (module with the attribute `command`, one line of help). The only table of commands."""


COMPLETE = "_KVPLAN_COMPLETE"
"""Variable through which a shell asks; `kvplan completion` prints the script that sets it."""


def exit_codes() -> str:
    """The documented exit codes in one line."""
    return "Exit codes: " + ", ".join(f"{c.value} {c.name.lower().replace('_', ' ')}" for c in ExitCode) + "."


class LazyGroup(click.Group):
    """Imports a command's module only when that command is invoked, so that --help starts at once."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = import_module(COMMANDS[cmd_name][0]).command
        assert isinstance(command, click.Command)
        command.epilog = exit_codes()
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            raise UsageError(f"unknown command {args[0]!r}", did_you_mean(args[0], COMMANDS))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(
    cls=LazyGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=exit_codes(),
)
@click.version_option(__version__, prog_name="kvplan")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Plan, choose and prove a KV-cache format."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def main(argv: list[str] | None = None) -> int:
    """Run a command line (default: the process's own) and return its exit code; see `kvplan.errors.ExitCode`."""
    try:
        words = list(sys.argv[1:] if argv is None else argv)
        if argv is None and COMPLETE in os.environ:
            return _complete()
        # Not cli.main(): that one answers a closed pipe with exit code 1, which here would mean a defect.
        with cli.make_context("kvplan", words, default_map=_default_map(words)) as context:
            result: Any = cli.invoke(context)
        sys.stdout.flush()
        return result if isinstance(result, int) else ExitCode.OK
    except KvplanError as error:
        return _report(error.message, error.hint, error.exit_code)
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.NoSuchOption as error:
        command = error.ctx.command_path if error.ctx else "kvplan"
        near = f"did you mean {' or '.join(error.possibilities)}? " if error.possibilities else ""
        return _report(f"{command} has no option {error.option_name}", f"{near}see {command} --help", ExitCode.USAGE)
    except click.ClickException as error:
        where = error.ctx if isinstance(error, click.UsageError) else None
        command = where.command_path if where else "kvplan"
        return _report(error.format_message(), f"see {command} --help", ExitCode.USAGE)
    except (click.Abort, KeyboardInterrupt):
        return _report("interrupted", "finished results were kept", ExitCode.INTERRUPTED)
    except BrokenPipeError:
        # The reader has gone (kvplan ... | head); without this Python complains again while it shuts down.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.OK


def _default_map(words: list[str]) -> dict[str, Any] | None:
    """Defaults that the user has set for this command."""
    if not words or words[0] not in COMMANDS:
        return None
    from kvplan.cli.defaults import default_map

    return default_map(words[0])


def _complete() -> int:
    """Answer a shell that asks how a line may go on."""
    from click.shell_completion import shell_complete

    return shell_complete(cli, {}, "kvplan", COMPLETE, os.environ[COMPLETE])


def _report(message: str, hint: str, code: ExitCode) -> ExitCode:
    for name, text in (("error", message), ("hint", hint)):
        print(f"{name}: {' '.join(text.split())}", file=sys.stderr)
    return code
