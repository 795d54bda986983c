"""What a SLURM job checks before it measures, and what it leaves if it does not measure."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from submitit.core.utils import UncompletedJobError

from autoqec.contracts.job import JobOrder
from autoqec.contracts.round import RoundMetrics
from autoqec.errors import UsageError
from autoqec.extensions.slurm import job
from autoqec.runner import round_process
from autoqec.store import atomic
from autoqec.store.layout import RoundLayout, pointer_on_branch
from autoqec.store.round_files import read_contract
from autoqec.system import machine, sandbox
from tests.unit.runner.conftest import SMALL, config_for

NONE = {"type": "nothing that compiles"}


@pytest.fixture(autouse=True)
def number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")


def ordered(env_text: str, round_dir: Path, **more: Any) -> RoundLayout:
    layout = RoundLayout(round_dir, 1)
    round_dir.mkdir()
    known: dict[str, Any] = {"code_sha256": machine.code_sha256(), "needs_sandbox": False, "options": {"time": "5"}}
    order = JobOrder(
        executor="slurm", name="a-round", **{"config": config_for(env_text, round_dir, NONE), **known, **more}
    )
    atomic.write_json(layout.job, order.dump())
    return layout


def measured(layout: RoundLayout) -> RoundMetrics | None:
    job.measure_round(str(layout.dir), 1)
    return read_contract(layout.metrics, RoundMetrics)


def test_own_job_id_names_the_element(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    assert job.own_job_id() == "12"
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "11")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "3")
    assert job.own_job_id() == "11_3"


def test_order_is_claimed_and_measured(env_text: str, tmp_path: Path) -> None:
    layout = ordered(env_text, tmp_path / "round_1")
    metrics = measured(layout)
    assert metrics is not None and metrics.status == "compile_error"
    assert job.claiming_job_id(layout) == "7"


def test_without_an_order_nothing_is_done(tmp_path: Path) -> None:
    assert measured(RoundLayout(tmp_path, 1)) is None and list(tmp_path.iterdir()) == []


def test_round_belongs_to_one_job(env_text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another job does nothing; the same job, requeued after its node died, continues."""
    layout = ordered(env_text, tmp_path / "round_1")
    layout.job_claim.write_text("6")
    assert measured(layout) is None
    monkeypatch.setenv("SLURM_JOB_ID", "6")
    assert measured(layout) is not None


def test_node_with_other_code_does_not_measure(env_text: str, tmp_path: Path) -> None:
    metrics = measured(ordered(env_text, tmp_path / "round_1", code_sha256="0" * 64))
    assert metrics is not None and metrics.status == "train_error" and "trusted code" in str(metrics.status_reason)


def test_branch_code_needs_a_sandbox(env_text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "probe", lambda: "none")
    metrics = measured(ordered(env_text, tmp_path / "round_1", needs_sandbox=True))
    assert metrics is not None and metrics.status == "killed_by_safety" and "sandbox" in str(metrics.status_reason)
    trusted = measured(ordered(env_text, tmp_path / "round_2"))
    assert trusted is not None and trusted.status == "compile_error"


def test_requeued_job_leaves_a_finished_round_as_it_is(env_text: str, tmp_path: Path) -> None:
    layout = ordered(env_text, tmp_path / "round_1")
    metrics = measured(layout)
    before = {path: path.stat().st_mtime_ns for path in layout.dir.iterdir()}
    assert measured(layout) == metrics
    assert {path: path.stat().st_mtime_ns for path in layout.dir.iterdir()} == before


def test_requeued_job_completes_the_pointer_of_a_round_that_is_not_recorded(
    env_text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    completed = list[str]()
    monkeypatch.setattr(job.runner, "record_failed_round", lambda config, *more: completed.append(config.round_dir))
    worktree, layout = tmp_path / "worktree", RoundLayout(tmp_path / "round_1", 1)
    config = config_for(env_text, layout.dir, NONE).model_copy(update={"code_cwd": str(worktree)})
    ordered(env_text, layout.dir, config=config)
    atomic.write_json(layout.metrics, {})
    job.measure_round(str(layout.dir), 1)
    assert completed == [], "the worktree of a recorded round is removed"
    worktree.mkdir()
    job.measure_round(str(layout.dir), 1)
    assert completed == [str(layout.dir)]
    pointer = worktree / pointer_on_branch(1)
    pointer.parent.mkdir()
    pointer.write_text("{}")
    job.measure_round(str(layout.dir), 1)
    assert completed == [str(layout.dir)]


def cancel_at_first_tick(monkeypatch: pytest.MonkeyPatch, layout: RoundLayout) -> list[int]:
    """Delete the order as soon as the child runs, which would take a minute; return the checks that were made."""
    return at_ticks(monkeypatch, ["sleep", "60"], lambda: layout.job.unlink(missing_ok=True))


def at_ticks(monkeypatch: pytest.MonkeyPatch, argv: list[str], do: Callable[[], None]) -> list[int]:
    """Let the Runner's child be `argv`, and call `do` at each of its ticks; return the numbers of these."""
    real, seen = round_process.child.run, list[int]()

    def run(given: Any, *, on_tick: Any = None, **more: Any) -> Any:
        if on_tick is None:
            return real(given, **more)  # not the Runner's child

        def tick(seconds: float) -> None:
            do()
            seen.append(len(seen))
            on_tick(seconds)

        return real(argv, on_tick=tick, **more)

    monkeypatch.setattr(round_process.child, "run", run)
    return seen


def test_order_cancelled_during_the_round_leaves_no_result(
    env_text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_for(env_text, tmp_path / "round_1", SMALL)
    layout = ordered(env_text, tmp_path / "round_1", config=config)
    ticks = cancel_at_first_tick(monkeypatch, layout)
    assert measured(layout) is None and len(ticks) == 1, "at its first look, long before the child's end"
    assert sorted(path.name for path in layout.dir.iterdir()) == ["config.yaml", "job_claim"]


def test_sigterm_of_slurm_ends_the_job_without_a_result(
    env_text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reaches the child too, whose end is not a result; submitit alone would ignore it."""
    config = config_for(env_text, tmp_path / "round_1", SMALL)
    layout = ordered(env_text, tmp_path / "round_1", config=config)
    at_ticks(monkeypatch, ["sh", "-c", "sleep 0.5; kill -TERM $$"], lambda: os.kill(os.getpid(), signal.SIGTERM))
    monkeypatch.setattr(job, "KILL_WAIT_S", 0)
    previous = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        with suppress(job.JobTerminated):
            job.call_element(job.measure_round, [(str(layout.dir), 1)])
    finally:
        signal.signal(signal.SIGTERM, previous)
    assert not layout.metrics.exists() and not layout.pointer.exists() and job.claiming_job_id(layout) == "7"


def test_order_cancelled_as_the_child_ends_leaves_no_result(
    env_text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the child succeeded, failed, or the Runner itself was stopped."""
    layout = ordered(env_text, tmp_path / "round_1")
    real = job.runner.failed_result

    def failing(*args: Any, **named: Any) -> Any:
        layout.job.unlink(missing_ok=True)
        return real(*args, **named)

    monkeypatch.setattr(job.runner, "failed_result", failing)
    assert measured(layout) is None and not layout.pointer.exists()
    for number, error in ((2, UsageError("no")), (3, job.runner.CancelledError())):
        layout = ordered(env_text, tmp_path / f"round_{number}")

        def stopped(config: Any, error: Exception = error, layout: RoundLayout = layout, **more: Any) -> None:
            layout.job.unlink()
            raise error

        monkeypatch.setattr(job.runner, "run_round", stopped)
        with suppress(UsageError):
            job.measure_round(str(layout.dir), 1)
        assert read_contract(layout.metrics, RoundMetrics) is None


def test_warning_of_slurm_ends_the_round_with_its_limit(
    env_text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def warned(config: Any, **more: Any) -> None:
        raise UncompletedJobError("timed-out and not checkpointable")

    layout = ordered(env_text, tmp_path / "round_1")
    monkeypatch.setattr(job.runner, "run_round", warned)
    with pytest.raises(UncompletedJobError):
        job.measure_round(str(layout.dir), 1)
    metrics = read_contract(layout.metrics, RoundMetrics)
    assert metrics is not None and metrics.status == "killed_by_safety"
    assert "SLURM job 7: time limit" in str(metrics.status_reason)
