"""Every command, option, format, engine and exit code is documented, and what pages name exists."""

from __future__ import annotations

import re
import sys
from typing import Any

import click
import pytest
from pages import PAGES, REPO, read

from kvplan.cli.main import COMMANDS, cli
from kvplan.engines import engine_names
from kvplan.errors import ExitCode
from kvplan.formats.grammar import GRANULARITIES, NAMES, NUMBERS, OPTIONS, PAIRS

INLINE = re.compile(r"`(kvplan [^`]+)`")


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(REPO / "tools"))
    monkeypatch.delitem(sys.modules, "commands_page", raising=False)
    import commands_page

    return commands_page


def options(command: click.Command) -> set[str]:
    return {flag for param in command.params for flag in param.opts if flag.startswith("-")} | {"--help", "-h"}


def test_the_page_of_commands_is_current(tool: Any) -> None:
    assert read("docs/commands.md") == tool.page(), "run python tools/commands_page.py"


def test_every_command_option_and_exit_code_is_on_it(tool: Any) -> None:
    sections = dict(re.findall(r"^## kvplan (.+?)\n(.*?)(?=^## |\Z)", read("docs/commands.md"), re.M | re.S))
    found = dict(tool.commands())
    assert set(found) == set(sections) and set(COMMANDS) <= set(found)
    for words, command in found.items():
        for flag in options(command):
            assert re.search(rf"(?<![\w-]){flag}(?![\w-])", sections[words]), (words, flag)
    for code in ExitCode:
        row = rf"^\| {code.value} \| {code.name.lower().replace('_', ' ')} \| \S.+ \|$"
        assert re.search(row, read("docs/commands.md"), re.M), code


def test_every_format_and_engine_has_its_place() -> None:
    grammar = read("docs/formats.md")
    for word in (*NAMES, *PAIRS):
        assert f"### `{word}`" in grammar, word
    for word in (*NUMBERS, *GRANULARITIES, *OPTIONS):
        assert re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", grammar), word
    for name in engine_names():
        assert f"## {name}\n" in read("docs/engines.md")


def test_every_command_is_in_the_readme() -> None:
    missing = [name for name in COMMANDS if not re.search(rf"`(kvplan )?{name}\b", read("README.md"))]
    assert missing == []


@pytest.mark.parametrize("page", [p for p in PAGES if p not in ("CHANGELOG.md", "docs/add_an_engine.md")])
def test_commands_in_sentences_exist(page: str) -> None:
    for text in INLINE.findall(read(page)):
        words = text.split()[1:]
        if words[0].startswith("-") or words[0].isupper():
            continue
        assert words[0] in COMMANDS, f"{page}: {text}"
        command = cli.get_command(click.Context(cli), words[0])
        assert command is not None
        if isinstance(command, click.Group) and len(words) > 1:
            command = command.commands.get(words[1], command)
        flags = {word.split("=")[0] for word in words if re.fullmatch(r"--?[a-z][\w-]*(=.*)?", word)}
        # What follows --a= and --b= of a comparison are options of estimate.
        assert flags <= options(command), f"{page}: {text}"


@pytest.mark.parametrize("page", PAGES)
def test_links_and_paths_exist(page: str) -> None:
    text = read(page)
    for target in re.findall(r"\]\((?!https?://)([^)#]+)(?:#[^)]*)?\)", text):
        assert ((REPO / page).parent / target).exists(), f"{page}: {target}"
    if page == "CHANGELOG.md":
        return
    for path in re.findall(r"`((?:docs|kvplan|tests|tools|benchmarks|model_specs)/[\w./-]+\.\w+)(?:::\w+)?`", text):
        # Pages that say how to add a file name it before it exists.
        assert (REPO / path).exists() or page.startswith("docs/add_a"), f"{page}: {path}"


@pytest.mark.parametrize("page", PAGES)
def test_tests_that_are_named_exist(page: str) -> None:
    for path, name in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", read(page)):
        assert f"def {name}(" in (REPO / path).read_text(encoding="utf-8"), f"{page}: {path}::{name}"


def test_no_place_of_this_machine_is_named() -> None:
    for page in PAGES:
        assert not re.search(r"/(work|root|home/\w+)/", read(page)), page
