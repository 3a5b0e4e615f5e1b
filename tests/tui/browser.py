"""A headless Chromium, driven through its debugging protocol: open a page, run JavaScript in it, press keys."""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

NAMES = ("chromium", "chromium-browser", "google-chrome")
PATIENCE = 60.0
"""Seconds; a first start reads some hundreds of megabytes from the disk."""


def find_browser() -> str | None:
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Page:
    """One tab."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket, self._numbers = socket, itertools.count(1)

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._numbers)
        await self._socket.send_json({"id": number, "method": method, "params": params})
        while True:
            answer = await self._socket.receive_json(timeout=PATIENCE)
            if answer.get("id") == number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result

    async def evaluate(self, code: str) -> Any:
        answer = await self.call("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        return answer["result"].get("value")

    async def until(self, code: str, wanted: str) -> str:
        """Evaluate until the text has `wanted` in it."""
        text = ""
        stop = time.monotonic() + PATIENCE
        while time.monotonic() < stop:
            text = str(await self.evaluate(code) or "")
            if wanted in text:
                return text
            await asyncio.sleep(0.1)
        raise AssertionError(f"{wanted!r} was not seen in:\n{text}")

    async def press(self, key: str, code: int) -> None:
        for kind in ("keyDown", "keyUp"):
            await self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)


@asynccontextmanager
async def browser(program: str, folder: Path) -> AsyncIterator[Page]:
    """A tab of a new browser, which keeps everything in `folder`."""
    options = ["--headless", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--window-size=1400,900"]
    options += [f"--user-data-dir={folder}", "--remote-debugging-port=0", "--remote-allow-origins=*"]
    # As root there is no sandbox to be had.
    options += ["--no-sandbox"] if os.geteuid() == 0 else []
    process = subprocess.Popen([program, *options, "about:blank"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        port = folder / "DevToolsActivePort"
        for _ in range(int(PATIENCE / 0.05)):
            if port.is_file() and "\n" in port.read_text():
                break
            assert process.poll() is None, f"the browser ended with {process.returncode}"
            await asyncio.sleep(0.05)
        number = port.read_text().split()[0]
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{number}/json/list") as answer:
                tab = next(each for each in await answer.json(content_type=None) if each["type"] == "page")
            async with session.ws_connect(tab["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                yield Page(socket)
    finally:
        process.terminate()
        process.wait(20)
