"""Bringing a round back that recovery set aside: what was measured of it goes before the judge after all."""

from __future__ import annotations

from autoqec.contracts.events import OnEvent
from autoqec.contracts.history import HistoryRow
from autoqec.contracts.provenance import Pointer
from autoqec.contracts.round import RoundMetrics
from autoqec.errors import ManualInterventionRequired, UsageError
from autoqec.orchestrator import round_recorder
from autoqec.orchestrator.failpoint import failpoint
from autoqec.orchestrator.memory import RunMemory
from autoqec.orchestrator.publish_secret import is_closed
from autoqec.orchestrator.recovery.apply import recover
from autoqec.orchestrator.recovery.inspect import inspect_run, read_pointer_at, read_round_files
from autoqec.orchestrator.recovery.plan import RunInspection
from autoqec.orchestrator.verify_round import Candidate, verify_candidate
from autoqec.store import run_log
from autoqec.store.layout import EDITABLE_MODULES, RunLayout
from autoqec.store.run_state import RoundState, fold
from autoqec.system import run_lock
from autoqec.system.git import Repo
from autoqec.system.scratch import scratch


def adopt(layout: RunLayout, repo: Repo, number: int, on_event: OnEvent | None = None) -> HistoryRow:
    """Judge the quarantined round `number`; a follow-up row with the verdict, and the branch is `exp/…` again.

    The row comes first; recovery moves the branch to where it says. Raises UsageError where there is nothing to
    adopt: no such quarantined round, or one that was never measured; ManualInterventionRequired as recovery does.
    """
    memory = RunMemory(layout.root)
    info = memory.history.info()
    on_event = run_log.logged(on_event)
    with run_lock.lock_run(layout.root), run_log.attach(layout):
        if is_closed(layout):
            raise UsageError("the run is closed: its secret is published", location=info.run_id, hint="start a new run")
        recover(layout, repo, on_event, memory=memory)
        round_state = _find_quarantined(inspect_run(repo, layout, memory), number)
        tip = repo.rev_parse(f"refs/heads/{round_state.row.branch}")
        pointer = read_pointer_at(repo, str(tip), number)
        files = read_round_files(layout.round(number))
        metrics = _measured_metrics(layout, pointer, files.metrics, round_state)
        assert isinstance(pointer, Pointer)
        with scratch("surface") as directory:
            modules_dir = directory / "modules"
            repo.extract(pointer.commit_sha, EDITABLE_MODULES, modules_dir)
            candidate = Candidate(
                number, round_state.attempt_id, pointer.branch, pointer.commit_sha, metrics, modules_dir
            )
            report = verify_candidate(memory, info, candidate, layout.secret.read_bytes(), on_event)
        attempt = memory.attempt_state.attempts[round_state.attempt_id]
        full_row = round_recorder.build_row(attempt, metrics, pointer=pointer, report=report, config=files.config)
        row = round_recorder.restored_row(full_row, round_state.attempt_id)
        memory.append_round(row)
        failpoint("row_appended")
        recover(layout, repo, on_event, memory=memory)
        return row


def _find_quarantined(state: RunInspection, number: int) -> RoundState:
    for round_state in fold(state.rows).rounds.values():
        if (
            round_state.row.round == number
            and round_state.row.status == "orphaned_branch"
            and round_state.branch is not None
        ):
            return round_state
    message = f"round {number} is not in quarantine"
    raise UsageError(message, location=f"run {state.info.run_id}", hint=f"autoqec show {state.info.run_id}")


def _measured_metrics(
    layout: RunLayout, pointer: Pointer | str | None, metrics: RoundMetrics | None, round_state: RoundState
) -> RoundMetrics:
    location = str(layout.round(round_state.row.round).dir)
    if isinstance(pointer, str):
        raise ManualInterventionRequired(
            f"the pointer on {round_state.row.branch} cannot be read: {pointer}", location=location
        )
    if pointer is None or metrics is None or metrics.status != "ok":
        message = "the round died before it was measured, so there is nothing to judge"
        raise UsageError(
            message,
            location=location,
            hint=f"its config is in {round_state.row.branch}; `autoqec run-round` measures it",
        )
    if pointer.round_attempt_id != round_state.attempt_id:
        raise ManualInterventionRequired(
            f"the pointer on {round_state.row.branch} speaks of attempt {pointer.round_attempt_id}", location=location
        )
    return metrics
