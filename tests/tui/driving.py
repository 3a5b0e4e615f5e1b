"""What the tests of the full-screen planner share: it runs without a terminal."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from textual.pilot import Pilot

from kvplan.tui.app import PlanApp
from kvplan.tui.choices import Choices
from kvplan.tui.results import Line

Script = Callable[[PlanApp, Pilot[None]], Awaitable[None]]


def drive(script: Script, size: tuple[int, int] = (80, 24), choices: Choices | None = None) -> None:
    """Run a script against the app."""

    async def run() -> None:
        app = PlanApp(choices or Choices("llama-3.1-8b"))
        app.animation_level = "none"
        async with app.run_test(size=size) as pilot:
            await until(pilot, lambda: app.drawn == app.choices)
            await script(app, pilot)

    asyncio.run(run())


async def until(pilot: Pilot[None], done: Callable[[], bool]) -> None:
    """Wait for something that a thread or a timer brings."""
    for _ in range(500):
        if done():
            return
        await pilot.pause(0.01)
    raise AssertionError("it did not happen")


async def settled(app: PlanApp, pilot: Pilot[None]) -> None:
    """The plan and the tables of the form as it is now."""
    await until(pilot, lambda: app.drawn == app.choices)
    await until(pilot, lambda: app.tabled == app.choices)
    await pilot.pause()


def screen(app: PlanApp) -> str:
    """Everything that is drawn, as text."""
    width, height = app.size
    lines = app.screen._compositor.render_strips()
    assert len(lines) == height and all(line.cell_length == width for line in lines)
    return "\n".join(line.text for line in lines)


def line(app: PlanApp, name: str) -> str:
    return app.query_one(f"#{name}", Line).text
