"""HTTP: the newest bulletin for Prometheus, for probes, for programs and for people. GET only; it changes nothing.

The standard library's threading WSGI server, on threads of its own. Owns addresses below `/`, and what a stranger may
cost: requests at once, and their time. Knows the board alone: it never touches what the loop works on, and the loop
never waits for it.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import io
import ipaddress
import json
import socket
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import fields
from importlib.resources import files
from socketserver import TCPServer, ThreadingMixIn
from typing import TYPE_CHECKING, Any, Self, cast
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from replayd.board import PATIENCE_S, STALE_S, Board, Bulletin, TablePoint
from replayd.errors import BindError, Fault
from replayd.fault_log import FaultLog
from replayd.rendered import Rendered

if TYPE_CHECKING:
    from replayd.metrics import Exposition

REQUESTS = 16
"""Requests at once, each on a thread; further connections are closed. A browser and a few scrapers need less."""

REQUEST_S = 10.0
"""Time in which a request must have arrived and its answer have been taken."""

EXPOSITION = "text/plain; version=0.0.4; charset=utf-8"
"""Prometheus's text format, which every scraper takes."""

PARTS = (
    ("vendor/uPlot.min.css", "plot style", "style"),
    ("page.css", "style", "style"),
    ("vendor/uPlot.iife.min.js", "plot", "script"),
    ("drawing.js", "drawing", "script"),
    ("page.js", "script", "script"),
)
"""What the page is made of beside page.html: the file, its place there, and what the browser takes it for."""

Answer = tuple[str, str, bytes]
"""Status, content type and body."""


class StatusServer:
    """Serves a board at `listen`, HOST:PORT, from `start` to `close`. Port 0 picks a free one.

    Raises BindError if the address cannot be had.
    """

    def __init__(self, board: Board, listen: str) -> None:
        host, _, port = listen.rpartition(":")
        host = {"*": "", "localhost": "127.0.0.1"}.get(host, host.strip("[]"))
        try:
            self._server = _Server(host, int(port))
        except OSError as error:
            is_taken = error.errno == errno.EADDRINUSE
            raise BindError(f"http://{listen}", str(error.strerror), is_taken=is_taken) from error
        self._pages = _Pages(board, only_here=_is_loopback(host))
        self._server.set_app(self._pages)
        self._closing = False
        self._thread = threading.Thread(target=self._serve, name="replayd-http", daemon=True)

    @property
    def address(self) -> str:
        """Where it is, with the port that was picked."""
        host, port = self._server.server_address[:2]
        return f"http://[{host!s}]:{port}" if ":" in str(host) else f"http://{host!s}:{port}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Serve from now on."""
        self._thread.start()

    def close(self) -> None:
        """Serve no more. Requests that are being answered are cut off when the process ends."""
        self._closing = True
        # Wakes the thread, which waits for a connection.
        with suppress(OSError):
            self._server.socket.shutdown(socket.SHUT_RDWR)
        self._server.server_close()
        self._pages.close()

    def _serve(self) -> None:
        while not self._closing:
            # The socket may be closed at any point of it.
            with suppress(OSError, ValueError):
                self._server.handle_request()


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, host: str, port: int) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._free = threading.Semaphore(REQUESTS)
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        # HTTPServer would ask for the host's full name, for which a name server may take seconds.
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def get_request(self) -> Any:
        try:
            return super().get_request()
        except OSError:
            # Without descriptors the connection goes on waiting, and would be tried again at once and for ever.
            time.sleep(0.1)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:
            # The system has no thread left.
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away or was too slow: nothing to tell of."""


class _Timed(io.RawIOBase):
    """A connection that may be read and written until a moment, however little comes or goes at a time."""

    def __init__(self, connection: socket.socket, until: float) -> None:
        self._connection = connection
        self._until = until

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._allow_what_is_left()
        return self._connection.recv_into(buffer)

    def write(self, data: Any) -> int:
        self._allow_what_is_left()
        try:
            self._connection.sendall(data)
        except TimeoutError:
            # What is raised when a client hangs up is no fault of an application.
            raise ConnectionAbortedError("the client does not take its answer") from None
        return len(data)

    def _allow_what_is_left(self) -> None:
        left_s = self._until - time.monotonic()
        if left_s <= 0:
            raise ConnectionAbortedError("the time for this request is over")
        self._connection.settimeout(left_s)


class _Handler(WSGIRequestHandler):
    within_s = REQUEST_S

    def setup(self) -> None:
        super().setup()
        timed = _Timed(self.connection, time.monotonic() + self.within_s)
        self.rfile, self.wfile = io.BufferedReader(timed), cast(Any, timed)

    def log_message(self, format: str, *args: Any) -> None:
        """A scrape each second is not news."""


class _Pages:
    """The application."""

    def __init__(self, board: Board, only_here: bool) -> None:
        self._board = board
        self._only_here = only_here
        self._began_at = time.monotonic()
        self._page, self._policy = _page()
        self._json = Rendered(_json)
        self._history = Rendered(_history)
        self._exposed: Exposition | None = None
        self._lock = threading.Lock()
        self._lines = FaultLog()
        self._routes: dict[str, Callable[[], Answer]] = {
            "/": self._status_page,
            "/metrics": self._exposition,
            "/healthz": self._health,
            "/readyz": self._readiness,
            "/info.json": self._info,
            "/history.json": self._past,
        }

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        try:
            status, kind, body = self._answer(environ)
        except Exception as error:
            with self._lock:
                advice = "a fault of replayd's own: the lines above belong in a report of it"
                self._lines.tell(Fault(f"GET {environ.get('PATH_INFO')}", error, advice), time.monotonic())
            status, kind, body = _text("500 Internal Server Error", "this page has a fault, which is in the log")
        headers = [
            ("Content-Type", kind),
            ("Content-Length", str(len(body))),
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
            ("Content-Security-Policy", self._policy),
        ]
        if status.startswith("405"):
            headers.append(("Allow", "GET"))
        start_response(status, headers)
        return [body]

    def close(self) -> None:
        """Tell of the faults that were but counted."""
        with self._lock:
            self._lines.close(time.monotonic())

    def _answer(self, environ: dict[str, Any]) -> Answer:
        if environ["REQUEST_METHOD"] != "GET":
            return _text("405 Method Not Allowed", "only GET: nothing can be changed here")
        if self._only_here and not _is_loopback(_host_of(environ.get("HTTP_HOST", "localhost"))):
            # Else a page of another site could have its own name lead here, and read.
            return _text("403 Forbidden", "this is served to this machine alone: ask localhost, also through a tunnel")
        route = self._routes.get(environ["PATH_INFO"])
        if route is None:
            return _text("404 Not Found", f"there are: {' '.join(self._routes)}")
        return route()

    def _status_page(self) -> Answer:
        return "200 OK", "text/html; charset=utf-8", self._page

    def _exposition(self) -> Answer:
        # Not before the first scrape: a daemon that nobody scrapes starts without it.
        from replayd.metrics import Exposition

        if self._exposed is None:
            self._exposed = Exposition(self._board, time.monotonic)
        return "200 OK", EXPOSITION, self._exposed.text()

    def _health(self) -> Answer:
        """Whether the loop goes round and, before it serves, whether what it waits for gets on."""
        board, now = self._board, time.monotonic()
        bulletin = board.newest
        round_at = self._began_at if board.told_at is None else board.told_at
        if bulletin is not None:
            round_at = bulletin.taken_at
        age_s = now - round_at
        if age_s > STALE_S:
            return _text("503 Service Unavailable", f"the loop is stuck: it last went round {age_s:.1f} s ago")
        if bulletin is not None:
            return _text("200 OK", f"the loop went round {age_s:.1f} s ago")
        if board.advanced_at is not None and now - board.advanced_at > PATIENCE_S:
            stalled = f"for {now - board.advanced_at:.0f} s it has not got on: see to the disk"
            return _text("503 Service Unavailable", f"{board.state}; {stalled}")
        return _text("200 OK", board.state)

    def _readiness(self) -> Answer:
        """Whether requests are answered."""
        state = self._board.state
        return _text("503 Service Unavailable", state) if state else self._health()

    def _info(self) -> Answer:
        return self._of_bulletin(self._json)

    def _past(self) -> Answer:
        return self._of_bulletin(self._history)

    def _of_bulletin(self, rendered: Rendered) -> Answer:
        bulletin = self._board.newest
        if bulletin is None:
            return _text("503 Service Unavailable", self._board.state)
        # The age is of now, the rest of when it was rendered.
        head = f'{{"age_s": {time.monotonic() - bulletin.taken_at:.3f}, "stale_after_s": {STALE_S}, '.encode()
        return "200 OK", "application/json", head + rendered.get(bulletin)[1:]


def _json(bulletin: Bulletin) -> bytes:
    return json.dumps(bulletin.report, default=bytes.hex).encode()


def _history(bulletin: Bulletin) -> bytes:
    """The points column by column, the oldest first."""
    points = bulletin.history
    names = [table["name"] for table in bulletin.report["tables"]]
    keys = [each.name for each in fields(TablePoint)]
    tables = {
        name: {key: [getattr(point.tables[i], key) for point in points] for key in keys} for i, name in enumerate(names)
    }
    columns = {
        "at_s": [round(point.at_s, 3) for point in points],
        "resident_bytes": [point.resident_bytes for point in points],
        "tables": tables,
    }
    return json.dumps(columns).encode()


def _text(status: str, text: str) -> Answer:
    return status, "text/plain; charset=utf-8", f"{text}\n".encode()


def _page() -> tuple[bytes, str]:
    """The page, its style and scripts within it, and the policy that lets it run these and reach this server alone."""
    folder = files("replayd") / "page"
    page = (folder / "page.html").read_text("utf-8")
    allowed: dict[str, list[str]] = {"style": [], "script": []}
    for name, place, kind in PARTS:
        text = (folder / name).read_text("utf-8")
        page = page.replace(f"/* {place} */", text)
        allowed[kind].append(f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'")
    policy = (
        f"default-src 'none'; style-src {' '.join(allowed['style'])}; script-src {' '.join(allowed['script'])}; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return page.encode(), policy


def _host_of(header: str) -> str:
    """The host of a Host header: without port and brackets."""
    return header[1:].partition("]")[0] if header.startswith("[") else header.partition(":")[0]


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False
