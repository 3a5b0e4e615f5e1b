"""The full-screen planner, driven by keys and the mouse without a terminal; test_snapshots.py has its looks."""

from __future__ import annotations

import pytest
from driving import drive, line, screen, settled, until
from textual.pilot import Pilot

from kvplan.plan import PlanRequest, make_plan
from kvplan.report.memory import segments
from kvplan.tui.app import PlanApp
from kvplan.tui.choices import Choices
from kvplan.tui.help import Help
from kvplan.tui.picker import Picker
from kvplan.tui.results import ContextTable, FormatTable, MemoryBar, PartTable

SIZES = [(80, 24), (160, 48)]


@pytest.mark.parametrize("size", SIZES)
def test_it_opens_with_a_plan(size: tuple[int, int]) -> None:
    async def script(app: PlanApp, pilot: Pilot[None]) -> None:
        await settled(app, pilot)
        plan = make_plan(PlanRequest(model="llama-3.1-8b", gpu="h100-80gb", context=32768))
        assert app.made and app.made.plan.to_json() == plan.to_json()
        seen = screen(app)
        for words in ("weights", "kv payload", "free", "14.96 GiB", "the request fits", "? Help", "q Quit", "int8"):
            assert words in seen, words
        assert "32 layers x 8 kv heads x 32,768 tokens" in line(app, "formula")

    drive(script, size)


def test_the_bar_is_the_gpu_in_words_and_patterns() -> None:
    plan = make_plan(PlanRequest(model="llama-3.1-8b", gpu="h100-80gb", context=32768, batch=8, engine="vllm"))
    pieces = segments(plan, 60)
    assert sum(p.cells for p in pieces) == 60 and all(p.cells for p in pieces)
    assert len({p.pattern for p in pieces}) == len(pieces)
    assert {"weights", "activations", "cuda graphs", "framework", "kv payload", "free", "outside"} <= {
        p.name for p in pieces
    }


def test_left_and_right_change_the_context() -> None:
    async def script(app: PlanApp, pilot: Pilot[None]) -> None:
        app.query_one("#field-context").focus()
        await pilot.press("right")
        await settled(app, pilot)
        assert app.choices.context == "64k" and app.made and app.made.plan.kv
        assert app.made.plan.kv.context == 65536
        await pilot.press("left", "minus", "plus", "left")
        await settled(app, pilot)
        assert app.choices.context == "16k"

    drive(script)


def test_the_mouse_changes_and_opens() -> None:
    async def script(app: PlanApp, pilot: Pilot[None]) -> None:
        field = app.query_one("#field-batch")
        await pilot.click(field, offset=(field.size.width - 1, 0))
        assert app.choices.batch == "2"
        await pilot.click(field, offset=(10, 0))
        assert app.choices.batch == "1"
        await pilot.click(field, offset=(3, 0))
        await until(pilot, lambda: isinstance(app.screen, Picker))

    drive(script)


def test_a_model_is_found_by_search() -> None:
    async def script(app: PlanApp, pilot: Pilot[None]) -> None:
        await pilot.press("m", *"deepseek v3")
        await until(pilot, lambda: isinstance(app.screen, Picker))
        await pilot.press("enter")
        await settled(app, pilot)
        assert app.choices.model.startswith("deepseek") and "v3" in app.choices.model
        assert app.made and app.made.plan.model.id == app.choices.model
        await pilot.press("m", "escape")
        assert app.choices.model.startswith("deepseek")

    drive(script)


def test_an_engine_brings_its_formats_and_its_command() -> None:
    async def script(app: PlanApp, pilot: Pilot[None]) -> None:
        await pilot.press("e", *"vllm", "enter")
        await settled(app, pilot)
        assert app.choices.engine == "vllm" and "activations" in screen(app)
        assert "fp8_e5m2" in app.choices.offered("k") and app.choices.offered("v") == ("as K",)
        await pilot.press("k", *"fp8", "enter")
        await settled(app, pilot)
        assert app.made and app.made.plan.engine and app.made.plan.engine.formats["k"] == "fp8"
        await pilot.press("c")
        assert app.clipboard.startswith("vllm serve") and "fp8" in app.clipboard
        await pilot.press("y")
        assert app.clipboard.startswith("kvplan estimate llama-3.1-8b") and "--kv fp8" in app.clipboard

    drive(script)


def test_formats_can_be_sorted_and_used() -> None:
    async def script(app: PlanApp, pilot: Pilot[None]) -> None:
        await settled(app, pilot)
        table = app.query_one(FormatTable)
        await pilot.press("s")
        sizes = [row.plan.kv.allocated_bytes for row in table.found if row.plan and row.plan.kv]
        assert table.by == "cache" and sizes == sorted(sizes)
        await pilot.press("s", "s")
        errors = [row.kl for row in table.found if row.kl is not None]
        assert table.by == "error" and errors == sorted(errors)
        await pilot.press("down", "enter")
        await settled(app, pilot)
        assert app.choices.k != "default" and app.made and app.made.plan.gain
        assert app.choices.k in line(app, "formula") or table.by == "error"

    drive(script, (160, 48))


def test_contexts_and_parts() -> None:
    async def script(app: PlanApp, pilot: Pilot[None]) -> None:
        await settled(app, pilot)
        await pilot.press("2", "enter")
        await settled(app, pilot)
        assert app.query_one(ContextTable).row_count == 8 and app.choices.context == "1024"
        await pilot.press("3", "down")
        await pilot.pause()
        assert app.query_one(PartTable).row_count > 3 and "K + V rows" in line(app, "formula")

    drive(script)


def test_k_and_v_apart() -> None:
    app = Choices("llama-3.1-8b", k="int8", v="fp8_e4m3")
    plan = make_plan(app.request())
    assert (plan.request.k, plan.request.v) == ("int8", "fp8_e4m3")
    assert make_plan(Choices("deepseek-v3", k="fp8_e4m3").request()).request.latent == "fp8_e4m3"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"context": "1M"}, "above the maximum"),
        ({"context": "many"}, "is not a count"),
        ({"tp": "7"}, "tp"),
        ({"k": "int99"}, "int99"),
        ({"model": "no-such-model"}, "no-such-model"),
    ],
)
def test_a_wrong_request_is_one_line_with_a_hint(changes: dict[str, str], words: str) -> None:
    async def script(app: PlanApp, pilot: Pilot[None]) -> None:
        good = app.choices
        for name, value in changes.items():
            app._changed(app.choices.change(name, value))
        await until(pilot, lambda: app.drawn == app.choices)
        status = f"{line(app, 'launch')} {line(app, 'status')}".strip()
        assert status.startswith("error: ") and "hint: " in status and words in status and "\n" not in status
        seen = screen(app)
        assert "error: " in seen and "hint: " in seen
        assert line(app, "title").startswith("last plan: ")
        await pilot.press("c")
        assert app.clipboard == ""
        app._changed(good)
        await until(pilot, lambda: app.drawn == good)
        assert line(app, "status") == "the request fits"

    drive(script)


def test_it_may_start_with_an_error_and_without_a_gpu() -> None:
    async def script(app: PlanApp, pilot: Pilot[None]) -> None:
        assert line(app, "launch").startswith("error: ") and app.made is None
        assert line(app, "status").startswith("hint: ")
        for key in ("c", "y", "s", "2", "3", "k", "escape"):
            await pilot.press(key)
        app._changed(Choices("llama-3.1-8b", gpu="none"))
        await until(pilot, lambda: app.drawn == app.choices)
        assert "no GPU" in screen(app)

    drive(script, choices=Choices("llama-3.1-8b", context="10M"))


def test_plans_arrive_below_an_open_list() -> None:
    async def script(app: PlanApp, pilot: Pilot[None]) -> None:
        await pilot.press("?")
        app._changed(app.choices.change("batch", "4"))
        await settled(app, pilot)
        await pilot.press("escape")
        assert app.made and app.made.plan.request.batch == 4

    drive(script)


def test_help_and_light() -> None:
    async def script(app: PlanApp, pilot: Pilot[None]) -> None:
        await pilot.press("?")
        await until(pilot, lambda: isinstance(app.screen, Help))
        await pilot.pause()
        assert "previous or next value" in screen(app)
        await pilot.press("escape")
        await pilot.press("t")
        assert app.theme == "textual-light"
        assert app.query_one(MemoryBar).plan is not None

    drive(script)
