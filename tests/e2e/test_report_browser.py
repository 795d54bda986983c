"""report.html in a real browser: navigation, themes and widths, without console errors or requests."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autoqec.reporting import html
from autoqec.reporting.serve import ReportServer
from autoqec.store.layout import RunLayout
from tests.support import runs
from tests.support.browser import NAMES, Browser, find_browser

pytestmark = pytest.mark.skipif(
    find_browser() is None,
    reason=f"no Chromium on PATH (looked for {', '.join(NAMES)}); install: apt-get install chromium",
)

LOOKS = [
    pytest.param({"width": 1280, "height": 900, "dark": False}, id="light"),
    pytest.param({"width": 1280, "height": 900, "dark": True}, id="dark"),
    pytest.param({"width": 390, "height": 844, "dark": False}, id="phone"),
    pytest.param({"width": 390, "height": 844, "dark": True}, id="phone-dark"),
]
HOSTILE = '</script></svg><script>window.owned = 1</script><img src=//evil.example/x onerror="window.owned = 2">'


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.fixture
def fresh(browser: Browser) -> Browser:
    browser.fresh()
    browser.look()
    return browser


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    layout = runs.make_run(tmp_path_factory.mktemp("run") / "workspace", 12)
    runs.add_pending_round(layout, 13, "the next idea")
    return html.write([layout], layout.html)


def place(number: int) -> str:
    return f"run-{runs.RUN_ID}-round-{number}"


def clean(browser: Browser, address: str) -> None:
    assert browser.complaints == []
    assert {request.split("#")[0] for request in browser.requests if not request.startswith("data:")} == {address}


@pytest.mark.parametrize("look", LOOKS)
def test_node_opens_the_diff_of_its_round(fresh: Browser, page: Path, look: dict[str, Any]) -> None:
    fresh.look(**look)
    fresh.open(page.as_uri())
    diff = f"document.getElementById('{place(5)}').querySelector('.diff ins')"
    assert not fresh.js(f"{diff}.checkVisibility()")
    fresh.click(f".tree a[href='#{place(5)}'] circle")
    assert fresh.js(f"{diff}.checkVisibility()") and "hidden: 37" in fresh.js(f"{diff}.innerText")
    assert fresh.js("document.activeElement.parentElement.id") == place(5)
    # The page does not overflow: wide elements scroll.
    assert fresh.js("document.documentElement.scrollWidth") == look["width"]
    dark = fresh.js("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 27)"
    assert dark is look["dark"]
    clean(fresh, page.as_uri())


def test_page_is_usable_with_the_keyboard(fresh: Browser, page: Path) -> None:
    fresh.open(page.as_uri())
    fresh.press("Tab")
    assert fresh.js("document.activeElement.className") == "skip"
    fresh.js(f"document.querySelector(\".tree a[href='#{place(3)}']\").focus()")
    assert fresh.js("getComputedStyle(document.activeElement).outlineStyle") != "none" or fresh.js(
        "getComputedStyle(document.activeElement.querySelector('rect')).fill"
    )
    fresh.press("Enter")
    assert fresh.js(f"document.getElementById('{place(3)}').open") is True
    # A second visit to the same round, after closing it.
    fresh.js(f"document.getElementById('{place(3)}').open = false")
    fresh.js(f"document.querySelector(\".tree a[href='#{place(3)}']\").focus()")
    fresh.press("Enter")
    assert fresh.js(f"document.getElementById('{place(3)}').open") is True
    clean(fresh, page.as_uri())


def test_point_of_the_front_opens_its_round(fresh: Browser, page: Path) -> None:
    fresh.open(page.as_uri())
    link = fresh.js("document.querySelector('.plot a').getAttribute('href')")
    fresh.click(".plot a use, .plot a path")
    assert fresh.js(f"document.querySelector('{link}').open") is True


def test_front_switches_between_flops_and_time(fresh: Browser, page: Path) -> None:
    fresh.open(page.as_uri())
    axis = "[...document.querySelectorAll('[data-option]')].filter(e => e.checkVisibility()).map(e => e.innerText)"
    assert len(shown := fresh.js(axis)) == 1 and "FLOPs per shot" in shown[0]
    fresh.click(".options button:nth-child(2)")
    assert len(shown := fresh.js(axis)) == 1 and "correlated matching" in shown[0]
    pressed = "[...document.querySelectorAll('.options button')].map(e => e.getAttribute('aria-pressed'))"
    assert fresh.js(pressed) == ["false", "true"]
    link = fresh.js("document.querySelector('[data-option=time] a').getAttribute('href')")
    fresh.click("[data-option=time] a use, [data-option=time] a path")
    assert fresh.js(f"document.querySelector('{link}').open") is True
    fresh.js("location.reload()")
    fresh.open(page.as_uri())
    assert fresh.js(pressed) == ["false", "true"], "kept in the session"
    fresh.js("document.querySelector('.options button').focus()")
    fresh.press("Enter")
    assert fresh.js(pressed) == ["true", "false"]
    clean(fresh, page.as_uri())


def test_button_switches_the_theme(fresh: Browser, page: Path) -> None:
    fresh.look(dark=True)
    fresh.open(page.as_uri())
    seen = []
    for _ in range(3):
        fresh.click("#theme")
        seen.append((fresh.js("document.getElementById('theme').textContent"), colour(fresh)))
    assert sorted(name for name, _ in seen) == ["Theme: dark", "Theme: light", "Theme: system"]
    assert dict(seen)["Theme: light"] != dict(seen)["Theme: dark"] == dict(seen)["Theme: system"]
    # The colours of the charts follow.
    assert fresh.js("getComputedStyle(document.querySelector('.plot text')).fill") != "rgb(27, 31, 36)"


def colour(browser: Browser) -> str:
    return str(browser.js("getComputedStyle(document.body).backgroundColor"))


def test_table_is_sorted_by_its_headers(fresh: Browser, page: Path) -> None:
    fresh.open(page.as_uri())
    sizes = "[...document.querySelectorAll('table.sortable tbody tr')].map(r => r.cells[6].dataset.sort)"
    fresh.click("table.sortable thead th:nth-child(7) button")
    down = [value for value in fresh.js(sizes) if value]
    assert down == sorted(down, key=float, reverse=True) and fresh.js(sizes)[-1] == ""
    fresh.click("table.sortable thead th:nth-child(7) button")
    assert [value for value in fresh.js(sizes) if value] == down[::-1] and fresh.js(sizes)[-1] == ""
    assert fresh.js("document.querySelector('th[aria-sort]').getAttribute('aria-sort')") == "ascending"


def test_elements_have_accessible_names(fresh: Browser, page: Path) -> None:
    fresh.open(page.as_uri())
    fresh.click(f".tree a[href='#{place(5)}'] circle")
    nodes = fresh.call("Accessibility.getFullAXTree")["nodes"]
    seen = [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes if not node["ignored"]]
    for role, name in seen:
        if role in ("link", "button", "image", "region", "DisclosureTriangle", "heading"):
            assert name, f"a {role} without a name"
    roles = [role for role, _ in seen]
    assert roles.count("main") == 1 and sum(role == "link" and "Round 5," in name for role, name in seen) == 1
    levels = [
        int(node["properties"][0]["value"]["value"]) for node in nodes if node.get("role", {}).get("value") == "heading"
    ]
    assert levels[0] == 1 and all(after - before <= 1 for before, after in zip(levels, levels[1:], strict=False))


def test_untrusted_text_runs_no_script(fresh: Browser, tmp_path: Path) -> None:
    def hostile(row: dict[str, Any]) -> dict[str, Any]:
        keys = ("hypothesis", "analysis", "summary_1line", "next_hypothesis_seed", "ideator_source")
        return row | dict.fromkeys(keys, HOSTILE) | {"dsl_config": {HOSTILE: HOSTILE}}

    layout = runs.make_run(tmp_path / "workspace", 3, change=hostile)
    for row in runs.rows(layout):
        if row["verify_verdict"]:
            report = json.dumps(runs.report_of(row, HOSTILE).dump())
            layout.round(row["round"]).report_json.write_text(report, encoding="utf-8")
    path = html.write([layout], layout.html)
    fresh.open(path.as_uri())
    assert fresh.js("window.owned") is None and HOSTILE in fresh.js("document.body.textContent")
    assert fresh.js("document.images.length") == 0
    clean(fresh, path.as_uri())


def test_followed_page_shows_progress(fresh: Browser, tmp_path: Path) -> None:
    layout = runs.make_run(tmp_path / "workspace", 2)
    with ReportServer([layout]) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            fresh.open(server.address)
            fresh.click(f".tree a[href='#{place(1)}'] circle")
            waited(fresh, "document.getElementById('state').textContent === 'following'")
            grown(layout)
            waited(fresh, "document.body.textContent.includes('a round that came later')")
            assert fresh.js(f"document.getElementById('{place(1)}').open") is True
            assert fresh.complaints == []
            assert all(request.startswith((server.address, "data:")) for request in fresh.requests)
        finally:
            server.shutdown()
            thread.join()


def grown(layout: RunLayout) -> None:
    row = runs.rows(layout)[0]
    runs.append(layout, row | {"round": 3, "round_attempt_id": "x", "hypothesis": "a round that came later"})


def waited(browser: Browser, condition: str) -> None:
    for _ in range(100):
        browser.settle(0.1)
        if browser.js(f"document.readyState === 'complete' && {condition}"):
            return
    raise AssertionError(f"never: {condition}")
