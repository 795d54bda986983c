"""Restores a round that recovery quarantined: its complete measurement is verified and its branch renamed back."""

from __future__ import annotations

from autoqec.contracts.events import OnEvent
from autoqec.contracts.history import HistoryRow
from autoqec.contracts.provenance import Pointer
from autoqec.contracts.round import RoundMetrics
from autoqec.errors import ManualInterventionRequired, UsageError
from autoqec.orchestrator import round_recorder, worktree
from autoqec.orchestrator.failpoint import failpoint
from autoqec.orchestrator.hold import hold_run
from autoqec.orchestrator.memory import RunMemory
from autoqec.orchestrator.recovery.apply import recover
from autoqec.orchestrator.recovery.inspect import inspect_run, read_pointer_at
from autoqec.orchestrator.recovery.state import RunInspection
from autoqec.orchestrator.secret import read_secret
from autoqec.orchestrator.verify_round import Candidate, verify_candidate
from autoqec.store import run_log
from autoqec.store.layout import EDITABLE_MODULES, RunLayout
from autoqec.store.round_files import RoundFiles, load_round
from autoqec.store.run_state import RoundState, fold
from autoqec.system.git import RefUpdate, Repo
from autoqec.system.scratch import scratch


def restore_round(layout: RunLayout, repo: Repo, number: int, on_event: OnEvent | None = None) -> HistoryRow:
    """Verify the quarantined round `number` and rename its branch back to `exp/…`.

    The follow-up row with the verdict is appended first; recovery then renames the branch accordingly.

    Returns:
        The follow-up row.

    Raises:
        UsageError: The round is not in quarantine, was not measured, ended without a result, or the run is closed.
        ManualInterventionRequired: Recovery needs a decision of the user, or the round's files contradict each other.
    """
    memory = RunMemory(layout.root)
    info = memory.history.info()
    on_event = run_log.logged(on_event)
    with hold_run(layout, "adopt"):
        secret = read_secret(layout, info)
        recover(layout, repo, on_event, memory=memory)
        round_state = _find_quarantined(inspect_run(repo, layout, memory), number)
        files = load_round(layout.round(number))
        pointer = _committed_pointer(memory, repo, round_state, files)
        pointer, metrics = _require_measured(layout, pointer, files.metrics, round_state)
        with scratch("modules") as directory:
            modules_dir = directory / "modules"
            repo.extract(pointer.commit_sha, EDITABLE_MODULES, modules_dir)
            candidate = Candidate(
                number, round_state.attempt_id, pointer.branch, pointer.commit_sha, metrics, modules_dir
            )
            report = verify_candidate(memory, info, candidate, secret, on_event)
        attempt = memory.attempt_state.attempts[round_state.attempt_id]
        full_row = round_recorder.build_row(attempt, metrics, pointer=pointer, report=report, config=files.config)
        row = round_recorder.restored_row(full_row, round_state.attempt_id)
        memory.append_round(row)
        failpoint("row_appended")
        recover(layout, repo, on_event, memory=memory)
        return row


def _find_quarantined(state: RunInspection, number: int) -> RoundState:
    for round_state in fold(state.rows).rounds.values():
        if round_state.row.round == number and round_state.lost and round_state.branch is not None:
            return round_state
    message = f"round {number} is not in quarantine"
    raise UsageError(message, location=f"run {state.info.run_id}", hint=f"autoqec show {state.info.run_id}")


def _committed_pointer(
    memory: RunMemory, repo: Repo, round_state: RoundState, files: RoundFiles
) -> Pointer | str | None:
    """Return the pointer on the quarantined branch; one that only the round directory holds is committed first."""
    layout, number, branch = memory.layout, round_state.row.round, str(round_state.row.branch)
    tip = str(repo.rev_parse(f"refs/heads/{branch}"))
    pointer = read_pointer_at(repo, tip, number)
    planned = memory.attempt_state.attempts[round_state.attempt_id].planned
    found = files.pointer
    if found is None or files.metrics is None or planned is None or found.round_attempt_id != round_state.attempt_id:
        return pointer
    if pointer is None and found.commit_sha == tip:
        worktree.recommit_pointer(repo, layout, planned, branch)
        failpoint("recovery_pointer_committed")
        worktree.salvage_and_remove_worktree(repo, layout, layout.worktree(planned.branch))
        tip = str(repo.rev_parse(f"refs/heads/{branch}"))
        pointer = read_pointer_at(repo, tip, number)
    pin = layout.pin(round_state.attempt_id)
    if repo.rev_parse(pin) == found.commit_sha != tip:  # recovery pinned the code commit, the pointer's parent
        repo.update_refs([RefUpdate(pin, tip, found.commit_sha)])
    return pointer


def _require_measured(
    layout: RunLayout, pointer: Pointer | str | None, metrics: RoundMetrics | None, round_state: RoundState
) -> tuple[Pointer, RoundMetrics]:
    """Return the pointer and the metrics of a round; raise if it cannot be verified."""
    where, branch = str(layout.round(round_state.row.round).dir), round_state.row.branch
    if isinstance(pointer, str):
        raise ManualInterventionRequired(f"the pointer on {branch} cannot be read: {pointer}", location=where)
    if metrics is not None and metrics.status != "ok":
        message = f"the round ended {metrics.status} ({metrics.status_reason}), so there is nothing to verify"
        raise UsageError(message, location=where, hint=f"autoqec diagnose {where}")
    if pointer is None or metrics is None:
        missing = "metrics.json is missing or damaged" if metrics is None else f"{branch} has no pointer"
        message = f"the process died before the round was measured ({missing}), so there is nothing to verify"
        raise UsageError(message, location=where, hint=f"`autoqec run-round` measures the config on {branch}")
    if pointer.round_attempt_id != round_state.attempt_id:
        message = f"the pointer on {branch} belongs to attempt {pointer.round_attempt_id}"
        raise ManualInterventionRequired(message, location=where)
    return pointer, metrics
