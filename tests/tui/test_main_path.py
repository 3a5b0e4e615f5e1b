"""The way of a first visit, by keyboard alone: model, GPU, engine, context, format, figures, command."""

from __future__ import annotations

import shlex

from driving import drive, line, screen, settled, until
from textual.pilot import Pilot
from textual.widgets import Static

from kvplan.plan import PlanRequest, make_plan
from kvplan.tui.app import PlanApp
from kvplan.tui.picker import Picker
from kvplan.tui.results import ContextTable, FormatTable, ParetoPlot
from kvplan.tui.validation import Validation


def test_from_a_model_to_its_launch_command() -> None:
    async def pick(app: PlanApp, pilot: Pilot[None], key: str, text: str) -> None:
        await pilot.press(key)
        await until(pilot, lambda: isinstance(app.screen, Picker))
        await pilot.press(*text, "enter")
        await settled(app, pilot)

    async def script(app: PlanApp, pilot: Pilot[None]) -> None:
        await pick(app, pilot, "m", "qwen2.5 7b")
        await pick(app, pilot, "g", "h200")
        await pick(app, pilot, "e", "vllm")
        await pick(app, pilot, "x", "16k")
        await pick(app, pilot, "n", "128")
        assert (app.choices.model, app.choices.gpu, app.choices.engine) == ("qwen2.5-7b", "h200", "vllm")

        # A format, with the map of its bytes beside the name.
        await pilot.press("k", *"int8_per")
        await until(pilot, lambda: isinstance(app.screen, Picker))
        about = app.screen.query_one("#about", Static)
        await until(pilot, lambda: "128-131 k scale (1 fp32)" in str(about.content))
        await pilot.press("enter")
        await settled(app, pilot)

        plan = make_plan(
            PlanRequest(
                model="qwen2.5-7b", gpu="h200", engine="vllm", context=16384, batch=128, kv="int8_per_token_head"
            )
        )
        assert app.made and app.made.plan.to_json() == plan.to_json()
        assert line(app, "status") == "the request fits"

        await pilot.press("s")
        assert app.query_one(FormatTable).by == "cache"
        await pilot.press("2")
        await pilot.pause()
        assert app.query_one(ContextTable).row_count > 3 and app.query_one(ContextTable).has_focus
        await pilot.press("4")
        await pilot.pause()
        assert app.query_one(ParetoPlot).rows and "Pareto set of bytes and error" in screen(app)

        await pilot.press("c")
        assert app.clipboard.startswith("vllm serve Qwen/Qwen2.5-7B-Instruct")
        assert "--kv-cache-dtype int8_per_token_head" in app.clipboard
        await pilot.press("v")
        await until(pilot, lambda: isinstance(app.screen, Validation))
        assert isinstance(app.screen, Validation)
        words = shlex.split(app.screen.command)
        assert words[:3] == ["kvplan", "validate", "qwen2.5-7b"] and words[-2:] == ["--kv", "int8,scale=fp32"]
        await pilot.press("escape", "q")

    drive(script, (120, 40))
