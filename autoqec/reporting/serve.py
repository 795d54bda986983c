"""Serves the report of a run on the loopback interface and rebuilds it when the run's files change."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from autoqec.errors import AutoqecError, UsageError
from autoqec.reporting import html, run_report
from autoqec.store.layout import RunLayout

LOOPBACK = "127.0.0.1"
_NAMES = ("127.0.0.1", "localhost")


class LivePage:
    """The page for the current files; a run that cannot be read gives a page with the error."""

    def __init__(self, layouts: Sequence[RunLayout]) -> None:
        self.layouts = tuple(layouts)
        self._lock = threading.Lock()
        self._cached: tuple[str, str] | None = None

    def version(self) -> str:
        """Return a token that changes whenever the page would change."""
        seen = [
            (str(path), file_status.st_mtime_ns, file_status.st_size)
            for layout in self.layouts
            for path in _watched_files(layout)
            if (file_status := _stat(path)) is not None
        ]
        running = [run_report.is_running(layout) for layout in self.layouts]
        return hashlib.sha256(repr((seen, running)).encode()).hexdigest()[:16]

    def page(self) -> str:
        """Return the page, rebuilt if the files have changed."""
        with self._lock:
            version = self.version()
            if self._cached is None or self._cached[0] != version:
                self._cached = version, self._build()
            return self._cached[1]

    def _build(self) -> str:
        try:
            return html.page(run_report.load_pages(self.layouts), following=True)
        except AutoqecError as error:
            return html.notice(str(error))


class ReportServer(ThreadingHTTPServer):
    """HTTP server for `/` and `/version` on the loopback interface; `serve_forever` runs it."""

    daemon_threads = True

    def __init__(self, layouts: Sequence[RunLayout], port: int = 0) -> None:
        self.live_page = LivePage(layouts)
        try:
            super().__init__((LOOPBACK, port), _Handler)
        except OSError as error:
            message = f"port {port} is not available: {error.strerror}"
            raise UsageError(message, location="--port", hint="choose another port; 0 takes any free one") from error

    @property
    def address(self) -> str:
        """URL of the page."""
        return f"http://{LOOPBACK}:{self.server_address[1]}/"


class _Handler(BaseHTTPRequestHandler):
    server: ReportServer
    server_version = "autoqec"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer one request."""
        name, _, port = self.headers.get("Host", "").partition(":")
        # DNS rebinding: the name of a foreign site may resolve to this address.
        if name not in _NAMES or port not in ("", str(self.server.server_address[1])):
            self._answer(HTTPStatus.FORBIDDEN, "text/plain", "Request this page by 127.0.0.1.\n")
        elif self.path == "/":
            self._answer(HTTPStatus.OK, "text/html", self.server.live_page.page())
        elif self.path == "/version":
            self._answer(HTTPStatus.OK, "text/plain", self.server.live_page.version())
        else:
            self._answer(HTTPStatus.NOT_FOUND, "text/plain", "The only page is /\n")

    def _answer(self, status: HTTPStatus, kind: str, text: str) -> None:
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Do not log requests."""


def _watched_files(layout: RunLayout) -> tuple[Path, ...]:
    return layout.run_info, layout.history, layout.attempts, layout.pareto, layout.ledger


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None
