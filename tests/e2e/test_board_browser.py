"""The page of a decoder board in a real browser: it sorts, draws, and loads nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from autoqec.extensions.board.circuits import load_circuits
from autoqec.extensions.board.export import page
from autoqec.extensions.board.results import cells
from autoqec.store.layout import PACKAGED_BOARD
from tests.support.browser import NAMES, Browser, find_browser
from tests.unit.extensions.board.test_results import measurement

pytestmark = pytest.mark.skipif(
    find_browser() is None,
    reason=f"no Chromium on PATH (looked for {', '.join(NAMES)}); install: apt-get install chromium",
)
HOSTILE = "</td><script>window.owned = 1</script><img src=//evil.example/x onerror='window.owned = 2'>"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    circuits = load_circuits(PACKAGED_BOARD)
    first, second = list(circuits.values())[:2]
    known = {"circuit": first.name, "circuit_sha256": first.sha256}
    table = cells(
        [
            measurement(**known, decoder="fast", failures=(30, 30), cpu_s=0.001),
            measurement(**known, decoder="good", failures=(5, 5), cpu_s=0.1),
            measurement(**known, decoder="bad", failures=(50, 50), cpu_s=0.2),
            measurement(circuit=second.name, circuit_sha256=second.sha256, status="error", message=HOSTILE),
        ]
    )
    path = tmp_path_factory.mktemp("page") / "board.html"
    path.write_text(page(circuits, table), encoding="utf-8")
    return path.as_uri()


@pytest.fixture
def fresh(browser: Browser, address: str) -> Browser:
    browser.fresh()
    browser.look()
    browser.open(address)
    return browser


def test_page_loads_nothing_and_runs_no_foreign_script(fresh: Browser, address: str) -> None:
    assert fresh.complaints == [] and fresh.js("window.owned === undefined")
    assert {request for request in fresh.requests if not request.startswith("data:")} == {address}
    assert "<script>window.owned" in fresh.js("document.querySelector('table').innerText")


def test_table_is_sorted_by_its_headers(fresh: Browser) -> None:
    rates = "[...document.querySelectorAll('table.sortable tbody tr')].map(row => row.cells[2].dataset.sort)"
    fresh.click("table.sortable thead th:nth-child(3) button")
    down = fresh.js(rates)
    assert len(down) == 4 and down == sorted(down, key=float, reverse=True)
    fresh.click("table.sortable thead th:nth-child(3) button")
    assert fresh.js(rates) == down[::-1]


def test_plot_shows_every_cell_and_the_pareto_front(fresh: Browser) -> None:
    assert fresh.js("document.querySelectorAll('.board-plot circle').length") == 3
    front = fresh.js("[...document.querySelectorAll('.board-plot .front text')].map(text => text.textContent)")
    assert sorted(front) == ["fast", "good"]
    assert fresh.js("document.querySelectorAll('#advice li').length") == 5
    assert "surface_d11" in fresh.js("document.getElementById('missing').textContent")


def test_page_fits_a_phone(fresh: Browser, address: str) -> None:
    fresh.look(width=390, height=844)
    fresh.open(address)
    assert fresh.js("document.documentElement.scrollWidth") == 390
