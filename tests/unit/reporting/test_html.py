"""HTML report: complete, small, self-contained; untrusted text is escaped; damaged runs still give a page."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autoqec.contracts.verdict import VerifyReport
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
    """A parsed page: elements, their attributes, and whether every end tag has its start tag."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []
        self.ids = [attributes["id"] for _, attributes in self.elements if "id" in attributes]

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
        return [attributes for name, attributes in self.elements if name == tag]


def render(*layouts: RunLayout) -> tuple[str, Page]:
    text = html.page(run_report.load_pages(layouts))
    text.encode()
    return text, Page(text)


@pytest.fixture(scope="module")
def fifty(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Page]:
    return render(runs.make_run(tmp_path_factory.mktemp("fifty") / "workspace", 50))


def test_fifty_rounds_are_a_small_page(fifty: tuple[str, Page]) -> None:
    text, page = fifty
    assert len(text.encode()) < 1_000_000
    ids = [attributes["id"] for attributes in page.all("details") if attributes.get("class") == "round"]
    assert ids == [f"run-{runs.RUN_ID}-round-{number}" for number in range(1, 51)]


def test_page_loads_no_external_resource(fifty: tuple[str, Page]) -> None:
    text, page = fifty
    for tag, attributes in page.elements:
        assert tag not in ("iframe", "object", "embed", "base", "form")
        for name, value in attributes.items():
            assert not name.startswith("on"), f"{tag} {name}"
            if name in ("src", "href", "xlink:href", "action", "srcset", "poster"):
                assert (value or "").startswith(("#", "data:,")), f"{tag} {name}={value}"
    assert "@import" not in text and not re.search(r"url\((?!#)", text)
    assert "http://" not in re.sub(r'xmlns(:\w+)?="[^"]*"', "", text)
    policy = next(attributes["content"] for attributes in page.all("meta") if "http-equiv" in attributes)
    assert policy and policy.startswith("default-src 'none';") and "connect-src" not in policy


def test_links_resolve_and_ids_are_unique(fifty: tuple[str, Page]) -> None:
    _, page = fifty
    assert len(page.ids) == len(set(page.ids))
    leads = [attributes["href"] for attributes in page.all("a")]
    assert len(leads) > 100
    assert {str(lead)[1:] for lead in leads} <= set(page.ids)
    named = [
        attributes
        for attributes in page.all("a")
        if str(attributes.get("href")).startswith("#run-") and "aria-label" in attributes
    ]
    assert len(named) >= 50  # points and nodes contain no text


def test_round_shows_its_diff_config_and_checkout_command(fifty: tuple[str, Page]) -> None:
    text, page = fifty
    part = text.split(f'id="run-{runs.RUN_ID}-round-11"')[1].split('<details class="round"')[0]
    assert "<del>-  hidden: 32\n</del><ins>+  hidden: 43\n</ins>" in part
    assert f"git checkout exp/{runs.RUN_ID}/11-try" in part
    assert "12.0" not in part and "ablation" in part and "hardware noise" in part
    assert "Composition: synergy." in part and "more than the sum" in part
    assert "<polyline" in part and "mwpm_correlated" in part
    assert "tells more error patterns apart" in page.words


def test_claim_is_that_of_the_verification_report(fifty: tuple[str, Page]) -> None:
    _, page = fifty
    assert "this predecoder makes 32% fewer logical errors" in page.words


@pytest.mark.parametrize("form", ["svg", "png"])
def test_charts_are_reproducible_files(tmp_path: Path, form: str) -> None:
    from autoqec.reporting import figures

    data = run_report.load_pages([runs.make_run(tmp_path / "workspace", 6)])
    first, second = (figures.save(tmp_path / name, form, data) for name in ("first", "second"))
    assert [path.name for path in first] == [
        f"{name}.{form}" for name in ("front", "front_time", "ler", "ratio", "course")
    ]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_baselines_have_their_curves(tmp_path: Path) -> None:
    import matplotlib

    from autoqec.reporting import charts_by_p

    data = run_report.load_pages([runs.make_run(tmp_path / "workspace", 1)])
    with matplotlib.rc_context():
        figure = charts_by_p.ler_vs_p(data)
    assert figure is not None
    lines = {
        bars.get_label(): [round(float(y), 5) for y in bars.lines[0].get_ydata()] for bars in figure.axes[0].containers
    }
    assert lines == {
        "mwpm alone": [0.0032, 0.014, 0.084],
        "mwpm_correlated": [0.0024, 0.011, 0.076],
        "round 1": [0.002, 0.0095, 0.069],
    }


def test_ratio_to_correlated_matching_has_its_intervals(tmp_path: Path) -> None:
    from matplotlib.collections import LineCollection

    from autoqec.reporting import charts_by_p

    (run,) = run_report.load_pages([runs.make_run(tmp_path / "workspace", 1)])
    figure = charts_by_p.ratio_vs_p([run])
    assert figure is not None
    axes = figure.axes[0]
    lines = {str(line.get_label()): [round(float(y), 4) for y in np.asarray(line.get_ydata())] for line in axes.lines}
    assert lines == {"mwpm_correlated": [1, 1], "round 1": [round(x, 4) for x in (200 / 240, 950 / 1100, 6900 / 7600)]}
    (bars,) = (found for found in axes.collections if isinstance(found, LineCollection))
    report = run.verification(run.rounds[0])
    assert report is not None
    correlated = [effect for effect in report.points if effect.reference == "mwpm_correlated"]
    correlated += [baseline.against for baseline in report.panel if baseline.name == "mwpm_correlated"]
    expected = {(1 - (effect.relative_high or 0), 1 - (effect.relative_low or 0)) for effect in correlated}
    assert {(low[1], high[1]) for low, high in bars.get_segments()} == expected


def test_reports_without_correlated_matching_have_no_ratio_chart(tmp_path: Path) -> None:
    from autoqec.reporting import charts_by_p

    (run,) = run_report.load_pages([runs.make_run(tmp_path / "workspace", 1)])
    for key, details in run.details.items():
        report = details.verification
        assert report is not None
        panel = tuple(baseline for baseline in report.panel if baseline.name == "mwpm")
        points = tuple(effect for effect in report.points if effect.reference == "mwpm")
        alone = report.model_copy(update={"panel": panel, "points": points})
        run.details[key] = dataclasses.replace(details, verification=alone)
    assert charts_by_p.ratio_vs_p([run]) is None and charts_by_p.ler_vs_p([run]) is not None


def test_front_by_time_shows_the_ratio_to_correlated_matching(tmp_path: Path) -> None:
    """Rounds whose times were not measured, as in version 1, are left out; without any there is no chart."""
    from autoqec.reporting import charts

    (run,) = run_report.load_pages([runs.make_run(tmp_path / "workspace", 4)])
    figure, by_flops = charts.front_by_time([run]), charts.front([run])
    assert figure is not None and by_flops is not None
    tested = [entry for entry in run.listed if entry.row.delta_vs_baseline_holdout is not None]
    places = figure.axes[0].collections[0].get_offsets()
    expected = {((4.0 + entry.row.round) / 10, entry.row.delta_vs_baseline_holdout) for entry in tested}
    assert {tuple(map(float, place)) for place in np.asarray(places)} == expected
    assert [list(line.get_xdata()) for line in figure.axes[0].lines if list(line.get_xdata()) == [1, 1]]
    assert figure.axes[0].get_xlabel() == "CPU time per shot ÷ correlated matching"
    for key, details in run.details.items():
        report = details.verification
        if report is not None and report.cost is not None:
            cost = report.cost.model_copy(update={"correlated_us_per_shot": None})
            report = report.model_copy(update={"cost": cost})
            run.details[key] = dataclasses.replace(details, verification=report)
    assert charts.front_by_time([run]) is None and charts.front([run]) is not None


def baseline_lines(tmp_path: Path, change: Callable[[VerifyReport], VerifyReport]) -> tuple[set[float], set[str]]:
    """Heights of the lines of the front chart and its labels, if the report of the best round is changed."""
    from autoqec.reporting import charts

    (run,) = run_report.load_pages([runs.make_run(tmp_path, 4)])
    assert run.best_verification is not None
    vars(run)["best_verification"] = change(run.best_verification)
    figure = charts.front([run])
    assert figure is not None
    lines = [list(line.get_ydata()) for line in figure.axes[0].lines]
    return {ys[0] for ys in lines if len(ys) == 2}, {text.get_text() for text in figure.axes[0].texts}


@pytest.mark.parametrize("reference", ["mwpm", "mwpm_correlated"])
def test_baselines_are_drawn_against_the_reference_of_the_gain(tmp_path: Path, reference: str) -> None:
    """On recorded shots the reference is the strongest baseline: its line is at 0 and the others are below it."""
    rates: dict[str, float] = {}

    def change(report: VerifyReport) -> VerifyReport:
        rates.update({member.name: member.rate.rate for member in report.panel})
        assert report.effect is not None
        return report.model_copy(update={"effect": report.effect.model_copy(update={"reference": reference})})

    heights, _ = baseline_lines(tmp_path / "workspace", change)
    assert len(set(rates.values())) == 2
    assert {rates[reference] - rate for rate in rates.values()} <= heights


def test_baselines_close_together_share_a_label(tmp_path: Path) -> None:
    def change(report: VerifyReport) -> VerifyReport:
        same = report.panel[0].model_copy(update={"name": "other"})
        return report.model_copy(update={"panel": (*report.panel, same)})

    _, labels = baseline_lines(tmp_path / "workspace", change)
    assert "mwpm, other" in labels and "mwpm_correlated" in labels


def test_point_size_grows_with_the_number_of_parameters(tmp_path: Path) -> None:
    from matplotlib.collections import PathCollection

    from autoqec.reporting import charts

    def huge(row: dict[str, Any]) -> dict[str, Any]:
        size = {1: 100_000, 3: 200_000, 5: 400_000}.get(row["round"])
        return row | {"judge_n_params": size, "n_params": size} if size else row

    figure = charts.front(run_report.load_pages([runs.make_run(tmp_path / "workspace", 5, change=huge)]))
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


def test_few_verified_rounds_are_labelled_by_number(tmp_path: Path) -> None:
    from autoqec.reporting import charts

    def numbers(rounds: int) -> set[str]:
        figure = charts.front(run_report.load_pages([runs.make_run(tmp_path / f"of{rounds}", rounds, artifacts=False)]))
        assert figure is not None
        return {text.get_text() for text in figure.axes[0].texts}

    assert {"1", "3", "5"} <= {word for text in numbers(5) for word in text.split(", ")}
    assert "43" not in numbers(50)


def test_overlapping_points_share_a_label(tmp_path: Path) -> None:
    from autoqec.reporting import charts

    def alike(row: dict[str, Any]) -> dict[str, Any]:
        verified = row["verify_verdict"] is not None
        return row | ({"judge_flops_per_syndrome": 50_000, "delta_vs_baseline_holdout": 1e-3} if verified else {})

    figure = charts.front(
        run_report.load_pages([runs.make_run(tmp_path / "workspace", 5, change=alike, artifacts=False)])
    )
    assert figure is not None
    assert [text.get_text() for text in figure.axes[0].texts if text.get_text()[0].isdigit()] == ["1, 3, 5"]


def test_search_progress_shows_an_interval_for_every_measurement(tmp_path: Path) -> None:
    from matplotlib.collections import LineCollection

    from autoqec.reporting import charts

    figure = charts.search_progress(run_report.load_pages([runs.make_run(tmp_path / "workspace", 3, artifacts=False)]))
    assert figure is not None
    bars = [found for found in figure.axes[0].collections if isinstance(found, LineCollection)]
    assert sorted(float(segment[0][0]) for found in bars for segment in found.get_segments()) == [
        1 - charts.X_OFFSET,
        1 + charts.X_OFFSET,
        2 - charts.X_OFFSET,
        3 - charts.X_OFFSET,
        3 + charts.X_OFFSET,
    ]


def test_each_loss_has_its_own_line() -> None:
    learning = [(step, 15.0 - 0.01 * step) for step in range(0, 100, 2)]
    fine = [(step, 0.2 - 0.001 * (step - 100)) for step in range(100, 110, 2)]
    assert loss.stages([*learning, (99, 7.0), *fine]) == [learning, fine]  # a mean over both losses describes neither
    assert loss.stages(learning) == [learning]
    (_, one), (_, two) = loss.polylines([*learning, *fine])
    assert one.split()[0] == "0.0,0.0" and one.split()[-1].endswith(",80.0")
    assert two.split()[0].endswith(",0.0") and two.split()[-1] == "300.0,80.0"


def test_rates_are_shown_with_errors_and_shots(fifty: tuple[str, Page]) -> None:
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
    parts = [int(colour[index : index + 2], 16) / 255 for index in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_text_colours_have_enough_contrast(fifty: tuple[str, Page], theme: int) -> None:
    found = re.findall(r"--(\w+): light-dark\((#\w{6}), (#\w{6})\)", fifty[0])
    shades = {name: luminance(pair[theme]) for name, *pair in found}
    for name in ("ink", "soft", "good", "warn", "bad", "mark", "second"):
        for ground in ("paper", "panel", *(("add", "del") if name == "ink" else ())):
            low, high = sorted((shades[name], shades[ground]))
            assert (high + 0.05) / (low + 0.05) >= 4.5, f"{name} on {ground}"


def test_run_without_rounds_has_a_page(tmp_path: Path) -> None:
    layout = runs.make_run(tmp_path / "workspace", 0)
    runs.add_pending_round(layout, 1, "a first idea")
    _, page = render(layout)
    assert "No round has finished yet." in page.words and "a first idea" in page.words
    assert "autoqec reconcile" in page.words  # no process owns the run


def test_run_with_only_failures_shows_their_reasons(tmp_path: Path) -> None:
    _, page = render(runs.make_run(tmp_path / "workspace", 4, only_failures=True))
    assert "No decoder is verified: of 4 rounds, 0 went to verification and 4 ended without a result." in page.words
    assert "the loss is not finite at step 12" in page.words


def test_null_result_states_the_detectable_effect(tmp_path: Path) -> None:
    _, page = render(runs.make_run(tmp_path / "workspace", 2, change=lambda row: row | {"verify_verdict": None}))
    assert re.search(r"a gain below about \d+% may be missed", page.words)


def test_torn_tail_is_skipped(tmp_path: Path) -> None:
    layout = runs.make_run(tmp_path / "workspace", 3)
    with layout.history.open("ab") as stream:
        stream.write(b'{"status": "ok", "round": 4, "hypoth')
    _, page = render(layout)
    assert sum(attributes.get("class") == "round" for attributes in page.all("details")) == 3


def test_damaged_line_in_the_middle_is_one_error(tmp_path: Path) -> None:
    layout = runs.make_run(tmp_path / "workspace", 3)
    lines = layout.history.read_bytes().splitlines(keepends=True)
    layout.history.write_bytes(lines[0] + b"{]\n" + lines[2])
    with pytest.raises(AutoqecError, match=r"history\.jsonl:2"):
        run_report.load_pages([layout])


@pytest.mark.parametrize("spoil", ["pareto.json", "env.yaml", "fork_graph.json", "attempts.jsonl"])
def test_missing_or_damaged_view_affects_only_its_section(tmp_path: Path, spoil: str) -> None:
    layout = runs.make_run(tmp_path / "workspace", 3)
    (layout.root / spoil).unlink(missing_ok=True)
    _, page = render(layout)
    assert "Rounds in detail" in page.words
    if spoil != "attempts.jsonl":
        (layout.root / spoil).write_bytes(b'[{"x": \xff')
        assert "Rounds in detail" in render(layout)[1].words


def test_front_is_computed_from_history(tmp_path: Path) -> None:
    layout = runs.make_run(tmp_path / "workspace", 3)
    before = render(layout)[1].words
    entry = json.loads(layout.pareto.read_bytes())[0] | {"round_attempt_id": "of another run"}
    layout.pareto.write_text(json.dumps([entry]), encoding="utf-8")
    assert render(layout)[1].words == before and "fewer" in before


def test_damaged_reports_and_logs_are_noted(tmp_path: Path) -> None:
    layout = runs.make_run(tmp_path / "workspace", 2)
    layout.round(1).report_json.write_bytes(b'{"verdict": "VERIFIED"}')
    layout.round(1).train_log.write_bytes(b"0\tnan\n1\tinf\nx\ty\n\xff\n2\t0.5\n3\t\n")
    _, page = render(layout)
    assert "Round 1 is verified" in page.words


def test_large_log_is_sampled(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("".join(f"{step}\t{1 / (step + 1):.9g}\n" for step in range(200_000)), encoding="utf-8")
    curve = loss.curve(log)
    assert 60 < len(curve) <= loss.CURVE_POINTS
    assert [step for step, _ in curve] == sorted({step for step, _ in curve}) and curve[-1][0] > 190_000
    assert all(abs(loss * (step + 1) - 1) < 0.9 for step, loss in curve[1:])


def test_follow_ups_replace_rows_and_deleted_branches_are_marked(tmp_path: Path) -> None:
    layout = runs.make_run(tmp_path / "workspace", 2)
    row = runs.rows(layout)[1]
    later = {"round_attempt_id": None, "reconcile_id": "r", "refers_to_attempt": "attempt-2"}
    runs.append(layout, row | later | {"hypothesis": "adopted later"})
    gone = {"status": "branch_manually_deleted", "status_reason": "gone", "branch": None, "commit_sha": None}
    runs.append(layout, row | later | gone | {"reconcile_id": "s"})
    _, page = render(layout)
    assert sum(attributes.get("class") == "round" for attributes in page.all("details")) == 2
    assert "adopted later" in page.words and "branch deleted, commit kept" in page.words


def test_compositions_and_cyclic_parents_are_shown(tmp_path: Path) -> None:
    def forked(row: dict[str, Any]) -> dict[str, Any]:
        names = [f"exp/{runs.RUN_ID}/{number:02d}-try" for number in (1, 2, 3)]
        ring = {1: names[1], 2: names[0]}
        if row["round"] in ring:
            return row | {"fork_from": ring[row["round"]], "fork_from_canonical": ring[row["round"]]}
        both = {"fork_from": names[:2], "fork_from_canonical": "|".join(names[:2]), "fork_from_ordered": names[:2]}
        return row | both | {"compose_mode": "pure"}

    text, page = render(runs.make_run(tmp_path / "workspace", 3, change=forked))
    assert 'class="more"' in text and "(pure)" in page.words
    assert text.count('class="node') == 3


def texts(value: Any, text: str) -> Any:
    """Return the value with every string replaced, including keys of free maps."""
    if isinstance(value, str):
        return text
    if isinstance(value, list):
        return [texts(item, text) for item in value]
    return {f"{text}{key}": texts(item, text) for key, item in value.items()} if isinstance(value, dict) else value


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
def test_untrusted_text_is_escaped(tmp_path: Path, text: str) -> None:
    layout = runs.make_run(tmp_path / "workspace", 4, change=hostile(text))
    runs.add_pending_round(layout, 5, text[:300].replace("\ud800", ""))
    info = json.loads(layout.run_info.read_bytes())
    words = {"env_name": text, "ideator": text, "baseline_ref": text, "versions": {text: text}, "command_line": [text]}
    layout.run_info.write_text(json.dumps(info | words | {"run_id": text}), encoding="utf-8")
    for row in runs.rows(layout):
        if row["verify_verdict"]:
            report = runs.report_of(row, text).model_dump(mode="json")
            layout.round(row["round"]).report_json.write_text(json.dumps(report), encoding="utf-8")
        layout.round(row["round"]).train_log.write_text(text, encoding="utf-8", errors="replace")
    page_text, page = render(layout)
    assert len(page.all("script")) == 1 and not page.all("img") and len(page.all("style")) == 1
    assert "\x1b" not in page_text and "\u202e" not in page_text
    assert len(page_text) < 1_500_000
    if text is HOSTILE:
        assert "<script>alert(1)</script>" in page.words and "{{ 7*7 }}" in page.words
    for _, attributes in page.elements:
        assert not [name for name in attributes if name.startswith("on")]


def test_page_of_ten_thousand_rounds_states_what_it_omits(tmp_path: Path) -> None:
    layout = runs.make_run(tmp_path / "workspace", 10_000, artifacts=False)
    text, page = render(layout)
    assert len(text.encode()) < 2_000_000
    assert f"{run_report.MAX_LISTED_ROUNDS} of 10000 are listed" in page.words
    assert (
        sum(attributes.get("class") == "round" for attributes in page.all("details")) == run_report.MAX_DETAILED_ROUNDS
    )
    assert {str(attributes["href"])[1:] for attributes in page.all("a")} <= set(page.ids)


def test_runs_are_compared_on_one_page(tmp_path: Path) -> None:
    first = runs.make_run(tmp_path / "workspace", 6)
    second = runs.make_run(tmp_path / "workspace", 2, run_id="20250102-030406", only_failures=True)
    _, page = render(first, second)
    assert "2 runs compared" in page.words and "no verified round" in page.words
    assert len(page.ids) == len(set(page.ids))
    assert {str(attributes["href"])[1:] for attributes in page.all("a")} <= set(page.ids)
    info = json.loads(second.run_info.read_bytes()) | {"env_yaml_sha256": "b" * 64}
    second.run_info.write_text(json.dumps(info), encoding="utf-8")
    assert "These runs use different envs" in render(first, second)[1].words


def test_page_contains_no_secret(tmp_path: Path) -> None:
    layout = runs.make_run(tmp_path / "workspace", 2)
    layout.secret.write_text("the secret of the verifier", encoding="utf-8")
    assert "the secret of the verifier" not in render(layout)[1].words


def test_importing_reporting_loads_no_heavy_library() -> None:
    import subprocess
    import sys

    names = "html, charts, figures, tree, run_report, serve, watch, export"
    heavy = "{'torch', 'stim', 'matplotlib', 'networkx', 'scipy', 'numpy', 'jinja2'}"
    code = f"import sys; from autoqec.reporting import {names}; print(sorted({heavy} & set(sys.modules)))"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout.strip() == "[]"


def test_page_shows_when_a_round_ran(tmp_path: Path) -> None:
    times = {"started_at": "2026-01-02T03:04:05Z", "finished_at": "2026-01-02T03:05:35Z", "proposal_wallclock_s": 3.0}
    layout = runs.make_run(tmp_path / "workspace", 1, change=lambda row: row | times)
    assert "2026-01-02 03:04:05 UTC, 90.0 s: proposal 3.0 s" in html.page(run_report.load_pages([layout]))
