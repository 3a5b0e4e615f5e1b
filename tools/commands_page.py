"""Write docs/commands.md: every command with its help, and every exit code, from the commands themselves.

python tools/commands_page.py           write the page
python tools/commands_page.py --check   exit 1 if the page is not what the commands say
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click

from kvplan.cli.main import COMMANDS, cli
from kvplan.errors import ExitCode
from kvplan.report.answers import ANSWERS
from kvplan.report.stored import KINDS
from kvplan.texts import attribute_texts

PAGE = Path(__file__).resolve().parents[1] / "docs" / "commands.md"
WIDTH = 100
HEAD = """# Commands

<!-- Written by tools/commands_page.py; do not edit. -->

What `kvplan COMMAND --help` prints, and what every command returns. MODEL and formats: [README](../README.md),
[formats.md](formats.md). An error is one `error:` line and one `hint:` line on standard error.

## Exit codes

They are stable.

| code | name | meaning |
|---|---|---|
"""
STORED = """
## Stored results

`--json` prints one object, whose field `schema` says what it is. `kvplan schema KIND` prints its JSON schema; `kvplan
show` draws the stored object again and `kvplan report` makes a page of it (not of the last three).

| kind | schema | written by |
|---|---|---|
"""


def commands() -> Iterator[tuple[str, click.Command]]:
    """Every command and subcommand with the words that call it."""
    top = click.Context(cli, info_name="kvplan")
    for name in COMMANDS:
        command = cli.get_command(top, name)
        assert command is not None
        yield name, command
        for sub in command.commands.values() if isinstance(command, click.Group) else ():
            yield f"{name} {sub.name}", sub


def help_text(words: str, command: click.Command) -> str:
    """The help as it is printed in WIDTH columns."""
    parent = click.Context(cli, info_name="kvplan")
    *groups, last = words.split()
    for group in groups:
        parent = click.Context(click.Group(group), info_name=group, parent=parent)
    context = click.Context(
        command, info_name=last, parent=parent, terminal_width=WIDTH, max_content_width=WIDTH,
        help_option_names=["-h", "--help"],
    )  # fmt: skip
    return "\n".join(line.rstrip() for line in command.get_help(context).splitlines())


def page() -> str:
    """The whole page."""
    texts = attribute_texts(ExitCode)
    lines = [HEAD.rstrip()]
    lines += [f"| {code.value} | {code.name.lower().replace('_', ' ')} | {texts[code.name]} |" for code in ExitCode]
    lines.append(STORED.rstrip())
    lines += [f"| `{name}` | `{kind.schema}` | `kvplan {kind.command} --json` |" for name, kind in KINDS.items()]
    lines += [f"| `{name}` | `{schema}` | `kvplan {words} --json` |" for name, (schema, _, words) in ANSWERS.items()]
    for words, command in commands():
        lines += ["", f"## kvplan {words}", "", "```text", help_text(words, command), "```"]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Write or check the page."""
    if "--check" in sys.argv[1:]:
        return int(not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != page())
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
