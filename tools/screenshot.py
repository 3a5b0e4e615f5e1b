"""Write docs/screenshot.svg: the full-screen planner as it is, on the README's example.

python tools/screenshot.py
"""

from __future__ import annotations

import asyncio
import re
from html import unescape
from pathlib import Path

import kvplan.cli.main  # noqa: F401  (sets how often garbage is looked for, as the command does)
from kvplan.tui.app import PlanApp
from kvplan.tui.choices import Choices

PICTURE = Path(__file__).resolve().parents[1] / "docs" / "screenshot.svg"
FORM = Choices("llama-3.1-8b", "h200", "vllm", context="32k", batch="40", k="int8_per_token_head")
SIZE = (132, 36)


def draw() -> str:
    """The screen as SVG, without the web font that nothing here needs."""

    async def run() -> str:
        app = PlanApp(FORM)
        async with app.run_test(size=SIZE) as pilot:
            while app.tabled != app.choices or app.drawn != app.choices:
                await pilot.pause(0.02)
            await pilot.pause()
            return app.export_screenshot(title="kvplan tui")

    text = asyncio.run(run())
    return re.sub(r"\s*@font-face \{.*?\}\n", "\n", text, flags=re.DOTALL)


def words(svg: str) -> list[str]:
    """The texts of a picture, without its looks."""
    return [unescape(text).replace("\xa0", " ").rstrip() for text in re.findall(r"<text [^>]*>(.*?)</text>", svg)]


if __name__ == "__main__":
    PICTURE.write_text(draw(), encoding="utf-8")
