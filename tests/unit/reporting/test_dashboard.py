"""Dashboard of a run in progress: pace, estimated end, limits, sandbox, rounds and Pareto front."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table

from autoqec.reporting import html, run_report, summary
from autoqec.reporting.dashboard import Dashboard
from autoqec.reporting.live_status import LiveStatusWriter, SessionLimits
from autoqec.store.files import load_env
from autoqec.store.layout import RunLayout
from autoqec.system import run_lock
from tests.support import runs
from tests.support.recorded import recorded_env

NOW = 2_000_000_000.0
# Of the five rounds of `make_run` each trained for 60 s; 1, 3 and 5 were verified in 12 s.
ROUND_S = (5 * 60 + 3 * 12) / 5


@pytest.fixture
def layout(tmp_path: Path) -> Iterator[RunLayout]:
    found = runs.make_run(tmp_path / "workspace", 5)
    os.utime(found.history, (NOW, NOW))
    with run_lock.lock_run(found.root):
        yield found


def render(layout: RunLayout, plan: SessionLimits, *, later: float = 0.0) -> tuple[Dashboard, str]:
    out = io.StringIO()
    console = Console(file=out, width=240, color_system=None, markup=False, highlight=False)
    with LiveStatusWriter(layout, replace(plan, began=NOW - 600)):
        dashboard = Dashboard(layout, clock=lambda: NOW + later)
        console.print(dashboard.head())
        console.print(dashboard.body())
    return dashboard, out.getvalue()


def test_end_of_the_run_is_estimated_from_its_history(layout: RunLayout) -> None:
    dashboard, text = render(layout, SessionLimits(rounds=8, sandbox="bubblewrap"))
    assert dashboard.seconds_left() == pytest.approx(3 * ROUND_S)
    assert "5 of 8 rounds, 1 verified, 1 on the front · 1:07 per round · about 3:22 left of the run" in text
    assert "0.08 compute hours · sandbox bubblewrap" in text
    assert "Verified front" in text and "+7.9%" in text


def test_elapsed_time_of_the_current_round_counts_up_to_one_round(layout: RunLayout) -> None:
    assert render(layout, SessionLimits(rounds=8), later=30)[0].seconds_left() == pytest.approx(3 * ROUND_S - 30)
    assert render(layout, SessionLimits(rounds=8), later=9000)[0].seconds_left() == pytest.approx(2 * ROUND_S)
    assert render(layout, SessionLimits(rounds=8, parallel=3))[0].seconds_left() == pytest.approx(ROUND_S)
    assert render(layout, SessionLimits(rounds=5))[0].seconds_left() == 0


def test_nearest_limit_determines_the_estimated_end(layout: RunLayout) -> None:
    assert render(layout, SessionLimits(rounds=1000, hours=0.25))[0].seconds_left() == pytest.approx(300)
    compute = render(layout, SessionLimits(compute_hours=600 / 3600))[0]
    assert compute.seconds_left() == pytest.approx(5 * ROUND_S)  # as much as was already used
    assert render(layout, SessionLimits(plateau=4))[0].seconds_left() is None
    assert "compute hours · at most 2 GPU hours" in render(layout, SessionLimits(gpu_hours=2))[1]
    text = render(layout, SessionLimits(hours=2, plateau=4, compute_hours=1))[1]
    assert "0.17 of 2 hours · 0.08 of 1 compute hours · ends after 4 rounds without a change of the front" in text


def test_no_end_is_estimated_without_history_or_plan(tmp_path: Path) -> None:
    empty = runs.make_run(tmp_path / "workspace", 0)
    with run_lock.lock_run(empty.root):
        dashboard, text = render(empty, SessionLimits(rounds=8))
    assert dashboard.seconds_left() is None and "left of the run" not in text and "0 of 8 rounds" in text


def test_status_of_a_dead_owner_is_ignored(tmp_path: Path) -> None:
    layout = runs.make_run(tmp_path / "workspace", 5)
    dashboard, text = render(layout, SessionLimits(rounds=8))
    assert dashboard.seconds_left() is None and "5 rounds" in text


def test_failures_show_their_reason(tmp_path: Path) -> None:
    layout = runs.make_run(tmp_path / "workspace", 2, only_failures=True)
    text = render(layout, SessionLimits())[1]
    assert "the loss is not finite at step 12" in text and "train_error" in text


def test_last_rounds_show_intervals_and_shots_on_a_narrow_screen(layout: RunLayout) -> None:
    out = io.StringIO()
    Console(file=out, width=80, color_system=None, markup=False).print(Dashboard(layout).body())
    text = out.getvalue()
    for part in ("+28.6% of 20k", "[+20.8, +35.9]%", "+9.3% of 100k", "[+7.1, +11.4]%", "train_error", "VERIFIED"):
        assert part in text, text
    assert max(map(len, text.splitlines())) <= 80


def test_rounds_of_a_summary_fit_a_narrow_screen(layout: RunLayout) -> None:
    out = io.StringIO()
    table = summary.rounds_table(run_report.load(layout).rows)
    Console(file=out, width=80, color_system=None, markup=False).print(table)
    text = out.getvalue()
    for part in ("[+7.1,", "+11.4]%", "280 → 200", "train_error", "100k"):
        assert part in text, text


def test_overdue_last_round_has_no_estimated_end(layout: RunLayout) -> None:
    text = render(layout, SessionLimits(rounds=6), later=9000)[1]
    assert "the last round takes longer than the earlier ones" in text and "0:00 left" not in text


def timed(row: dict[str, object]) -> dict[str, object]:
    times = {"started_at": "2026-01-02T03:04:05Z", "finished_at": "2026-01-02T03:05:35Z", "train_wallclock_s": 60.0}
    return row | times | {"proposal_wallclock_s": 3.0, "eval_wallclock_s": None}


def test_summary_and_screen_show_start_time_and_phase_durations(tmp_path: Path) -> None:
    view = run_report.load(runs.make_run(tmp_path / "workspace", 1, artifacts=False, change=timed))
    out = io.StringIO()
    console = Console(file=out, width=200, color_system=None, markup=False)
    console.print(summary.rounds_table(view.rows))
    assert "2026-01-02 03:04:05 UTC (1:30): proposal 0:03, training 1:00" in out.getvalue()
    console.print(summary.last_rounds(view.rows))
    assert "03:05:35 UTC, took 1:30" in out.getvalue()


def test_pace_is_taken_from_the_recorded_end_and_not_from_the_file(tmp_path: Path) -> None:
    layout = runs.make_run(tmp_path / "workspace", 1, artifacts=False, change=timed)
    os.utime(layout.history, (0, 0))
    assert Dashboard(layout)._last_end == run_report.load(layout).rows[0].finished_at.timestamp()  # type: ignore[union-attr]


def test_tables_of_recorded_shots_name_the_strongest_baseline_and_sealed_shots(
    layout: RunLayout, tmp_path: Path
) -> None:
    assert "fresh shots" in tables(layout) and "sealed" not in tables(layout)
    layout.env.write_text(load_env(recorded_env(tmp_path / "device"))[1], encoding="utf-8")
    text = tables(layout)
    assert "strongest baseline,\nsealed shots" in text and "on sealed shots than the strongest baseline" in text
    assert "Verified front (sealed shots" in text and "fresh" not in text
    page = html.page(run_report.load_pages([layout]))
    assert "fewer failures than strongest baseline, sealed shots" in page and "Sealed shots, round" in page
    assert (
        ": fewer failures than strongest baseline</dt>" in page and "Measured on the sealed shots of the test" in page
    )
    assert "fewer failures than baseline decoder" not in page and "resh shots" not in page
    assert "tested on sealed blocks" in page and "Discs: sealed shots." in page


def test_page_of_sampled_shots_does_not_mention_sealed_shots(layout: RunLayout) -> None:
    page = html.page(run_report.load_pages([layout]))
    assert "Discs: fresh shots." in page and "verified decoders on fresh shots" in page and "sealed" not in page


def test_null_result_on_sealed_shots_states_no_number_of_fresh_shots(layout: RunLayout, tmp_path: Path) -> None:
    assert "may be missed" in html.null_result_note(run_report.load(layout))
    layout.env.write_text(load_env(recorded_env(tmp_path / "device"))[1], encoding="utf-8")
    assert html.null_result_note(run_report.load(layout)) == ""


def tables(layout: RunLayout) -> str:
    """Return titles and headers of the tables of a run, unwrapped."""
    run = run_report.load(layout)
    found = [part for part in summary.parts(run) if isinstance(part, Table)]
    found.append(summary.last_rounds(run.finished_rows, sealed=run.on_sealed_shots))
    return "\n".join(text for table in found for text in (str(table.title), *(str(c.header) for c in table.columns)))
