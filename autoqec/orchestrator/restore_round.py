"""Bringing a round back that recovery set aside: what was measured of it goes before the judge after all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from autoqec.contracts.history import HistoryRow
from autoqec.contracts.provenance import Pointer
from autoqec.contracts.round import RoundMetrics
from autoqec.errors import InputError, RunPaused
from autoqec.orchestrator import round_recorder
from autoqec.orchestrator.failpoint import reach
from autoqec.orchestrator.memory import RunMemory
from autoqec.orchestrator.publish_secret import is_closed
from autoqec.orchestrator.recovery.apply import recover
from autoqec.orchestrator.recovery.inspect import gather, pointer_at, round_files
from autoqec.orchestrator.recovery.plan import State
from autoqec.orchestrator.verify_round import Candidate, judge
from autoqec.store import run_log
from autoqec.store.layout import SURFACE, RunLayout
from autoqec.store.run_state import RoundState, fold
from autoqec.system import run_lock
from autoqec.system.git import Repo
from autoqec.system.scratch import scratch

OnEvent = Callable[[str, dict[str, Any]], None]


def adopt(layout: RunLayout, repo: Repo, number: int, on_event: OnEvent | None = None) -> HistoryRow:
    """Judge the quarantined round `number`; a follow-up row with the verdict, and the branch is `exp/…` again.

    The row comes first; recovery moves the branch to where it says. Raises InputError where there is nothing to
    adopt: no such quarantined round, or one that was never measured; RunPaused as recovery does.
    """
    memory = RunMemory(layout.root)
    info = memory.history.info()
    on_event = run_log.logged(on_event)
    with run_lock.hold(layout.root), run_log.attach(layout):
        if is_closed(layout):
            raise InputError("the run is closed: its secret is published", where=info.run_id, mend="start a new run")
        recover(layout, repo, on_event, memory=memory)
        one = _set_aside(gather(repo, layout, memory), number)
        tip = repo.rev_parse(f"refs/heads/{one.row.branch}")
        pointer = pointer_at(repo, str(tip), number)
        files = round_files(layout.round(number))
        metrics = _measured(layout, pointer, files.metrics, one)
        assert isinstance(pointer, Pointer)
        with scratch("surface") as directory:
            surface = directory / "modules"
            repo.extract(pointer.commit_sha, SURFACE, surface)
            candidate = Candidate(number, one.attempt_id, pointer.branch, pointer.commit_sha, metrics, surface)
            report = judge(memory, info, candidate, layout.secret.read_bytes(), on_event)
        attempt = memory.attempt_state.attempts[one.attempt_id]
        whole = round_recorder.build_row(attempt, metrics, pointer=pointer, report=report, config=files.config)
        row = round_recorder.adopted_row(whole, one.attempt_id)
        memory.append_round(row)
        reach("row_appended")
        recover(layout, repo, on_event, memory=memory)
        return row


def _set_aside(state: State, number: int) -> RoundState:
    for one in fold(state.rows).rounds.values():
        if one.row.round == number and one.row.status == "orphaned_branch" and one.branch is not None:
            return one
    what = f"round {number} is not in quarantine"
    raise InputError(what, where=f"run {state.info.run_id}", mend=f"autoqec show {state.info.run_id}")


def _measured(
    layout: RunLayout, pointer: Pointer | str | None, metrics: RoundMetrics | None, one: RoundState
) -> RoundMetrics:
    where = str(layout.round(one.row.round).dir)
    if isinstance(pointer, str):
        raise RunPaused(f"the pointer on {one.row.branch} cannot be read: {pointer}", where=where)
    if pointer is None or metrics is None or metrics.status != "ok":
        what = "the round died before it was measured, so there is nothing to judge"
        raise InputError(what, where=where, mend=f"its config is in {one.row.branch}; `autoqec run-round` measures it")
    if pointer.round_attempt_id != one.attempt_id:
        raise RunPaused(f"the pointer on {one.row.branch} speaks of attempt {pointer.round_attempt_id}", where=where)
    return metrics
