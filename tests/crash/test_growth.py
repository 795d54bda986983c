"""The number of git processes per round and per start does not depend on the length of the run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from autoqec.cli.workspace import make_workspace
from autoqec.orchestrator import views
from autoqec.orchestrator.loop import run_rounds
from autoqec.orchestrator.memory import RunMemory
from autoqec.orchestrator.recovery.apply import reconcile
from autoqec.store.layout import RunLayout
from autoqec.system.git import Repo
from benchmarks import rounds as bench
from tests.crash import canned
from tests.crash.starts import ENV
from tests.support.starts import resume_run, start_run


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunLayout:
    """Return a run of two rounds with a fake Runner and verifier."""
    canned.install(monkeypatch.setattr)
    make_workspace(tmp_path / "workspace", ENV)
    with start_run(tmp_path / "workspace/env.yaml", tmp_path / "workspace", "smoke", 1, roles=bench.roles()) as started:
        run_rounds(started, 2)
        return started.layout


def test_round_starts_git_a_constant_number_of_times(layout: RunLayout) -> None:
    counts = []
    for size in (0, 60):
        if size:
            bench.append_rounds(layout, size)
        with resume_run(layout.run_id, layout.repo_root, roles=bench.roles()) as started:
            done = sum(row.status == "ok" for row in started.memory.history.rows())
            with bench.GitProcessCounter() as git:
                run_rounds(started, done + 1)
        counts.append(git.count)
        assert reconcile(layout, Repo.discover(layout.repo_root)) == []
    assert counts[0] == counts[1] <= 25, counts


def test_start_builds_each_view_once(layout: RunLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a consistent run, a start only compares the files with history."""
    written: list[int] = []
    section = views.section
    monkeypatch.setattr(views, "section", lambda row, state: written.append(row.round) or section(row, state))
    assert reconcile(layout, Repo.discover(layout.repo_root)) == []
    assert written == [1, 2]
    layout.log.unlink()
    assert [action.kind for action in reconcile(layout, Repo.discover(layout.repo_root))] == ["views"]
    assert layout.log.is_file()


@pytest.mark.parametrize("append", [bench.append_rounds, bench.append_orphans, bench.append_pareto_rounds])
def test_start_runs_git_a_constant_number_of_times(layout: RunLayout, append: Callable[[RunLayout, int], None]) -> None:
    counts = []
    for size in (100, 900):
        append(layout, size)
        RunMemory(layout.root).rebuild_views()
        with bench.GitProcessCounter() as git:
            reconcile(layout, Repo.discover(layout.repo_root))
        counts.append(git.count)
    assert counts[0] == counts[1] <= 25, counts
    assert reconcile(layout, Repo.discover(layout.repo_root)) == []
