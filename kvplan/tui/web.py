"""`kvplan tui --web`: the planner in a browser of this machine, through textual-serve.

textual-serve answers whoever connects. Here it listens on the loopback address alone, and every request must name it as
its host (else another name could be made to resolve to this machine), come from its own pages (else any web page that
is open could drive the planner), and carry the key of the printed address (else any user of this machine could). The
page may load nothing from elsewhere.
"""

from __future__ import annotations

import secrets
import shlex
import socket
import sys
from collections.abc import Awaitable, Callable

from kvplan.errors import UnsupportedError, UsageError

try:
    from aiohttp import web
    from aiohttp.typedefs import Middleware
    from textual_serve.server import Server
except ImportError:
    raise UnsupportedError(
        "the planner in a browser needs textual-serve, which is not installed", "pip install 'kvplan-advisor[web]'"
    ) from None

HOST = "127.0.0.1"
POLICY = "default-src 'self' 'unsafe-inline' 'wasm-unsafe-eval' data: blob:; connect-src 'self' ws://{host}; "
POLICY += "frame-ancestors 'none'"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class PlannerServer(Server):
    """Serves `kvplan tui` with these arguments, one process for each page that is open."""

    def __init__(self, words: list[str], port: int) -> None:
        super().__init__(shlex.join([sys.executable, "-m", "kvplan", "tui", *words]), HOST, port, title="kvplan")
        self.key = secrets.token_urlsafe(16)

    @property
    def address(self) -> str:
        """What the user opens."""
        return f"{self.public_url}/?key={self.key}"

    async def _make_app(self) -> web.Application:
        app = await super()._make_app()
        app.middlewares.append(self._guard())
        return app

    async def on_startup(self, app: web.Application) -> None:
        """The address and nothing else."""
        print(f"{self.address}  (Ctrl+C ends it)", flush=True)

    def initialize_logging(self) -> None:
        """No log: standard output has the address."""

    def _guard(self) -> Middleware:
        # Cookies are shared by all ports of a host.
        name, cookie = f"{self.host}:{self.port}", f"kvplan-{self.port}"

        @web.middleware
        async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
            origin = request.headers.get("Origin")
            needs_origin = request.path == "/ws"
            keyed = secrets.compare_digest(request.query.get("key", request.cookies.get(cookie, "")), self.key)
            if request.host != name or origin not in ({f"http://{name}"} if needs_origin else {None, f"http://{name}"}):
                raise web.HTTPForbidden(text=f"kvplan answers pages of http://{name} alone\n")
            if not keyed:
                raise web.HTTPForbidden(text="open the address that kvplan tui --web has printed\n")
            response = await handler(request)
            if not response.prepared:
                response.set_cookie(cookie, self.key, httponly=True, samesite="Strict")
                response.headers["Content-Security-Policy"] = POLICY.format(host=name)
                response.headers["Referrer-Policy"] = "no-referrer"
            return response

        return guard


def serve(words: list[str], port: int) -> None:
    """Serve until Ctrl+C.

    Args:
        words: arguments of `kvplan tui`.

    Raises:
        UsageError: another program has the port.
    """
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            free.bind((HOST, port))
        except OSError as error:
            raise UsageError(f"port {port} of {HOST} cannot be used: {error.strerror}", "give another --port") from None
        chosen = free.getsockname()[1]
    PlannerServer(words, chosen).serve()
