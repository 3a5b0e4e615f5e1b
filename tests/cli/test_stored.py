"""`kvplan show` and `kvplan report`: every stored result is drawn again, and pages need nothing from elsewhere."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import sys
from html.parser import HTMLParser
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from kvplan.cli.main import main
from kvplan.errors import ExitCode
from kvplan.plan import PlanRequest, make_plan
from kvplan.plan.shares import memory_shares
from kvplan.report.schema import result_schema
from kvplan.report.stored import KINDS

ROOT = Path(__file__).parents[2]
VALIDATION = ROOT / "docs/results/validate_qwen2.5-7b_32k_x16_h200.json"
COMMANDS = (
    "estimate llama-3.1-8b --context 32k --kv int8:group/32,asym --gpu h200",
    "estimate gemma-3-4b --gpu l4",
    "estimate llama-3.1-8b --context 32k --batch 4 --gpu h200 --engine vllm --tp 2",
    "estimate llama-3.1-8b --context 128k --batch 64 --gpu l4",
    "recommend llama-3.1-8b --gpu h200 --concurrency 60 --context 32k",
    "layouts llama-3.1-8b --gpus 4 --gpu h200",
    "solve llama-3.1-8b --gpu h200 --context 32k",
    "diff llama-3.1-8b llama-3.1-8b --context 4k --b='--kv int8'",
)


def out(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(list(argv)) == 0
    return capsys.readouterr().out


def stored(capsys: pytest.CaptureFixture[str], folder: Path, line: str) -> str:
    path = folder / "result.json"
    path.write_text(out(capsys, *shlex.split(line), "--json"))
    return str(path)


@pytest.mark.parametrize("line", COMMANDS)
def test_show_is_what_the_command_drew(capsys: pytest.CaptureFixture[str], tmp_path: Path, line: str) -> None:
    path = stored(capsys, tmp_path, line)
    assert out(capsys, "show", path) == out(capsys, *shlex.split(line))


def test_show_explains_a_plan(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = stored(capsys, tmp_path, COMMANDS[0])
    assert out(capsys, "show", path, "--explain") == out(capsys, *shlex.split(COMMANDS[0]), "--explain")
    assert main(["show", str(VALIDATION), "--explain"]) == ExitCode.USAGE


def test_show_a_validation(capsys: pytest.CaptureFixture[str]) -> None:
    shown = out(capsys, "show", str(VALIDATION))
    assert "read roof 4.62 TB/s" in shown and "fp8_e4m3:head" in shown


def test_show_a_reconciliation(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("written_logs_3", ROOT / "tests/reconcile/written.py")
    assert spec and spec.loader
    written = importlib.util.module_from_spec(spec)
    sys.modules["written_logs_3"] = written
    spec.loader.exec_module(written)
    log = tmp_path / "server.log"
    for one in (written.LLAMA_CPP[-1], written.VLLM[0], written.SGLANG[0]):
        log.write_text("\n".join(written.lines_of(one)))
        path = stored(capsys, tmp_path, f"reconcile {log}")
        assert out(capsys, "show", path) == out(capsys, "reconcile", str(log))
    data = json.loads(Path(path).read_text())
    schema = result_schema("reconciliation")
    assert set(data) == set(schema["properties"]) and set(data["log"]) == set(
        schema["$defs"]["StoredLog"]["properties"]
    )
    assert set(data["compared"][0]) == set(schema["$defs"]["StoredCompared"]["properties"])
    data["compared"][0]["residual"] = 7
    Path(path).write_text(json.dumps(data))
    assert main(["show", path]) == ExitCode.INPUT
    assert "does not follow" in capsys.readouterr().err


def test_standard_input(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Path(stored(capsys, tmp_path, COMMANDS[0])).open() as file:
        monkeypatch.setattr(sys, "stdin", file)
        assert "llama-3.1-8b" in out(capsys, "show", "-")


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"schema": "kvplan.plan/9"}', '{"schema": "kvplan.plan/1"}', '{"schema": "kvplan.diff/1"}'],
)
@pytest.mark.parametrize("command", [["show"], ["report", "--md"]])
def test_what_is_no_result(capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, command: list[str]) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    assert main([command[0], str(path), *command[1:]]) == ExitCode.INPUT
    error, hint = capsys.readouterr().err.splitlines()
    assert error.startswith("error: ") and hint.startswith("hint: ")


def test_files_that_cannot_be_read(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path, tmp_path / "absent", tmp_path / "binary"):
        assert main(["show", str(path)]) == ExitCode.INPUT


class Page(HTMLParser):
    """Checks that tags are closed in order and collects what a page would load."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "link", "img"):
            self.open.append(tag)
        self.loads += [tag] if tag in ("script", "link", "img", "iframe") else []
        self.loads += [name for name, _ in attrs if name in ("src", "href")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("line", [*COMMANDS, ""])
def test_pages_have_every_figure(capsys: pytest.CaptureFixture[str], tmp_path: Path, line: str) -> None:
    path = stored(capsys, tmp_path, line) if line else str(VALIDATION)
    html, md = out(capsys, "report", path, "--html"), out(capsys, "report", path, "--md")
    page = Page()
    page.feed(html)
    assert page.open == [] and page.loads == [] and "@import" not in html
    # A picture may point to its own parts.
    assert not re.search(r"url\((?!#)|href=\"(?!#)", html)
    assert ("<svg" in html) == (not line)
    shown = out(capsys, "show", path)
    for figure in set(re.findall(r"\d[\d,.]*\d", shown)):
        assert figure in html and figure in md, figure


def test_a_page_shows_the_gpu(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = stored(capsys, tmp_path, COMMANDS[2])
    target = tmp_path / "plan.html"
    assert out(capsys, "report", path, "--html", "--out", str(target)) == ""
    html = target.read_text()
    assert 'class="bar"' in html and "cuda graphs" in html and "@media print" in html


def test_a_wrong_report(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["report", str(VALIDATION)]) == ExitCode.USAGE
    assert main(["report", str(VALIDATION), "--png"]) == ExitCode.USAGE
    ladder = stored(capsys, tmp_path, COMMANDS[1])
    assert main(["report", ladder, "--png", "--out", str(tmp_path / "x.png")]) == ExitCode.USAGE
    assert main(["report", str(VALIDATION), "--md", "--out", str(tmp_path / "no" / "x.md")]) == ExitCode.INPUT
    path = stored(capsys, tmp_path, COMMANDS[0])
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main(["report", path, "--png", "--out", str(tmp_path / "x.png")]) == ExitCode.UNSUPPORTED
    assert "kvplan-advisor[png]" in capsys.readouterr().err


def test_a_picture(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figure = MagicMock()
    monkeypatch.setitem(sys.modules, "matplotlib", MagicMock())
    monkeypatch.setitem(sys.modules, "matplotlib.figure", figure)
    target = tmp_path / "x.png"
    assert main(["report", stored(capsys, tmp_path, COMMANDS[0]), "--png", "--out", str(target)]) == 0
    drawn = figure.Figure.return_value
    assert drawn.savefig.call_args.args == (target,)
    labels = [call.kwargs["label"] for call in drawn.add_subplot.return_value.barh.call_args_list]
    assert any(label.startswith("kv payload") for label in labels)


def test_pictures_of_plans_and_validations(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for path in (stored(capsys, tmp_path, COMMANDS[0]), str(VALIDATION)):
        target = tmp_path / "x.png"
        assert main(["report", path, "--png", "--out", str(target)]) == 0
        assert target.read_bytes().startswith(b"\x89PNG") and target.stat().st_size > 10_000
        target.unlink()


@pytest.mark.parametrize(
    "fields",
    [
        {"gpu": "h200", "context": 32768, "batch": 8},
        {"gpu": "h200", "context": 32768, "batch": 8, "engine": "vllm"},
        {"gpu": "h200", "context": 32768, "batch": 8, "engine": "transformers"},
        {"gpu": "l4", "context": 131072, "batch": 64},
        {"gpu": "l4", "context": 131072, "batch": 64, "engine": "sglang"},
        {"gpu": "h200", "context": 8192, "draft": "llama-3.2-1b"},
        {"context": 8192, "kv": "kivi2"},
    ],
)
def test_the_pieces_add_up(fields: dict[str, object]) -> None:
    plan = make_plan(PlanRequest(model="llama-3.1-8b", **fields))  # type: ignore[arg-type]
    memory = memory_shares(plan)
    assert sum(s.nbytes for s in memory.shares) == memory.total_bytes + memory.missing_bytes
    assert (memory.missing_bytes > 0) == (plan.verdict is not None and not plan.verdict.fits)


def test_the_table_of_kinds() -> None:
    assert all(each.schema == f"kvplan.{name}/1" for name, each in KINDS.items())
