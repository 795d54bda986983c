"""`autoqec run --pin training.loop=…` with every loop and real processes, which all end with the run."""

from __future__ import annotations

import csv
import json
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from autoqec.contracts.events import Event
from autoqec.contracts.profiles import PROFILES
from autoqec.orchestrator.loop import run_rounds
from autoqec.store.files import load_yaml
from autoqec.store.history import History
from autoqec.store.layout import RunLayout
from tests.conftest import Workspace
from tests.support.processes import below, leader, spawned
from tests.support.starts import start_run

PROCESSES = {"sync": "Ranks", "async": "ReplayRatioSet"}  # a column that only this kind of loop writes
LOOPS = ("minibatch", "minibatch_eval", "sync", "sync_eval", "async", "async_eval")
SMALL = ("type=mlp", "mlp.hidden=4", "training.finetune_share=0")


def processes_of(workspace: Workspace) -> list[int]:
    """Return processes whose working directory or command line is in the workspace."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                identity = (entry / "cmdline").read_bytes() + os.readlink(entry / "cwd").encode()
            except OSError:
                continue
            if str(workspace.root).encode() in identity:
                found.append(int(entry.name))
    return found


def progress(run: Path) -> list[dict[str, str]]:
    with (run / "round_1/train/progress.csv").open(encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


@pytest.mark.parametrize(
    ("loop", "more"), [("async", SMALL), *(pytest.param(loop, (), marks=pytest.mark.long) for loop in LOOPS)]
)
def test_run_trains_with_the_pinned_loop(workspace: Workspace, loop: str, more: tuple[str, ...]) -> None:
    pins = [f"--pin={pin}" for pin in (f"training.loop={loop}", *more)]
    result = workspace.autoqec("run", "env.yaml", "--profile", "smoke", "--rounds", "1", *pins)
    assert result.code == 0, result.err + result.out
    (run,) = (workspace.root / "runs").glob("[0-9]*")
    (row,) = History(RunLayout(workspace.root, run.name)).rows()
    config: dict[str, Any] = load_yaml((run / "round_1/config.yaml").read_text(), location="config")
    assert row.status == "ok", row.status_reason
    assert row.dsl_config == config and config["training"]["loop"] == loop
    assert json.loads((run / "run.json").read_text())["pins"]["training.loop"] == loop
    assert f"Pinned in every proposal: training.loop={loop}" in (run / "log.md").read_text()
    table = progress(run)
    assert {line["Phase"] for line in table} == ({"training"} if more else {"training", "finetuning"})
    assert ("PredecoderFailAverage" in table[0]) == loop.endswith("_eval"), "performance from offline samples"
    for head, column in PROCESSES.items():
        assert (column in table[0]) == loop.startswith(head)
    assert row.train_steps == len((run / "round_1/train.log").read_text().splitlines())
    assert not processes_of(workspace), "no process is left"


@pytest.fixture
def endless_training(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {"train_shots": 10**7, "train_gflops": 10**6, "round_wallclock_s": 900}
    monkeypatch.setitem(PROFILES, "smoke", PROFILES["smoke"].model_copy(update=limits))


@pytest.mark.parametrize(
    ("loop", "victim", "message"),
    [
        pytest.param("async", lambda: spawned()[0], "copier 0 (process ", marks=pytest.mark.long),
        pytest.param("async", lambda: spawned()[1], "sampler 0 (process ", marks=pytest.mark.long),
        pytest.param("sync", lambda: spawned()[0], "rank 1 (process ", marks=pytest.mark.long),
    ],
    ids=["copier", "sampler", "rank 1"],
)
@pytest.mark.usefixtures("endless_training")
def test_killed_process_of_a_round_fails_its_row_with_the_reason(
    workspace: Workspace, loop: str, victim: Callable[[], int], message: str
) -> None:
    killed: list[int] = []

    def kill(event: Event) -> None:
        if event.kind == "training" and not killed:
            killed.append(victim())
            os.kill(killed[0], signal.SIGKILL)

    with start_run(workspace.root / "env.yaml", workspace.root, "smoke", pins={"training.loop": loop}) as run:
        (row,) = run_rounds(run, 1, kill).rows
    assert killed and not spawned() and not below("autoqec.runner.child"), "no process is left"
    assert row.status == "train_error" and row.verify_verdict is None and row.checkpoint_path is None
    assert str(row.status_reason).startswith(message), row.status_reason
    assert "signal 9" in str(row.status_reason)
    metrics = json.loads((run.layout.round(1).metrics).read_bytes())
    assert metrics["status_reason"] == row.status_reason


@pytest.mark.parametrize("loop", ["async", pytest.param("sync", marks=pytest.mark.long)])
@pytest.mark.usefixtures("endless_training")
def test_round_whose_main_process_is_killed_twice_is_an_infrastructure_failure(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, loop: str
) -> None:
    """The first kill restarts the process; the second makes the round an infrastructure failure."""
    monkeypatch.setattr("autoqec.orchestrator.loop.MAX_INFRASTRUCTURE_FAILURES", 1)  # the run stops after one round

    def kill(event: Event) -> None:
        if event.kind == "training":
            with suppress(ProcessLookupError, IndexError):  # progress that is read after the process ended
                os.kill(leader(), signal.SIGKILL)

    with start_run(workspace.root / "env.yaml", workspace.root, "smoke", pins={"training.loop": loop}) as run:
        (row,) = run_rounds(run, 1, kill).rows
    assert not spawned() and not below("autoqec.runner.child"), "no process is left"
    assert caplog.text.count("it is started once more") == 1
    assert row.status == "orphaned_branch" and row.verify_verdict is None and row.checkpoint_path is None
    assert "killed from outside twice" in str(row.status_reason), row.status_reason
