"""What leaves the screen: a validation beside it, stored results, pages."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest
from driving import drive, screen, settled, until
from textual.pilot import Pilot
from textual.widgets import Static

from kvplan.plan import PlanRequest, make_plan
from kvplan.report.command import validate_command
from kvplan.report.pareto import pareto_lines
from kvplan.tui import validation
from kvplan.tui.app import PlanApp
from kvplan.tui.choices import Choices
from kvplan.tui.planner import Planner
from kvplan.tui.results import Table
from kvplan.tui.stored import Drawn, Stored, stored_files

ROOT = Path(__file__).parents[2]
REPORT = ROOT / "docs/results/validate_qwen2.5-7b_32k_x16_h200.json"
BESIDE = """
import json, pathlib, sys, time
report, out = json.loads(pathlib.Path(sys.argv[1]).read_text()), pathlib.Path(sys.argv[2])
for n in (2, len(report["results"])):
    part = report | {"results": report["results"][:n], "complete": n == len(report["results"])}
    out.with_suffix(".part").write_text(json.dumps(part))
    out.with_suffix(".part").replace(out)
    while n == 2 and not out.with_suffix(".go").exists():
        time.sleep(0.01)
"""
"""A process that writes a stored report in two parts, the second when it is told to."""
STOPPED = """
import signal, sys, time
signal.signal(signal.SIGINT, lambda *_: sys.exit(130))
print(flush=True)
time.sleep(60)
"""


def state(app: PlanApp) -> str:
    return str(app.screen.query_one("#state", Static).content)


def cells(app: PlanApp) -> list[list[str]]:
    table = app.screen.query_one(Table)
    return [[str(cell).strip() for cell in table.get_row_at(i)] for i in range(table.row_count)]


def test_a_validation_is_shown_while_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []

    def start(command: str, out: Path, errors: Path) -> subprocess.Popen[bytes]:
        started.append(command)
        return subprocess.Popen([sys.executable, "-c", BESIDE, str(REPORT), str(out)])

    monkeypatch.setattr(validation, "start", start)
    monkeypatch.setattr(validation, "EVERY", 0.02)

    async def script(app: PlanApp, pilot: Pilot[None]) -> None:
        await settled(app, pilot)
        await pilot.press("v")
        await until(pilot, lambda: isinstance(app.screen, validation.Validation))
        assert state(app) == "not started" and not started
        await pilot.press("enter")
        await until(pilot, lambda: len(cells(app)) == 5)
        assert [row[1] for row in cells(app)] == ["ok", "ok", "running", "waiting", "waiting"]
        assert isinstance(app.screen, validation.Validation)
        app.screen.report.with_suffix(".go").touch()
        await until(pilot, lambda: state(app).startswith("done: every check is green"))
        assert [row[1] for row in cells(app)] == ["ok"] * 5
        assert cells(app)[1][:3] == ["int8", "ok", "7 of 7"] and float(cells(app)[1][4]) > 0
        await pilot.press("o")
        await until(pilot, lambda: isinstance(app.screen, Drawn))
        await pilot.pause()
        assert "NVIDIA H200" in screen(app)
        await pilot.press("escape", "escape")
        await until(pilot, lambda: app.screen is app.main)

    drive(script, (120, 40), Choices("qwen2.5-7b", k="int8"))
    assert started == ["kvplan validate qwen2.5-7b --context 32768 --batch 1 --kv int8"]


def test_what_a_validation_complains_about_is_shown() -> None:
    """The real command, with a model that it cannot know."""

    async def script(app: PlanApp, pilot: Pilot[None]) -> None:
        await pilot.press("v")
        await until(pilot, lambda: isinstance(app.screen, validation.Validation))
        assert isinstance(app.screen, validation.Validation)
        app.screen.command = "kvplan validate no-such-model --kv int8"
        await pilot.press("enter")
        for _ in range(3000):
            if state(app) != "running":
                break
            await pilot.pause(0.02)
        assert state(app).startswith("error: ") and "hint: " in state(app)

    drive(script)


def test_a_running_validation_is_stopped_as_by_ctrl_c(tmp_path: Path) -> None:
    class Slow(validation.Validation):
        def action_run(self) -> None:
            code = STOPPED
            self.process = subprocess.Popen(
                [sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True
            )
            assert self.process.stdout is not None
            self.process.stdout.readline()

    async def script(app: PlanApp, pilot: Pilot[None]) -> None:
        shown = Slow("kvplan validate x")
        await app.push_screen(shown)
        await pilot.press("enter", "escape")
        assert shown.process is not None and shown.process.wait(10) == 130
        await pilot.press("escape")
        await until(pilot, lambda: app.screen is app.main)

    began = time.monotonic()
    drive(script)
    assert time.monotonic() - began < 50


def test_commands_of_validations() -> None:
    def command(**fields: object) -> list[str]:
        made = make_plan(PlanRequest.model_validate({"model": "llama-3.1-8b", "context": 4096, "batch": 2} | fields))
        return shlex.split(validate_command(made))[7:]

    assert command(kv="int8") == ["--kv", "int8"]
    assert command(k="int8", v="fp8_e4m3") == ["--kv", "int8", "--kv", "fp8_e4m3"]
    # The engine's scales lie beside the codes; their values are those of the format with planes of its own.
    assert command(kv="int8_per_token_head", engine="vllm", gpu="h200") == ["--kv", "int8,scale=fp32"]
    assert command(model="deepseek-v3", latent="fp8_ds_mla") == ["--latent", "fp8_ds_mla"]


def test_stored_results_are_listed_and_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_plan(PlanRequest(model="llama-3.1-8b", context=4096, kv="int8"))
    (tmp_path / "plan.json").write_text(plan.to_json())
    (tmp_path / "other.json").write_text("{}")
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "wrong.json").write_text(json.dumps({"schema": "kvplan.plan/1"}))
    assert [p.name for p in stored_files(tmp_path)] == ["plan.json", "wrong.json"]
    monkeypatch.chdir(tmp_path)

    async def script(app: PlanApp, pilot: Pilot[None]) -> None:
        for keys, words in (((), "32 layers x 8 kv heads x 4,096 tokens"), (("down",), "error: ")):
            await pilot.press("o")
            await until(pilot, lambda: isinstance(app.screen, Stored))
            await pilot.press(*keys, "enter")
            await until(pilot, lambda: isinstance(app.screen, Drawn))
            await pilot.pause()
            assert words in screen(app)
            await pilot.press("escape", "escape")
            await until(pilot, lambda: app.screen is app.main)

    drive(script, (120, 40))


def test_the_plan_becomes_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Path] = []
    monkeypatch.setattr(PlanApp, "open_page", lambda self, path: opened.append(path))

    async def script(app: PlanApp, pilot: Pilot[None]) -> None:
        await pilot.press("w")
        text = opened[0].read_text()
        assert text.startswith("<!DOCTYPE html>") and "32 layers x 8 kv heads x 32,768 tokens" in text

    drive(script)


def test_the_pareto_plot() -> None:
    planner = Planner()
    rows = planner.formats(Choices("llama-3.1-8b", "h200"), lambda: True)
    lines = pareto_lines(rows, 80, 20)
    assert len(lines) <= 20 and max(map(len, lines)) <= 80
    # The unquantised cache has no error, int8 by head is the smallest with one; fp8 by head is as large and worse.
    names = {word: letter for line in lines[-3:] for letter, word in (p.split(" ", 1) for p in line.split("  ") if p)}
    assert names["bf16"].isupper() and names["int8:head"].isupper() and names["fp8_e4m3:head"].islower()
    assert pareto_lines([], 80, 20) == ["no format here has an established error"]


def test_byte_maps_in_the_list_of_formats() -> None:
    planner = Planner()
    told = planner.byte_map(Choices("llama-3.1-8b", engine="vllm", k="int8_per_token_head"))
    assert told[1].endswith("0-127 k codes (128 int8); 128-131 k scale (1 fp32)")
    assert "no" in planner.byte_map(Choices("llama-3.1-8b", k="int99"))[0]
    assert planner.byte_map(Choices("falcon-mamba-7b", context="4k")) == [
        "this model has no rows that a format could store"
    ]
