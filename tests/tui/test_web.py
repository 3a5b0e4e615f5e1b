"""`kvplan tui --web`: who is answered, and that a browser shows the plan."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp.test_utils import TestClient, TestServer
from browser import browser, find_browser

from kvplan.cli.main import main
from kvplan.errors import ExitCode
from kvplan.tui.web import PlannerServer

REPO = Path(__file__).resolve().parents[2]
ADDRESS = re.compile(r"http://127\.0\.0\.1:(\d+)/\?key=([\w-]{20,})")
TERMINAL = """
Object.defineProperty(Object.prototype, "terminal", {configurable: true, set(made) {
  Object.defineProperty(this, "terminal", {value: made, writable: true, configurable: true, enumerable: true});
  if (made && made.buffer) window.shownTerminal = made;
}});
window.refused = [];
document.addEventListener("securitypolicyviolation", event => window.refused.push(event.blockedURI));
"""
"""Keeps the page's terminal, so that what it shows can be read as text, and the addresses that were refused."""
SCREEN = """
(() => {
  const buffer = window.shownTerminal && window.shownTerminal.buffer.active;
  if (!buffer) return "";
  return Array.from({length: buffer.length}, (_, i) => buffer.getLine(i).translateToString(true)).join("\\n");
})()
"""


@pytest.fixture
def served() -> Iterator[str]:
    """The address of a planner in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(REPO), str(REPO / "kernels")))}
    command = [sys.executable, "-m", "kvplan", "tui", "qwen2.5-7b", "--gpu", "h200", "--web", "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    try:
        found = ADDRESS.match(process.stdout.readline())
        assert found
        yield found[0]
    finally:
        process.terminate()
        process.wait(20)


def test_a_browser_shows_the_plan(served: str, tmp_path: Path) -> None:
    program = find_browser()
    if program is None:
        pytest.skip("needs Chromium: apt-get install chromium")

    async def run() -> None:
        async with browser(program, tmp_path) as page:
            await page.call("Page.enable")
            await page.call("Page.addScriptToEvaluateOnNewDocument", source=TERMINAL)
            await page.call("Page.navigate", url=served)
            text = await page.until(SCREEN, "28 layers x 4 kv heads x 32,768 tokens x 512 bytes")
            assert "qwen2.5-7b" in text and "NVIDIA H200" in text and "# weights" in text and "? Help" in text
            await page.evaluate("shownTerminal.focus()")
            for _ in range(4):
                await page.press("ArrowDown", 40)
            await page.press("ArrowLeft", 37)
            await page.until(SCREEN, "28 layers x 4 kv heads x 16,384 tokens x 512 bytes")
            # Nothing came from elsewhere: the browser refused what the page of textual-serve would load.
            asked = await page.evaluate("performance.getEntriesByType('resource').map(e => e.name)")
            refused = await page.evaluate("refused")
            foreign = {name for name in asked if not name.startswith(served[: served.index("?")])}
            assert len(asked) > len(foreign) and foreign <= set(refused)

    asyncio.run(run())


def test_who_is_answered() -> None:
    """Pages of this address with the key; nobody else, whatever the browser was made to send."""

    async def run() -> None:
        made = PlannerServer(["llama-3.1-8b"], free_port())
        server = TestServer(await made._make_app(), host="127.0.0.1", port=made.port)
        own = f"http://127.0.0.1:{made.port}"
        async with TestClient(server, cookie_jar=aiohttp.DummyCookieJar()) as client:

            async def status(path: str, **headers: str) -> int:
                async with client.get(path, headers=headers) as answer:
                    return answer.status

            key, cookie = f"?key={made.key}", f"kvplan-{made.port}={made.key}"
            assert await status(f"/{key}") == 200
            assert await status("/", Cookie=cookie) == 200
            assert await status(f"/{key}", Origin=own) == 200
            assert await status("/") == 403
            assert await status("/?key=wrong") == 403
            assert await status(f"/{key}", Host="evil.example") == 403
            assert await status(f"/{key}", Host=f"evil.example:{made.port}") == 403
            assert await status(f"/{key}", Origin="http://evil.example") == 403
            assert await status("/static/js/textual.js") == 403
            upgrade = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13"}
            upgrade["Sec-WebSocket-Key"] = "AAAAAAAAAAAAAAAAAAAAAA=="
            for headers in ({}, {"Origin": "http://evil.example"}, {"Origin": "null"}, {"Origin": own, "Host": "x"}):
                assert await status("/ws", Cookie=cookie, **upgrade, **headers) == 403
            assert await status("/ws", **upgrade, Origin=own) == 403
            async with client.get(f"/{key}") as answer:
                policy = answer.headers["Content-Security-Policy"]
                assert "default-src 'self'" in policy and f"ws://127.0.0.1:{made.port};" in policy
                assert "HttpOnly" in answer.headers["Set-Cookie"] and "SameSite=Strict" in answer.headers["Set-Cookie"]

    asyncio.run(run())


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        number: int = one.getsockname()[1]
        return number


def test_without_textual_serve(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delitem(sys.modules, "kvplan.tui.web")
    monkeypatch.setitem(sys.modules, "textual_serve.server", None)
    assert main(["tui", "--web", "--port", "0"]) == ExitCode.UNSUPPORTED
    assert "kvplan-advisor[web]" in capsys.readouterr().err


def test_a_port_in_use_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        one.listen()
        assert main(["tui", "--web", "--port", str(one.getsockname()[1])]) == ExitCode.USAGE
    assert "give another --port" in capsys.readouterr().err
    assert main(["tui", "no-such-model", "--web"]) == ExitCode.INPUT
