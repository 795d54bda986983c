"""The page about a run: whole, small, self-contained; foreign words are words; odd runs are pages that say so."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from autoqec.errors import AutoqecError
from autoqec.reporting import html, loss, run_report
from autoqec.store.layout import RunLayout
from tests.support import runs

HOSTILE = (
    "</script></style></pre></svg><script>alert(1)</script><img src=x onerror=alert(2)>"
    "\"'&{{ 7*7 }}$x^2$\x1b[31m\u202e\ud800|`"
)
VOID = {"meta", "link", "br", "img", "input", "hr", "path", "circle", "rect", "polyline", "use"}


class Page(HTMLParser):
    """What a browser would make of it: elements, their attributes, and whether every end meets its start."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []
        self.ids = [given["id"] for _, given in self.elements if "id" in given]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self._open.pop() == tag, f"</{tag}> ends another element"

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] not in ("script", "style"):
            self.words += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [given for name, given in self.elements if name == tag]


def shown(*layouts: RunLayout) -> tuple[str, Page]:
    text = html.page(run_report.load_pages(layouts))
    text.encode()
    return text, Page(text)


@pytest.fixture(scope="module")
def fifty(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Page]:
    return shown(runs.make_run(tmp_path_factory.mktemp("fifty") / "lab", 50))


def test_fifty_rounds_are_a_small_page(fifty: tuple[str, Page]) -> None:
    text, page = fifty
    assert len(text.encode()) < 1_000_000
    told = [given["id"] for given in page.all("details") if given.get("class") == "round"]
    assert told == [f"run-{runs.RUN_ID}-round-{number}" for number in range(1, 51)]


def test_nothing_is_fetched(fifty: tuple[str, Page]) -> None:
    text, page = fifty
    for tag, given in page.elements:
        assert tag not in ("iframe", "object", "embed", "base", "form")
        for name, value in given.items():
            assert not name.startswith("on"), f"{tag} {name}"
            if name in ("src", "href", "xlink:href", "action", "srcset", "poster"):
                assert (value or "").startswith(("#", "data:,")), f"{tag} {name}={value}"
    assert "@import" not in text and not re.search(r"url\((?!#)", text)
    assert "http://" not in re.sub(r'xmlns(:\w+)?="[^"]*"', "", text)
    policy = next(given["content"] for given in page.all("meta") if "http-equiv" in given)
    assert policy and policy.startswith("default-src 'none';") and "connect-src" not in policy


def test_every_link_leads_somewhere_and_every_id_stands_once(fifty: tuple[str, Page]) -> None:
    _, page = fifty
    assert len(page.ids) == len(set(page.ids))
    leads = [given["href"] for given in page.all("a")]
    assert len(leads) > 100
    assert {str(lead)[1:] for lead in leads} <= set(page.ids)
    named = [given for given in page.all("a") if str(given.get("href")).startswith("#run-") and "aria-label" in given]
    assert len(named) >= 50  # discs and nodes hold no words of their own


def test_a_round_tells_its_diff_its_config_and_how_to_get_it(fifty: tuple[str, Page]) -> None:
    text, page = fifty
    part = text.split(f'id="run-{runs.RUN_ID}-round-11"')[1].split('<details class="round"')[0]
    assert "<del>-  hidden: 32\n</del><ins>+  hidden: 43\n</ins>" in part
    assert f"git checkout exp/{runs.RUN_ID}/11-try" in part
    assert "12.0" not in part and "ablation" in part and "hardware noise" in part
    assert "Composition: synergy." in part and "more than the sum" in part
    assert "<polyline" in part and "mwpm_correlated" in part
    assert "tells more error patterns apart" in page.words


def test_the_claim_is_the_judges(fifty: tuple[str, Page]) -> None:
    _, page = fifty
    assert "this predecoder makes 32% fewer logical errors" in page.words


@pytest.mark.parametrize("form", ["svg", "png"])
def test_charts_are_files_that_repeat(tmp_path: Path, form: str) -> None:
    from autoqec.reporting import figures

    data = run_report.load_pages([runs.make_run(tmp_path / "lab", 6)])
    one, two = (figures.save(tmp_path / name, form, data) for name in ("one", "two"))
    assert [path.name for path in one] == [f"{name}.{form}" for name in ("front", "ler", "course")]
    assert [path.read_bytes() for path in one] == [path.read_bytes() for path in two]


def test_the_panel_has_its_curves(tmp_path: Path) -> None:
    import matplotlib

    from autoqec.reporting import charts

    data = run_report.load_pages([runs.make_run(tmp_path / "lab", 1)])
    with matplotlib.rc_context():
        figure = charts.ler_vs_p(data)
    assert figure is not None
    lines = {
        bars.get_label(): [round(float(y), 5) for y in bars.lines[0].get_ydata()] for bars in figure.axes[0].containers
    }
    assert lines == {
        "mwpm alone": [0.0032, 0.014, 0.084],
        "mwpm_correlated": [0.0024, 0.011, 0.076],
        "round 1": [0.002, 0.0095, 0.069],
    }


def test_a_disc_grows_with_the_parameters(tmp_path: Path) -> None:
    from matplotlib.collections import PathCollection

    from autoqec.reporting import charts

    def huge(row: dict[str, Any]) -> dict[str, Any]:
        size = {1: 100_000, 3: 200_000, 5: 400_000}.get(row["round"])
        return row | {"judge_n_params": size, "n_params": size} if size else row

    figure = charts.front(run_report.load_pages([runs.make_run(tmp_path / "lab", 5, change=huge)]))
    assert figure is not None
    discs = [found for found in figure.axes[0].collections if isinstance(found, PathCollection)]
    areas = {float(size) for found in discs for size in found.get_sizes()}
    assert {18 + 70 / 4, 18 + 70 / 2, 18.0 + 70} <= areas


def test_charts_of_many_rounds_have_no_more_artists(tmp_path: Path) -> None:
    """An artist for each round made a page of 400 rounds three times as slow."""
    from autoqec.reporting import charts

    few, many = (run_report.load_pages([runs.make_run(tmp_path / str(n), n, artifacts=False)]) for n in (10, 60))
    for draw in (charts.front, charts.search_progress):
        counts = [len([*figure.axes[0].collections, *figure.axes[0].lines]) for figure in map(draw, (few, many))]
        assert counts[1] <= counts[0] + 3  # entries of the legend


def test_a_few_judged_rounds_have_their_numbers(tmp_path: Path) -> None:
    from autoqec.reporting import charts

    def numbers(rounds: int) -> set[str]:
        figure = charts.front(run_report.load_pages([runs.make_run(tmp_path / f"of{rounds}", rounds, artifacts=False)]))
        assert figure is not None
        return {text.get_text() for text in figure.axes[0].texts}

    assert {"1", "3", "5"} <= {word for text in numbers(5) for word in text.split(", ")}
    assert "43" not in numbers(50)


def test_discs_on_each_other_share_a_label(tmp_path: Path) -> None:
    from autoqec.reporting import charts

    def alike(row: dict[str, Any]) -> dict[str, Any]:
        judged = row["verify_verdict"] is not None
        return row | ({"judge_flops_per_syndrome": 50_000, "delta_vs_baseline_holdout": 1e-3} if judged else {})

    figure = charts.front(run_report.load_pages([runs.make_run(tmp_path / "lab", 5, change=alike, artifacts=False)]))
    assert figure is not None
    assert [text.get_text() for text in figure.axes[0].texts if text.get_text()[0].isdigit()] == ["1, 3, 5"]


def test_the_course_shows_an_interval_for_whatever_was_measured(tmp_path: Path) -> None:
    from matplotlib.collections import LineCollection

    from autoqec.reporting import charts

    figure = charts.search_progress(run_report.load_pages([runs.make_run(tmp_path / "lab", 3, artifacts=False)]))
    assert figure is not None
    bars = [found for found in figure.axes[0].collections if isinstance(found, LineCollection)]
    assert sorted(float(segment[0][0]) for found in bars for segment in found.get_segments()) == [
        1 - charts.X_OFFSET,
        1 + charts.X_OFFSET,
        2 - charts.X_OFFSET,
        3 - charts.X_OFFSET,
        3 + charts.X_OFFSET,
    ]


def test_another_loss_is_another_stroke() -> None:
    learning = [(step, 15.0 - 0.01 * step) for step in range(0, 100, 2)]
    fine = [(step, 0.2 - 0.001 * (step - 100)) for step in range(100, 110, 2)]
    assert loss.stages([*learning, (99, 7.0), *fine]) == [learning, fine]  # a mean of both losses is of neither
    assert loss.stages(learning) == [learning]
    (_, one), (_, two) = loss.polylines([*learning, *fine])
    assert one.split()[0] == "0.0,0.0" and one.split()[-1].endswith(",80.0")
    assert two.split()[0].endswith(",0.0") and two.split()[-1] == "300.0,80.0"


def test_rates_stand_with_their_errors_and_shots(fifty: tuple[str, Page]) -> None:
    text, page = fifty
    rounds = text.split('<table class="sortable">')[1].split("</table>")[0]
    gain = re.search(r"\+12\.9% \[[^]]*\]%<br><small class=\"soft\">of 100k</small>", rounds)
    val = re.search(r"\+1\.80e-03<br><small class=\"soft\">\[[^]]*\] of 20k</small>", rounds)
    assert gain and val, rounds[:2000]
    assert re.search(r"INCONCLUSIVE \+\d+\.\d% \[", text.split("Fork graph</h2>")[1].split("</svg>")[0])
    assert "1,400 → 950 of 100,000" in page.words and "240 → 200 of 100,000" in page.words
    assert "1.750" not in page.words and "1.75M, plus 90k for fine-tuning" in page.words


def luminance(colour: str) -> float:
    """Relative luminance of `#rrggbb` (WCAG 2)."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_every_colour_of_text_can_be_read(fifty: tuple[str, Page], theme: int) -> None:
    found = re.findall(r"--(\w+): light-dark\((#\w{6}), (#\w{6})\)", fifty[0])
    shades = {name: luminance(pair[theme]) for name, *pair in found}
    for name in ("ink", "soft", "good", "warn", "bad", "mark", "second"):
        for ground in ("paper", "panel", *(("add", "del") if name == "ink" else ())):
            low, high = sorted((shades[name], shades[ground]))
            assert (high + 0.05) / (low + 0.05) >= 4.5, f"{name} on {ground}"


def test_no_round_yet(tmp_path: Path) -> None:
    layout = runs.make_run(tmp_path / "lab", 0)
    runs.add_pending_round(layout, 1, "a first idea")
    _, page = shown(layout)
    assert "No round has finished yet." in page.words and "a first idea" in page.words
    assert "autoqec reconcile" in page.words  # nobody runs it


def test_only_failures_say_what_failed(tmp_path: Path) -> None:
    _, page = shown(runs.make_run(tmp_path / "lab", 4, only_failures=True))
    assert "No decoder is verified: of 4 rounds, 0 went to verification and 4 ended without a result." in page.words
    assert "the loss is not finite at step 12" in page.words


def test_a_null_result_says_what_could_have_been_seen(tmp_path: Path) -> None:
    _, page = shown(runs.make_run(tmp_path / "lab", 2, change=lambda row: row | {"verify_verdict": None}))
    assert re.search(r"a gain below about \d+% may be missed", page.words)


def test_a_torn_tail_is_left_out(tmp_path: Path) -> None:
    layout = runs.make_run(tmp_path / "lab", 3)
    with layout.history.open("ab") as stream:
        stream.write(b'{"status": "ok", "round": 4, "hypoth')
    _, page = shown(layout)
    assert sum(given.get("class") == "round" for given in page.all("details")) == 3


def test_damage_in_the_middle_is_one_sentence(tmp_path: Path) -> None:
    layout = runs.make_run(tmp_path / "lab", 3)
    lines = layout.history.read_bytes().splitlines(keepends=True)
    layout.history.write_bytes(lines[0] + b"{]\n" + lines[2])
    with pytest.raises(AutoqecError, match=r"history\.jsonl:2"):
        run_report.load_pages([layout])


@pytest.mark.parametrize("spoil", ["pareto.json", "env.yaml", "fork_graph.json", "attempts.jsonl"])
def test_a_view_that_is_gone_or_spoilt_costs_its_part_only(tmp_path: Path, spoil: str) -> None:
    layout = runs.make_run(tmp_path / "lab", 3)
    (layout.root / spoil).unlink(missing_ok=True)
    _, page = shown(layout)
    assert "Rounds in detail" in page.words
    if spoil != "attempts.jsonl":
        (layout.root / spoil).write_bytes(b'[{"x": \xff')
        assert "Rounds in detail" in shown(layout)[1].words


def test_front_is_taken_from_history_and_not_from_its_view(tmp_path: Path) -> None:
    layout = runs.make_run(tmp_path / "lab", 3)
    before = shown(layout)[1].words
    entry = json.loads(layout.pareto.read_bytes())[0] | {"round_attempt_id": "of another run"}
    layout.pareto.write_text(json.dumps([entry]), encoding="utf-8")
    assert shown(layout)[1].words == before and "fewer" in before


def test_reports_and_logs_that_are_spoilt(tmp_path: Path) -> None:
    layout = runs.make_run(tmp_path / "lab", 2)
    layout.round(1).report_json.write_bytes(b'{"verdict": "VERIFIED"}')
    layout.round(1).train_log.write_bytes(b"0\tnan\n1\tinf\nx\ty\n\xff\n2\t0.5\n3\t\n")
    _, page = shown(layout)
    assert "Round 1 is verified" in page.words


def test_a_big_log_is_read_in_places(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("".join(f"{step}\t{1 / (step + 1):.9g}\n" for step in range(200_000)), encoding="utf-8")
    curve = loss.curve(log)
    assert 60 < len(curve) <= loss.CURVE_POINTS
    assert [step for step, _ in curve] == sorted({step for step, _ in curve}) and curve[-1][0] > 190_000
    assert all(abs(loss * (step + 1) - 1) < 0.9 for step, loss in curve[1:])


def test_follow_ups_replace_and_deleted_branches_are_marked(tmp_path: Path) -> None:
    layout = runs.make_run(tmp_path / "lab", 2)
    row = runs.rows(layout)[1]
    later = {"round_attempt_id": None, "reconcile_id": "r", "refers_to_attempt": "attempt-2"}
    runs.append(layout, row | later | {"hypothesis": "adopted later"})
    gone = {"status": "branch_manually_deleted", "status_reason": "gone", "branch": None, "commit_sha": None}
    runs.append(layout, row | later | gone | {"reconcile_id": "s"})
    _, page = shown(layout)
    assert sum(given.get("class") == "round" for given in page.all("details")) == 2
    assert "adopted later" in page.words and "branch deleted, commit kept" in page.words


def test_compositions_and_rings_of_parents(tmp_path: Path) -> None:
    def forked(row: dict[str, Any]) -> dict[str, Any]:
        names = [f"exp/{runs.RUN_ID}/{number:02d}-try" for number in (1, 2, 3)]
        ring = {1: names[1], 2: names[0]}
        if row["round"] in ring:
            return row | {"fork_from": ring[row["round"]], "fork_from_canonical": ring[row["round"]]}
        both = {"fork_from": names[:2], "fork_from_canonical": "|".join(names[:2]), "fork_from_ordered": names[:2]}
        return row | both | {"compose_mode": "pure"}

    text, page = shown(runs.make_run(tmp_path / "lab", 3, change=forked))
    assert 'class="more"' in text and "(pure)" in page.words
    assert text.count('class="node') == 3


def texts(value: Any, text: str) -> Any:
    """The value with every string in it replaced, keys of free maps too."""
    if isinstance(value, str):
        return text
    if isinstance(value, list):
        return [texts(one, text) for one in value]
    return {f"{text}{key}": texts(one, text) for key, one in value.items()} if isinstance(value, dict) else value


KEPT = {"status", "verdict", "verify_verdict", "round_attempt_id", "commit_sha", "branch", "compose_mode"}


def hostile(text: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def change(row: dict[str, Any]) -> dict[str, Any]:
        changed = {key: value if key in KEPT else texts(value, text) for key, value in row.items()}
        return changed | {
            "fork_from_canonical": changed["fork_from"],
            "branch": row["branch"] and f"{text}/{row['round']}",
        }

    return change


@pytest.mark.parametrize(
    "text", [HOSTILE, HOSTILE * 200, "\n" * 5000, "x" * 50_000, "\u0645\u0631\u062d\u0628\u0627 \U0001f9ea"]
)
def test_hostile_words_are_words(tmp_path: Path, text: str) -> None:
    layout = runs.make_run(tmp_path / "lab", 4, change=hostile(text))
    runs.add_pending_round(layout, 5, text[:300].replace("\ud800", ""))
    info = json.loads(layout.run_info.read_bytes())
    words = {"env_name": text, "ideator": text, "baseline_ref": text, "versions": {text: text}, "command_line": [text]}
    layout.run_info.write_text(json.dumps(info | words | {"run_id": text}), encoding="utf-8")
    for row in runs.rows(layout):
        if row["verify_verdict"]:
            report = runs.report_of(row, text).model_dump(mode="json")
            layout.round(row["round"]).report_json.write_text(json.dumps(report), encoding="utf-8")
        layout.round(row["round"]).train_log.write_text(text, encoding="utf-8", errors="replace")
    page_text, page = shown(layout)
    assert len(page.all("script")) == 1 and not page.all("img") and len(page.all("style")) == 1
    assert "\x1b" not in page_text and "\u202e" not in page_text
    assert len(page_text) < 1_500_000
    if text is HOSTILE:
        assert "<script>alert(1)</script>" in page.words and "{{ 7*7 }}" in page.words
    for _, given in page.elements:
        assert not [name for name in given if name.startswith("on")]


def test_ten_thousand_rounds_are_a_page_that_says_what_it_leaves_out(tmp_path: Path) -> None:
    layout = runs.make_run(tmp_path / "lab", 10_000, artifacts=False)
    text, page = shown(layout)
    assert len(text.encode()) < 2_000_000
    assert f"{run_report.MAX_LISTED_ROUNDS} of 10000 are listed" in page.words
    assert sum(given.get("class") == "round" for given in page.all("details")) == run_report.MAX_DETAILED_ROUNDS
    assert {str(given["href"])[1:] for given in page.all("a")} <= set(page.ids)


def test_runs_side_by_side(tmp_path: Path) -> None:
    one = runs.make_run(tmp_path / "lab", 6)
    two = runs.make_run(tmp_path / "lab", 2, run_id="20250102-030406", only_failures=True)
    _, page = shown(one, two)
    assert "2 runs compared" in page.words and "no verified round" in page.words
    assert len(page.ids) == len(set(page.ids))
    assert {str(given["href"])[1:] for given in page.all("a")} <= set(page.ids)
    info = json.loads(two.run_info.read_bytes()) | {"env_yaml_sha256": "b" * 64}
    two.run_info.write_text(json.dumps(info), encoding="utf-8")
    assert "These runs use different envs" in shown(one, two)[1].words


def test_what_holds_no_secret(tmp_path: Path) -> None:
    layout = runs.make_run(tmp_path / "lab", 2)
    layout.secret.write_text("the judge's own secret", encoding="utf-8")
    assert "the judge's own secret" not in shown(layout)[1].words


def test_importing_the_room_is_light() -> None:
    import subprocess
    import sys

    names = "html, charts, figures, tree, run_report, serve, watch, export"
    heavy = "{'torch', 'stim', 'matplotlib', 'networkx', 'scipy', 'numpy', 'jinja2'}"
    code = f"import sys; from autoqec.reporting import {names}; print(sorted({heavy} & set(sys.modules)))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"


def test_page_says_when_a_round_ran(tmp_path: Path) -> None:
    times = {"started_at": "2026-01-02T03:04:05Z", "finished_at": "2026-01-02T03:05:35Z", "proposal_wallclock_s": 3.0}
    layout = runs.make_run(tmp_path / "lab", 1, change=lambda row: row | times)
    assert "2026-01-02 03:04:05 UTC, 90.0 s: proposal 3.0 s" in html.page(run_report.load_pages([layout]))
