"""Detached runs: a run executes in short SLURM jobs, each of which continues what the last one left.

A job queues its successor when it begins, so that the chain survives a job that is killed, and cancels it when the run
is finished. The successor waits for the end of the job, in any way, and resumes the run.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime

from autoqec.contracts.events import OnEvent
from autoqec.contracts.job import DetachedRun
from autoqec.contracts.settings import RunSettings
from autoqec.errors import AutoqecError, InfrastructureError, StorageError, UsageError
from autoqec.launch import orchestrator_job
from autoqec.launch.options import RunOptions
from autoqec.launch.roles import build_roles
from autoqec.launch.session import open_run
from autoqec.orchestrator import loop
from autoqec.orchestrator.run import RunContext
from autoqec.store import run_control, run_log
from autoqec.store.history import History
from autoqec.store.layout import RunLayout
from autoqec.system import run_lock, slurm
from autoqec.system.slurm_script import any_alive

MAX_WITHOUT_PROGRESS = 5  # consecutive jobs that end early and finish no round; more would fail in the same way
LOCK_POLL_S = 5.0


def start(
    options: RunOptions, on_event: OnEvent, on_open: Callable[[loop.Run], None], command_line: Sequence[str]
) -> tuple[RunLayout, DetachedRun]:
    """Start or resume a run without running rounds, and queue the first job of its chain.

    Args:
        options: What to run.
        on_event: Receives the events of recovery.
        on_open: Called with the opened run.
        command_line: Recorded in run.json of a new run.

    Returns:
        The run and its chain.

    Raises:
        UsageError: The run cannot be started or resumed, is detached already, or SLURM refuses the job.
    """

    def roles(context: RunContext) -> loop.Roles:
        return build_roles(options.choice, context, on_event, options.budget)[0]

    with open_run(options, roles, on_event, command_line) as run:
        on_open(run)
        layout = run.layout
        last = run_control.last_chain(layout)
        state = DetachedRun(number=1 if last is None else last.number + 2, began=datetime.now(UTC))
        run_control.write_detached(layout, state)
    try:
        job_id = orchestrator_job.submit(layout, options.settings, state.number)
    except BaseException as error:
        run_control.end_detached(layout, state, f"its first job was not queued: {error}")
        raise
    with_job = state.model_copy(update={"job_id": job_id})
    if run_control.last_chain(layout) == state:  # else the job has begun, and its state is newer
        run_control.write_detached(layout, with_job)
    return layout, with_job


def continue_run(layout: RunLayout, number: int, run_rounds: Callable[[datetime], loop.LoopResult]) -> None:
    """Run rounds in a job of the chain; queue the next job, or end the chain.

    Args:
        layout: The run.
        number: Position of this job in the chain.
        run_rounds: Runs the rounds; its argument is the start of the chain.

    Raises:
        UsageError: The chain has ended.
        InfrastructureError: Too many jobs ended early and finished no round.
    """
    last = _unended_chain(layout, number)
    successor_id = last.successor_id if number == last.number else None  # of a job that was requeued
    state = DetachedRun(number=number, job_id=slurm.own_job_id(), successor_id=successor_id, began=last.began)
    try:
        settings = History(layout).info().settings or RunSettings()
        # Before anything is written, so that the chain survives a full disk; each job that could not record its start
        # leaves a gap in the numbers.
        if number - last.number < MAX_WITHOUT_PROGRESS:
            state, _ = _queue_successor(layout, settings, state)  # if it is refused, tried again at the end
        _await_lock(layout)
        state = _begin(layout, state)
        outcome = _run_when_unlocked(layout, lambda: run_rounds(state.began))
    except AutoqecError as error:
        # What the user has to repair would fail again in the next job; the disk or the cluster may recover.
        if error.exit_code in (2, 3) and error.code != slurm.UNREACHABLE:
            with suppress(StorageError):  # the next job tries to record the reason
                _end(layout, state, str(error))
        raise
    if not outcome.interrupted or outcome.stop_reason == run_control.STOPPED:
        _end(layout, state, outcome.stop_reason)
        return
    state, refusal = _queue_successor(layout, settings, state.model_copy(update={"handed_over": True}))
    run_control.write_detached(layout, state)
    if state.successor_id is None:
        _end(layout, state, f"no further job could be queued: {refusal}")


def _unended_chain(layout: RunLayout, number: int) -> DetachedRun:
    """Return the recorded state of the chain. Raises UsageError if the job at this position is not to continue it."""
    last = run_control.last_chain(layout)
    if last is None or last.ended is not None or number < last.number:
        message = f"its chain of jobs has ended: {last.ended if last and last.ended else 'a later job continued it'}"
        raise UsageError(message, location=f"run {layout.run_id}", hint=f"autoqec run --resume {layout.run_id}")
    return last


def _await_lock(layout: RunLayout) -> None:
    """Wait while another process holds the run, e.g. `autoqec verify`; SIGTERM before the time limit ends the wait."""
    if run_lock.is_locked(layout.root):
        run_log.LOGGER.warning("another process holds the run; waiting for it")
    while run_lock.is_locked(layout.root):
        time.sleep(LOCK_POLL_S)


def _run_when_unlocked(layout: RunLayout, run: Callable[[], loop.LoopResult]) -> loop.LoopResult:
    while True:
        try:
            return run()
        except UsageError as error:
            if error.code != run_lock.HELD:
                raise
        time.sleep(LOCK_POLL_S)
        _await_lock(layout)


def _begin(layout: RunLayout, state: DetachedRun) -> DetachedRun:
    """Record that this job holds the run."""
    last = _unended_chain(layout, state.number)  # again: it may have ended while this job waited for the lock
    finished_rounds = History(layout).state().totals.finished
    has_progress = last.handed_over or finished_rounds != last.finished_rounds
    was_requeued = int(os.environ.get("SLURM_RESTART_COUNT") or 0) > 0  # preempted, or its node failed
    without_progress = 0 if has_progress else last.jobs_without_progress + (not was_requeued)
    without_progress += max(0, state.number - last.number - 1)  # could not record their start
    counts = {"finished_rounds": finished_rounds, "jobs_without_progress": without_progress}
    state = state.model_copy(update={"handed_over": False, **counts})
    if without_progress >= MAX_WITHOUT_PROGRESS:
        message = f"{MAX_WITHOUT_PROGRESS} consecutive jobs of the run ended early and finished no round"
        hint = f"read {layout.detached_logs}, then autoqec run --resume {layout.run_id}"
        _end(layout, state, message)
        raise InfrastructureError(message, location=f"run {layout.run_id}", hint=hint)
    run_control.write_detached(layout, state)
    return state


def _queue_successor(layout: RunLayout, settings: RunSettings, state: DetachedRun) -> tuple[DetachedRun, str]:
    """Queue the next job unless it is queued; write no state. Return the state, and why the job was not queued."""
    if state.successor_id is not None and any_alive(state.successor_id) is not False:
        return state, ""
    successor_id, refusal = None, ""
    try:
        successor_id = orchestrator_job.submit(layout, settings, state.number + 1, after=state.job_id)
    except (AutoqecError, OSError) as error:
        refusal = str(error)
        run_log.LOGGER.warning("the next job of the run was not queued: %s", refusal)
    return state.model_copy(update={"successor_id": successor_id}), refusal


def _end(layout: RunLayout, state: DetachedRun, reason: str) -> None:
    """Record why the chain ends, unless that is recorded or a new chain has begun, and cancel the next job."""
    last = run_control.last_chain(layout)
    if last is None or (last.ended is None and last.number <= state.number):
        run_control.end_detached(layout, state, reason)
    if state.successor_id is not None and (last is None or state.successor_id != last.job_id):
        slurm.cancel(state.successor_id)


def stop(layout: RunLayout, state: DetachedRun) -> bool:
    """Ask a detached run to end after its rounds in progress; without a running job, cancel the queued ones.

    Returns:
        Whether a job will finish the rounds in progress.
    """
    run_control.request_stop(layout)
    jobs = [job_id for job_id in (state.job_id, state.successor_id) if job_id is not None]
    states = [slurm.query_job(job_id) for job_id in jobs] if shutil.which("squeue") else []
    is_running = any(job.life == "alive" and job.state != "PENDING" for job in states)
    if is_running or not states or any(job.life == "unreachable" for job in states):
        return True  # it ends the chain itself, at its start if it is queued
    run_control.end_detached(layout, state, run_control.STOPPED)
    for job_id in jobs:
        slurm.cancel(job_id)
    return False
