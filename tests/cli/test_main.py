"""The command group: lazy, documented exit codes, and no traceback for what a user can do wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import click
import pytest

from kvplan import __version__
from kvplan.cli import main as main_module
from kvplan.cli.main import COMMANDS, cli, main
from kvplan.errors import ExitCode


def modules_after(argv: list[str]) -> set[str]:
    """Top-level modules that a command line has imported, in a process of its own."""
    code = (
        "import sys, json, kvplan.cli.main as m\n"
        f"code = m.main({argv!r})\n"
        "sys.stderr.write(json.dumps([int(code), sorted({n.partition('.')[0] for n in sys.modules})]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    exit_code, names = json.loads(done.stderr)
    assert exit_code == 0
    return set(names)


def test_help_imports_almost_nothing() -> None:
    names = modules_after(["--help"])
    assert "click" in names
    assert not names & {"pydantic", "pydantic_core", "yaml", "rich", "textual", "torch", "triton", "numpy"}


@pytest.mark.parametrize("how", [["--json"], []])
def test_planning_imports_nothing_heavy(how: list[str]) -> None:
    names = modules_after(["estimate", "llama-3.1-8b", "--context", "32k", "--kv", "int8", "--gpu", "h200", *how])
    assert not names & {"torch", "triton", "textual", "numpy", "kvplan_kernels"}
    assert ("rich" in names) == (not how)


def test_python_dash_m_and_a_closed_pipe() -> None:
    """`kvplan estimate ... | head -c 0`: the reader goes first; nothing is said about it."""
    read, write = os.pipe()
    os.close(read)
    argv = [sys.executable, "-m", "kvplan", "estimate", "llama-3.1-8b"]
    for extra in (["--json"], [], ["--help"]):
        done = subprocess.run([*argv, *extra], stdout=write, stderr=subprocess.PIPE, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
    os.close(write)


def test_help_lists_commands_and_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    for argv in ([], ["-h"], ["--help"]):
        assert main(argv) == 0
        out = " ".join(capsys.readouterr().out.split())
        for name, (_, text) in COMMANDS.items():
            assert name in out and text in out
        for code in ExitCode:
            assert f"{code.value} {code.name.lower().replace('_', ' ')}" in out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert __version__ in capsys.readouterr().out


def test_the_table_of_commands_is_true() -> None:
    context = click.Context(cli)
    command = cli.get_command(context, "estimate")
    assert command is not None and command.name == "estimate"
    assert cli.get_command(context, "nothing") is None


def test_every_option_has_help() -> None:
    command = cli.get_command(click.Context(cli), "estimate")
    assert command is not None
    for option in command.params:
        assert isinstance(option, click.Argument) or getattr(option, "help", None), option.name


@pytest.mark.parametrize("argv", [["estimat"], ["--nope"], ["estimate", "llama-3.1-8b", "--kv"]])
def test_usage_errors_are_two_lines(capsys: pytest.CaptureFixture[str], argv: list[str]) -> None:
    assert main(argv) == ExitCode.USAGE
    captured = capsys.readouterr()
    error, hint = captured.err.splitlines()
    assert captured.out == "" and error.startswith("error: ") and hint.startswith("hint: ")


def test_interruption(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(main_module.cli, "invoke", interrupted)
    assert main(["estimate"]) == ExitCode.INTERRUPTED
    assert "interrupted" in capsys.readouterr().err


def test_a_defect_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(main_module.cli, "invoke", broken)
    with pytest.raises(ZeroDivisionError):
        main(["estimate"])
