"""Detached runs: a run executes in short SLURM jobs, each of which continues what the last one left.

A job queues its successor when it begins, so that the chain survives a job that is killed, and cancels it when the run
is finished. The successor waits for the end of the job, in any way, and resumes the run.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime

from autoqec.contracts.events import OnEvent
from autoqec.contracts.job import DetachedRun
from autoqec.contracts.settings import RunSettings
from autoqec.errors import AutoqecError, InfrastructureError, StorageError, UsageError
from autoqec.extensions.slurm import job as slurm_job
from autoqec.extensions.slurm import job_chain, orchestrator_job
from autoqec.extensions.slurm import submission as slurm
from autoqec.extensions.slurm.script import any_alive, is_cancelled
from autoqec.launch.options import RunOptions
from autoqec.launch.roles import build_roles
from autoqec.launch.session import open_run
from autoqec.orchestrator import loop
from autoqec.orchestrator.run import RunContext
from autoqec.store import run_control, run_log
from autoqec.store.history import History
from autoqec.store.layout import RunLayout
from autoqec.system import run_lock

MAX_WITHOUT_PROGRESS = 5  # consecutive jobs that end early and finish no round; more would fail in the same way
LOCK_POLL_S = 5.0
READ_TRIES = 12  # of run.json, LOCK_POLL_S apart


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
        orchestrator_job.require_no_chain(layout)  # again: another start may have detached the run before it was held
        last = run_control.last_chain(layout)
        state = DetachedRun(number=1 if last is None else last.number + 2, began=datetime.now(UTC))
        run_control.write_detached(layout, state)
        try:
            job_id = orchestrator_job.submit(layout, options.settings, state.number, state)
        except BaseException as error:
            run_control.end_detached(layout, state, f"its first job was not queued: {error}")
            raise
        # The job waits until the run is no longer held, so that nothing that it writes is overwritten.
        state = state.model_copy(update={"job_id": job_id})
        run_control.write_detached(layout, state)
    return layout, state


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
    state = DetachedRun(number=number, job_id=slurm_job.own_job_id(), successor_id=successor_id, began=last.began)
    try:
        settings = _settings(layout)
        # Before anything is written, so that the chain survives a full disk; each job that could not record its start
        # leaves a gap in the numbers.
        if number - last.number < MAX_WITHOUT_PROGRESS:
            state, _ = _queue_successor(layout, settings, state, last)  # if it is refused, tried again at the end
        _await_lock(layout)
        state = _begin(layout, state)
        outcome = _run_when_unlocked(layout, lambda: run_rounds(state.began))
    except AutoqecError as error:
        # What the user has to repair would fail again in the next job; the disk or the cluster may recover.
        may_pass = error.exit_code not in (2, 3) or error.code == slurm.UNREACHABLE
        if not may_pass or state.successor_id is None:
            with suppress(StorageError):  # the next job tries to record the reason
                _end(layout, state, str(error))
        raise
    if not outcome.interrupted or outcome.stop_reason == run_control.STOPPED:
        _end(layout, state, outcome.stop_reason)
    elif _is_cancelled(state):
        _end(layout, state, "its jobs were cancelled")
    else:
        _hand_over(layout, settings, state.model_copy(update={"handed_over": True}))


def _unended_chain(layout: RunLayout, number: int) -> DetachedRun:
    """Return the recorded state of the chain; if it is damaged, the one that the job was given when it was queued.

    Raises:
        UsageError: The job at this position is not to continue the chain.
    """
    try:
        last = run_control.last_chain(layout)
    except AutoqecError as error:
        last = orchestrator_job.state_at_submission(layout.run_id)
        if last is None:
            raise
        run_log.LOGGER.warning("%s; continued with the state in which the job was queued", error.summary)
    if last is None or last.ended is not None or number < last.number:
        reason = "a later job continued it" if last is not None else f"{layout.detached} was deleted"
        message = f"its chain of jobs has ended: {last.ended if last and last.ended else reason}"
        raise UsageError(message, location=f"run {layout.run_id}", hint=f"autoqec run --resume {layout.run_id}")
    return last


def _settings(layout: RunLayout) -> RunSettings:
    """Read the settings, without which no successor can be queued; a file system may fail for some time."""
    for _ in range(READ_TRIES - 1):
        with suppress(StorageError):
            return History(layout).info().settings or RunSettings()
        time.sleep(LOCK_POLL_S)
    return History(layout).info().settings or RunSettings()


def _is_cancelled(state: DetachedRun) -> bool:
    """Return whether the user cancelled both this job and its successor, e.g. all of their jobs."""
    if state.job_id is None or state.successor_id is None or any_alive(state.successor_id) is not False:
        return False
    return is_cancelled(state.job_id)


def _hand_over(layout: RunLayout, settings: RunSettings, state: DetachedRun) -> None:
    """Leave the run to the next job; if none can be queued, end the chain."""
    state, refusal = _queue_successor(layout, settings, state, state)
    run_control.write_detached(layout, state)
    if state.successor_id is None:
        _end(layout, state, f"no further job could be queued: {refusal}")


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


def _queue_successor(
    layout: RunLayout, settings: RunSettings, state: DetachedRun, recorded: DetachedRun
) -> tuple[DetachedRun, str]:
    """Queue the next job unless it is queued; write no state. Return the state, and why the job was not queued."""
    if state.successor_id is not None and any_alive(state.successor_id) is not False:
        return state, ""
    successor_id, refusal = None, ""
    try:
        successor_id = orchestrator_job.submit(layout, settings, state.number + 1, recorded, after=state.job_id)
    except (AutoqecError, OSError) as error:
        refusal = str(error)
        run_log.LOGGER.warning("the next job of the run was not queued: %s", refusal)
    return state.model_copy(update={"successor_id": successor_id}), refusal


def _end(layout: RunLayout, state: DetachedRun, reason: str) -> None:
    """Record why the chain ends, unless that is recorded or a new chain has begun, and cancel the next job."""
    last = None
    with suppress(AutoqecError):  # a damaged state is replaced
        last = run_control.last_chain(layout)
    if last is None or (last.ended is None and last.number <= state.number):
        run_control.end_detached(layout, state, reason)
    if state.successor_id is not None and (last is None or state.successor_id != last.job_id):
        slurm.cancel(state.successor_id)


def stop(layout: RunLayout) -> str | None:
    """Ask a detached run to end after its rounds in progress; if none of its jobs runs, cancel the queued ones.

    Returns:
        When the run ends; None if it is not detached.
    """
    chain = job_chain.read_chain(layout)
    if chain is None or chain.ended is not None or (chain.damage is not None and chain.live == {}):
        return None
    run_control.request_stop(layout)
    if chain.live is None:
        return "after its rounds in progress, when its job reads the request: SLURM does not answer on this machine"
    if any(job_state != "PENDING" for job_state in chain.live.values()):
        return "after its rounds in progress"  # the job ends the chain itself
    state = chain.state or DetachedRun(number=1, began=datetime.now(UTC))  # in place of a damaged one
    run_control.end_detached(layout, state, run_control.STOPPED)
    for job_id in chain.live:
        slurm.cancel(job_id)
    if not chain.live:
        return "now: SLURM has no job of it"
    return f"now: none of its jobs runs, and SLURM job {', '.join(chain.live)} is cancelled"
