"""logs/autoqec.log: one line per event with its time, bounded in size; a failing log never fails a round."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from autoqec.contracts.events import RoundPlanned, RoundRecorded, RoundStarted, RunStopped, TrainingProgress
from autoqec.store import run_log
from autoqec.store.layout import RunLayout
from tests.support import rounds

LINE = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (INFO|WARNING|ERROR) round=(-|\d+) \S.*$")


@pytest.fixture(autouse=True)
def handlers_as_before() -> Iterator[None]:
    before, level = list(run_log.LOGGER.handlers), run_log.LOGGER.level
    run_log.LOGGER.handlers.clear()  # commands of other tests in this process may have enabled the log on stderr
    yield
    run_log.LOGGER.handlers[:] = before
    run_log.LOGGER.setLevel(level)


@pytest.fixture
def layout(tmp_path: Path) -> RunLayout:
    layout = RunLayout(tmp_path, "20260101-000000")
    layout.root.mkdir(parents=True)
    return layout


def lines(layout: RunLayout) -> list[str]:
    return layout.log_file.read_text(encoding="utf-8").splitlines()


def test_each_event_is_one_line_with_utc_time_and_round(layout: RunLayout) -> None:
    seen: list[str] = []
    tell = run_log.logged(lambda event: seen.append(event.kind))
    with run_log.attach(layout):
        tell(RoundStarted(round=3, phase="thinking"))
        tell(RoundPlanned(round=3, hypothesis="wider\nΔ \x1b[31mred"))
        tell(TrainingProgress(round=3, step=1))
    assert seen == ["round_begun", "planned", "training"]
    found = lines(layout)
    assert len(found) == 2 and all(LINE.match(line) for line in found), "progress is not logged"
    assert 'round=3 round_begun phase="thinking"' in found[0]
    assert "Δ" in found[1] and "\x1b" not in found[1]


def test_row_is_named_by_its_outcome(layout: RunLayout) -> None:
    with run_log.attach(layout):
        run_log.record(RoundRecorded(round=1, row=rounds.row(1, verify_verdict="VERIFIED")))
    line = lines(layout)[0]
    assert 'round_recorded status="ok"' in line and 'verify_verdict="VERIFIED"' in line and "hypothesis" not in line


def test_error_leaves_its_traceback_on_one_line(layout: RunLayout) -> None:
    with pytest.raises(ZeroDivisionError), run_log.attach(layout):
        _ = 1 / 0
    (line,) = lines(layout)
    assert LINE.match(line) and "stopped by ZeroDivisionError" in line and "_ = 1 / 0" in line


def test_warnings_of_any_module_are_logged(layout: RunLayout) -> None:
    with run_log.attach(layout):
        logging.getLogger("autoqec.reporting.machine_state").warning("something", extra={"round": 7})
        logging.getLogger("another").warning("not ours")
    assert [line.split(" ", 1)[1] for line in lines(layout)] == ["WARNING round=7 something"]
    run_log.record(RunStopped(why="after"))
    assert len(lines(layout)) == 1, "nothing is written once the run is left"


def test_log_is_rotated(layout: RunLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_log, "MAX_BYTES", 1000)
    with run_log.attach(layout):
        for number in range(200):
            run_log.record(RoundStarted(round=number))
    files = sorted(layout.log_file.parent.iterdir())
    assert len(files) == run_log.BACKUPS + 1 and all(path.stat().st_size <= 1000 for path in files)


def test_unwritable_log_does_not_fail_the_run(layout: RunLayout, capsys: pytest.CaptureFixture[str]) -> None:
    layout.log_file.parent.write_text("a file where the directory should be")
    with run_log.attach(layout):
        run_log.record(RoundStarted(round=1))
    assert capsys.readouterr().err == ""


def test_verbose_shows_events_on_stderr_and_twice_progress_too(capsys: pytest.CaptureFixture[str]) -> None:
    run_log.show(1)
    run_log.record(RoundStarted(round=1))
    run_log.record(TrainingProgress(round=1))
    assert capsys.readouterr().err.count("\n") == 1
    run_log.show(2)
    run_log.record(TrainingProgress(round=1))
    shown = capsys.readouterr().err
    assert "round=1 training" in shown and shown.count("\n") == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full; it is part of Linux")
def test_full_disk_loses_only_the_log_lines(layout: RunLayout) -> None:
    layout.log_file.parent.mkdir()
    layout.log_file.symlink_to("/dev/full")
    with run_log.attach(layout):
        run_log.record(RoundStarted(round=1))
