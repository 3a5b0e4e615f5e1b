"""docs/add_an_engine.md, followed to the letter: one file makes an engine that every command knows."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import kvplan.engines
from kvplan.cli.main import main

PAGE = Path(__file__).resolve().parents[2] / "docs" / "add_an_engine.md"


@pytest.fixture
def pagelet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The page's own file, in a folder that the package also looks into."""
    text = PAGE.read_text(encoding="utf-8")
    name = re.search(r"Save this as\s+`kvplan/engines/(\w+)\.py`", text)
    (code,) = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert name is not None
    (tmp_path / f"{name[1]}.py").write_text(code, encoding="utf-8")
    monkeypatch.setattr(kvplan.engines, "__path__", [*kvplan.engines.__path__, str(tmp_path)])
    yield name[1]
    sys.modules.pop(f"kvplan.engines.{name[1]}", None)


def commands() -> list[list[str]]:
    """The page's command lines, without `kvplan`."""
    (shell,) = re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    return [line.split()[1:] for line in shell.splitlines()]


def test_the_commands_run_and_the_hand_figures_are_right(pagelet: str, capsys: pytest.CaptureFixture[str]) -> None:
    for command in commands():
        assert main(command) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "pagelet" in shown and "spare page" in shown and "pool.py:10-40" in shown
    assert main([*commands()[1], "--json"]) == 0
    kv = json.loads(capsys.readouterr().out)["kv"]
    pages, spare = 32 * 2 * -(-1000 // 64) * 64 * 8 * 260, 32 * 64 * 8 * 260
    assert (kv["allocated_bytes"], kv["reserved_bytes"]) == (pages + spare, spare)
    text = PAGE.read_text(encoding="utf-8")
    assert f"{pages:,} bytes" in text and f"{pages + spare:,}" in text


def test_versions_formats_and_options_are_checked(pagelet: str, capsys: pytest.CaptureFixture[str]) -> None:
    base = ["estimate", "llama-3.1-8b", "--engine", pagelet]
    wrong = {
        ("--engine-version", "1.1", "--kv", "q8"): "Pagelet 1.1 has no cache format 'q8'",
        ("--engine-version", "0.9"): "kvplan has no rules for Pagelet 0.9",
        ("--engine-option", "page=16"): "Pagelet has no option 'page'",
        ("--page-size", "0"): "page size",
    }
    for options, message in wrong.items():
        assert main([*base, *options]) == 2
        assert message in capsys.readouterr().err


def test_recommend_offers_the_engine_s_formats_only(pagelet: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["recommend", "llama-3.1-8b", "--gpu", "h200", "--context", "32k", "--concurrency", "40"]
    assert main([*command, "--engine", pagelet, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {c["engine_formats"]["k"] for c in found["candidates"]} == {"auto", "q8"}
    assert found["recommended"]["candidate"]["engine_formats"] == {"k": "q8", "v": "q8"}


def test_without_the_file_the_engine_is_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["engines", "pagelet"]) == 2
    assert "unknown engine 'pagelet'" in capsys.readouterr().err
