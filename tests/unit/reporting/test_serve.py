"""Serving a report on loopback: new pages when files change, other hosts refused, damage does not end the server."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from autoqec.errors import UsageError
from autoqec.reporting.serve import ReportServer
from autoqec.store.layout import RunLayout
from tests.support import runs


@contextmanager
def served(layout: RunLayout) -> Iterator[ReportServer]:
    with ReportServer([layout]) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def get(server: ReportServer, path: str, host: str | None = None) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=30)
    connection.request("GET", path, headers={"Host": host} if host else {})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def test_page_is_updated_with_the_run(tmp_path: Path) -> None:
    layout = runs.make_run(tmp_path / "workspace", 1)
    with served(layout) as server:
        version, page = get(server, "/version")[1], get(server, "/")[1]
        assert "data-following" in page and "connect-src &#39;self&#39;" in page
        assert get(server, "/version")[1] == version
        runs.append(layout, runs.rows(layout)[0] | {"round": 2, "round_attempt_id": "x", "hypothesis": "a second one"})
        assert get(server, "/version")[1] != version
        assert "a second one" in get(server, "/")[1] and "a second one" not in page


def test_damaged_run_is_a_page_until_it_is_repaired(tmp_path: Path) -> None:
    layout = runs.make_run(tmp_path / "workspace", 2)
    whole = layout.history.read_bytes()
    with served(layout) as server:
        layout.history.write_bytes(b"{]\n" + whole)
        status, page = get(server, "/")
        assert status == 200 and "history.jsonl:1" in page and "This run cannot be shown" in page
        layout.history.write_bytes(whole)
        assert "Rounds in detail" in get(server, "/")[1]


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1:1", "[::1]"])
def test_requests_for_other_hosts_are_refused(tmp_path: Path, host: str) -> None:
    with served(runs.make_run(tmp_path / "workspace", 0)) as server:
        assert get(server, "/", host)[0] == 403
        assert server.server_address[0] == "127.0.0.1"


@pytest.mark.parametrize("path", ["/secret", "/../run.json", "/run.json", "/?x=1"])
def test_other_paths_are_not_found(tmp_path: Path, path: str) -> None:
    with served(runs.make_run(tmp_path / "workspace", 0)) as server:
        assert get(server, path)[0] == 404


def test_port_in_use_is_an_error(tmp_path: Path) -> None:
    layout = runs.make_run(tmp_path / "workspace", 0)
    with served(layout) as server, pytest.raises(UsageError, match="is not available"):
        ReportServer([layout], server.server_address[1])
