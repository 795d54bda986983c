"""What a SLURM job checks before it measures, and what it leaves if it does not measure."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from autoqec.store.further_rounds import END, FurtherRounds

from autoqec.contracts.job import FurtherRound, JobOrder
from autoqec.contracts.round import RoundMetrics
from autoqec.errors import UsageError
from autoqec.extensions.slurm import job as slurm_job
from autoqec.runner import job, round_process
from autoqec.store import atomic
from autoqec.store.layout import RoundLayout, pointer_on_branch
from autoqec.store.round_files import read_contract
from autoqec.system import machine, sandbox

from .conftest import SMALL, config_for

NONE = {"type": "nothing that compiles"}


@pytest.fixture(autouse=True)
def number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")


def ordered(env_text: str, round_dir: Path, **more: Any) -> RoundLayout:
    layout = RoundLayout(round_dir, 1)
    round_dir.mkdir()
    known: dict[str, Any] = {"code_sha256": machine.code_sha256(), "needs_sandbox": False, "options": {"time": "5"}}
    order = JobOrder(name="a-round", **{"config": config_for(env_text, round_dir, NONE), **known, **more})
    atomic.write_json(layout.job, order.dump())
    return layout


def measured(layout: RoundLayout) -> RoundMetrics | None:
    job.work(str(layout.dir), 1)
    return read_contract(layout.metrics, RoundMetrics)


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
    job.work(str(layout.dir), 1)
    assert completed == [], "the worktree of a recorded round is removed"
    worktree.mkdir()
    job.work(str(layout.dir), 1)
    assert completed == [str(layout.dir)]
    pointer = worktree / pointer_on_branch(1)
    pointer.parent.mkdir()
    pointer.write_text("{}")
    job.work(str(layout.dir), 1)
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
    monkeypatch.setattr(slurm_job, "KILL_WAIT_S", 0)
    previous = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        with suppress(slurm_job.JobTerminated):
            slurm_job.call_element(job.work_rounds, [(str(layout.dir), 1)])
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
            job.work(str(layout.dir), 1)
        assert read_contract(layout.metrics, RoundMetrics) is None


def test_directory_moved_during_the_round_is_a_usage_error(
    env_text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, round_dir = round_process.child.run, tmp_path / "runs" / "round_1"

    def run(argv: Any, *, on_tick: Any = None, **more: Any) -> Any:
        if on_tick is not None:
            round_dir.parent.rename(tmp_path / "elsewhere")
        return real(argv if on_tick is None else ["true"], **{**more, "cwd": tmp_path, "stdout": tmp_path / "log"})

    monkeypatch.setattr(round_process.child, "run", run)
    with pytest.raises(UsageError, match="moved or deleted during the measurement.*--resume"):
        job.runner.run_round(config_for(env_text, round_dir, SMALL))
    assert not round_dir.parent.exists()


def test_unreadable_order_does_not_cancel_the_round(
    env_text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = ordered(env_text, tmp_path / "round_1")
    check = job._cancel_check(layout)
    assert not check()
    monkeypatch.setattr(Path, "open", lambda *a, **k: (_ for _ in ()).throw(OSError(116, "Stale file handle")))
    assert not check()


def test_slurms_warning_ends_the_round_with_its_limit(
    env_text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def warned(config: Any, **more: Any) -> None:
        raise slurm_job.JobEndingError("timed-out and not checkpointable")

    layout = ordered(env_text, tmp_path / "round_1")
    monkeypatch.setattr(job.runner, "run_round", warned)
    with pytest.raises(slurm_job.JobEndingError):
        job.work(str(layout.dir), 1)
    metrics = read_contract(layout.metrics, RoundMetrics)
    assert metrics is not None and metrics.status == "killed_by_safety"
    assert metrics.status_reason == f"SLURM job {os.environ['SLURM_JOB_ID']}: time limit of 5 minutes reached"


def orders(env_text: str, tmp_path: Path, *names: str, **more: Any) -> list[RoundLayout]:
    configs = [config_for(env_text, tmp_path / name, NONE) for name in names]
    return [ordered(env_text, tmp_path / name, config=one, **more) for name, one in zip(names, configs, strict=True)]


def listed(layout: RoundLayout) -> FurtherRound:
    return FurtherRound(round_dir=str(layout.dir), round=1)


def list_of(layouts: list[RoundLayout], *, ends: bool = True) -> FurtherRounds:
    """Write the list of the job of the first round, with the other ones."""
    further = FurtherRounds(layouts[0].further_rounds(None))
    for index, layout in enumerate(layouts[1:], start=1):
        assert further.add(index, listed(layout)) == listed(layout)
    if ends:
        further.add(len(layouts), END)
    return further


def work_rounds(layouts: list[RoundLayout], begin_within_s: float = 60.0) -> list[RoundMetrics | None]:
    if not layouts[0].job_dir.exists():
        list_of(layouts)
    first = layouts[0]
    try:
        job.work_rounds(str(first.dir), 1, str(first.further_rounds(None)), begin_within_s, 0.0)
    finally:
        found = [read_contract(layout.metrics, RoundMetrics) for layout in layouts]
    return found


def test_job_with_nothing_to_do_ends_its_list(env_text: str, tmp_path: Path) -> None:
    layouts = orders(env_text, tmp_path, "one", "two", "three")
    further = list_of(layouts[:2], ends=False)
    assert [one is None for one in work_rounds(layouts)] == [False, False, True]
    assert further.read(2) == END and further.add(2, listed(layouts[2])) == END, "the run finds that it is too late"


def test_round_that_is_added_while_the_job_ends_its_list_is_measured(
    env_text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layouts, real = orders(env_text, tmp_path, "one", "two"), FurtherRounds.add
    further = list_of(layouts[:1], ends=False)

    def add(self: FurtherRounds, index: int, entry: FurtherRound) -> FurtherRound:
        if index == 1:
            assert real(further, 1, listed(layouts[1])) == listed(layouts[1])
        return real(self, index, entry)

    monkeypatch.setattr(FurtherRounds, "add", add)
    layouts[0].job_dir.mkdir(exist_ok=True)
    assert None not in work_rounds(layouts) and further.read(2) == END


def test_job_waits_for_a_round_as_long_as_it_may(
    env_text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layouts, waited = orders(env_text, tmp_path, "one", "two"), list[float]()
    further = list_of(layouts[:1], ends=False)

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 2:
            further.add(1, listed(layouts[1]))
            further.add(2, END)

    monkeypatch.setattr(job.time, "sleep", sleep)
    job.work_rounds(str(layouts[0].dir), 1, str(layouts[0].further_rounds(None)), 3600.0, 3600.0)
    assert len(waited) == 2 and read_contract(layouts[1].metrics, RoundMetrics) is not None


def test_second_job_of_a_repeated_submission_leaves_the_list_to_the_first(env_text: str, tmp_path: Path) -> None:
    layouts = orders(env_text, tmp_path, "one", "two")
    further = list_of(layouts, ends=False)
    layouts[0].job_claim.write_text("6")
    assert work_rounds(layouts) == [None, None] and further.read(2) is None


def test_damaged_entry_ends_the_list(env_text: str, tmp_path: Path) -> None:
    layouts = orders(env_text, tmp_path, "one", "two")
    further = list_of(layouts[:1], ends=False)
    directory = layouts[0].further_rounds(None)
    directory.mkdir(parents=True)
    (directory / "1").write_text('{"round')
    assert further.read(1) == END and work_rounds(layouts)[1] is None


def test_requeued_job_begins_its_list_again(env_text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed in the second round, whose measurement is repeated; the others are measured once."""
    layouts, real, begun = orders(env_text, tmp_path, "one", "two", "three"), job.runner.run_round, list[str]()

    def run_round(config: Any, **more: Any) -> RoundMetrics:
        begun.append(Path(config.round_dir).name)
        if begun == ["one", "two"]:
            raise slurm_job.JobTerminated
        return real(config, **more)

    monkeypatch.setattr(job.runner, "run_round", run_round)
    with pytest.raises(slurm_job.JobTerminated):
        work_rounds(layouts)
    assert None not in work_rounds(layouts) and begun == ["one", "two", "two", "three"]


@pytest.mark.long
def test_rounds_that_share_a_job_have_the_results_of_single_jobs(env_text: str, tmp_path: Path) -> None:
    loose = {
        "checkpoint_path", "training_log_path", "train_wallclock_s", "eval_wallclock_s", "rss_peak_gb",
        "measurement_started_at", "measurement_finished_at",
    }  # fmt: skip
    configs = [{**SMALL, "mlp": {"hidden": hidden}} for hidden in (4, 6)]
    found: list[list[dict[str, Any]]] = []
    for place in ("alone", "together"):
        (tmp_path / place).mkdir()
        layouts = [
            ordered(env_text, round_dir, config=config_for(env_text, round_dir, config))
            for round_dir, config in zip((tmp_path / place / "a", tmp_path / place / "b"), configs, strict=True)
        ]
        metrics = [measured(layout) for layout in layouts] if place == "alone" else work_rounds(layouts)
        assert [one and one.status for one in metrics] == ["ok", "ok"]
        found.append([one.model_dump(exclude=loose) for one in metrics if one is not None])
    assert found[0] == found[1]


def test_failure_of_a_round_does_not_end_its_job(
    env_text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    layouts, real = orders(env_text, tmp_path, "one", "two", "three"), job.runner.run_round

    def run_round(config: Any, **more: Any) -> RoundMetrics:
        if config.round_dir.endswith("two"):
            raise ZeroDivisionError("a defect")
        return real(config, **more)

    monkeypatch.setattr(job.runner, "run_round", run_round)
    with pytest.raises(ZeroDivisionError):
        work_rounds(layouts)
    found = [read_contract(layout.metrics, RoundMetrics) for layout in layouts]
    assert [one and one.status for one in found] == ["compile_error", None, "compile_error"]
    assert "a defect" in capsys.readouterr().err


def test_each_round_of_a_job_has_its_own_time_limit(
    env_text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layouts, real, alarms = orders(env_text, tmp_path, "one", "two"), job.runner.run_round, list[int]()
    monkeypatch.setattr(job.signal, "alarm", alarms.append)

    def run_round(config: Any, **more: Any) -> RoundMetrics:
        if config.round_dir.endswith("one"):
            signal.raise_signal(signal.SIGALRM)
        return real(config, **more)

    monkeypatch.setattr(job.runner, "run_round", run_round)
    with pytest.raises(job.RoundTimeLimitError):
        work_rounds(layouts)
    first, second = (read_contract(layout.metrics, RoundMetrics) for layout in layouts)
    assert first is not None and second is not None and second.status == "compile_error"
    assert first.status == "killed_by_safety" and "time limit of 5 minutes reached" in str(first.status_reason)
    assert alarms == [300, 0, 300, 0]


def test_job_begins_no_further_round_after_its_time(env_text: str, tmp_path: Path) -> None:
    layouts = orders(env_text, tmp_path, "one", "two", "three")
    further = list_of(layouts, ends=False)
    found = work_rounds(layouts, begin_within_s=-1.0)
    assert found[0] is not None and found[1:] == [None, None] and job.claiming_job_id(layouts[1]) is None
    assert further.read(3) == END, "so that the run finds out which rounds it has to measure elsewhere"


def test_slurms_warning_ends_a_job_of_several_rounds(
    env_text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def warned(config: Any, **more: Any) -> None:
        raise slurm_job.JobEndingError("timed-out and not checkpointable")

    first, second = orders(env_text, tmp_path, "one", "two")
    monkeypatch.setattr(job.runner, "run_round", warned)
    with pytest.raises(slurm_job.JobEndingError):
        work_rounds([first, second])
    metrics = read_contract(first.metrics, RoundMetrics)
    assert metrics is not None and metrics.status == "killed_by_safety" and job.claiming_job_id(second) is None


def test_start_of_a_job_imports_nothing_that_only_its_end_or_the_run_needs() -> None:
    """A short round costs about as much CPU time as the imports of its job."""
    libraries = ("asyncio", "cloudpickle", "difflib", "numpy", "optuna", "stim", "submitit", "torch")
    contracts = ("events", "history", "provenance", "verdict", "verification_job")
    unused = {*libraries, "autoqec.orchestrator", *(f"autoqec.contracts.{name}" for name in contracts)}
    program = (
        f"import sys, autoqec.extensions.slurm.process, autoqec.runner.job; print(sorted({unused} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"
