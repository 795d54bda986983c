"""The steps of one round: start (proposal, branch), measure (Runner), finish (nomination, verification, row).

Every step writes to disk what the next one needs; recovery reads the same files.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autoqec.contracts.events import (
    OnEvent,
    RoundEnded,
    RoundMeasured,
    RoundNominated,
    RoundPlanned,
    RoundRecorded,
    RoundStarted,
)
from autoqec.contracts.history import Begun, HistoryRow, Nominated, Planned
from autoqec.contracts.job import JobOrder
from autoqec.contracts.messages import AnalystResponse, CoderResponse, IdeatorResponse
from autoqec.contracts.pins import apply_pins, format_pins
from autoqec.contracts.provenance import Pointer
from autoqec.contracts.round import RoundMetrics, RunnerConfig, parent_branches, utc_now
from autoqec.contracts.views import CoderView
from autoqec.errors import AutoqecError, ContractError, InfrastructureError, RoundError, UsageError
from autoqec.ideators import analyst, coder
from autoqec.orchestrator import round_recorder, worktree
from autoqec.orchestrator.editable_modules import read_modules
from autoqec.orchestrator.executors import verify_here
from autoqec.orchestrator.failpoint import failpoint
from autoqec.orchestrator.recovery.inspect import read_job_order
from autoqec.orchestrator.roles import search
from autoqec.orchestrator.run import Run
from autoqec.orchestrator.verify_round import Candidate, Verify, verify_candidate
from autoqec.store import atomic, files
from autoqec.store.layout import EDITABLE_CONFIG, EDITABLE_MODULES, RoundLayout, pointer_on_branch, quarantine_branch_of
from autoqec.store.round_files import load_round
from autoqec.store.run_log import LOGGER
from autoqec.store.run_state import Attempt, RoundState
from autoqec.system import sandbox
from autoqec.system.git import MergeConflictError, RefUpdate


def plan_round(run: Run, attempt: Attempt) -> tuple[Planned, CoderResponse, list[str]]:
    """Return the plan of the round, its edits and the commits to merge. Raises RoundError for an invalid reply."""
    options = run.network_options
    view = run.memory.l2_for_ideator(
        run.env, run.baseline_config, inputs=options.inputs, gate_available=options.gate_available
    )
    try:
        proposal = _apply_pins(run, run.roles.ideator(view) or search("tpe")(view))
    except ContractError as error:
        raise RoundError("compile_error", f"the ideator's reply: {error}", cause="bad config") from error
    failpoint("ideated")
    bases = _base_commits(run, proposal)
    try:
        edits = _request_edits(run, proposal, bases)
        if edits is None:  # without its code, the proposal is not what the Ideator meant
            proposal = _apply_pins(run, search("tpe")(view))
            bases = _base_commits(run, proposal)
            edits = coder.code(_coder_view(run, proposal, bases))
    except ContractError as error:
        raise RoundError("compile_error", f"the coder's reply: {error}", cause="bad config") from error
    planned = Planned(
        round_attempt_id=attempt.id,
        round=attempt.round,
        branch=run.layout.branch(attempt.round, proposal.slug),
        base_sha=bases[0] if bases else run.info.baseline_sha,
        fork_from=proposal.fork_from,
        compose_mode=proposal.compose_mode,
        ideator=proposal,
        dsl_config=edits.dsl_config,
        at=utc_now(),
    )
    return planned, edits, bases[1:]


def _base_commits(run: Run, proposal: IdeatorResponse) -> list[str]:
    return [_base_commit(run, parent) for parent in parent_rounds(run, parent_branches(proposal.fork_from))]


def _coder_view(run: Run, proposal: IdeatorResponse, bases: list[str]) -> CoderView:
    base = bases[0] if bases else run.info.baseline_sha
    return CoderView(
        hypothesis=proposal.hypothesis,
        slug=proposal.slug,
        compose_mode=proposal.compose_mode,
        proposal=proposal.proposal,
        fork_from=parent_branches(proposal.fork_from),
        code_change=proposal.code_change,
        modules=read_modules(run.repo, base) if run.roles.open_modules else {},
    )


def _request_edits(run: Run, proposal: IdeatorResponse, bases: list[str]) -> CoderResponse | None:
    """Return the Coder's answer with the run's pins; None if there is none for a proposal that changes code."""
    view = _coder_view(run, proposal, bases)
    response = run.roles.coder(view) or (None if proposal.code_change else coder.code(view))
    if response is None:
        return None
    config = apply_pins(response.dsl_config, run.info.pins)
    if config == response.dsl_config:
        return response
    # The Coder changed a pinned value: the config file is written again, its code stays.
    edits = coder.code(view.model_copy(update={"proposal": config})).edits
    rewritten = {edit.path for edit in edits}
    others = (edit for edit in response.edits if edit.path not in rewritten)
    return response.model_copy(update={"dsl_config": config, "edits": (*edits, *others)})


def _apply_pins(run: Run, proposal: IdeatorResponse) -> IdeatorResponse:
    """Return the proposal with the run's pins applied and named in its source. Raises ContractError on a conflict."""
    if not run.info.pins:
        return proposal
    source = f"{proposal.source}; pinned {format_pins(run.info.pins)}"[:200]
    return proposal.model_copy(update={"proposal": apply_pins(proposal.proposal, run.info.pins), "source": source})


def parent_rounds(run: Run, branches: tuple[str, ...]) -> list[RoundState]:
    """Return the recorded rounds of these branches, in this order. Raises RoundError for one that cannot be forked."""
    recorded = run.memory.state.by_branch(branches)
    for branch in branches:
        if branch not in recorded or recorded[branch].row.commit_sha is None:
            raise RoundError("compile_error", f"`fork_from` names {branch}, which is not a recorded branch of this run")
    return [recorded[branch] for branch in branches]


def _base_commit(run: Run, parent: RoundState) -> str:
    """Return the commit to fork from: the pinned one, regardless of later commits on the branch."""
    pinned = run.repo.refs(run.layout.pin(parent.attempt_id)).values()
    return next(iter(pinned), str(parent.row.commit_sha))


@dataclass(frozen=True)
class StartedRound:
    """A started round; `row` is set if it ended before the measurement and is recorded already."""

    attempt: Attempt
    commit_sha: str | None = None
    row: HistoryRow | None = None

    @property
    def planned(self) -> Planned:
        """The plan of the attempt."""
        assert self.attempt.planned is not None
        return self.attempt.planned


def start_round(run: Run, on_event: OnEvent) -> StartedRound:
    """Start an attempt: ask for a proposal, create the branch and commit the code."""
    history = run.memory.history
    number = run.memory.next_round()
    begun = Begun(round_attempt_id=str(uuid.uuid4()), round=number, at=utc_now())
    history.append_attempt(begun)
    atomic.make_dir(run.layout.round(number).dir)
    failpoint("begun")
    on_event(RoundStarted(round=number, phase="thinking"))
    attempt = Attempt(begun.round_attempt_id, number, begun)
    try:
        planned, edits, tips = plan_round(run, attempt)
    except RoundError as failure:
        return _end_early(run, attempt, on_event, status=failure.status, reason=str(failure), cause=failure.cause)
    except AutoqecError as error:
        _record_row(run, round_recorder.aborted_row(attempt, why=f"no proposal was made: {error.message}"), on_event)
        raise
    history.append_attempt(planned)
    failpoint("planned")
    attempt = replace(attempt, planned=planned)
    hypothesis = planned.ideator.hypothesis
    on_event(RoundPlanned(round=number, phase="coding", hypothesis=hypothesis, branch=planned.branch))
    try:
        sha = worktree.create(run.repo, run.layout, planned, tips, edits)
        _branch_config(run.layout.worktree(planned.branch))
        require_sandbox(run.layout.worktree(planned.branch) / EDITABLE_MODULES)
    except MergeConflictError as conflict:
        return _end_early(
            run,
            attempt,
            on_event,
            status="compose_conflict",
            reason=conflict.message,
            conflicting_files=conflict.files,
        )
    except RoundError as failure:
        return _reject_edit(run, attempt, failure, on_event)
    return StartedRound(attempt, sha)


def runner_config(run: Run, opened: StartedRound) -> RunnerConfig:
    """Return the Runner's input for a started round; the config is the one on the branch."""
    planned, place = opened.planned, run.layout.worktree(opened.planned.branch)
    parents = parent_rounds(run, parent_branches(planned.fork_from))
    deltas = [parent.row.delta_ler for parent in parents if parent.row.delta_ler is not None]
    return RunnerConfig(
        env_yaml=run.env_text,
        predecoder_config=_branch_config(place),
        profile=run.info.profile,
        scale=run.info.scale,
        seed=run.round_seed(planned.round),
        round_dir=str(run.layout.round(planned.round).dir),
        run_id=run.info.run_id,
        round_idx=planned.round,
        modules_dir=str(place / EDITABLE_MODULES),
        code_cwd=str(place),
        branch=planned.branch,
        commit_sha=opened.commit_sha,
        fork_from=planned.fork_from,
        compose_mode=planned.compose_mode,
        round_attempt_id=opened.attempt.id,
        # A composition has to beat the better one of its parents.
        parent_delta_ler=max(deltas, default=None),
        parent_checkpoint=_parent_weights(run, parents[0]) if parents else None,
        threads=run.threads,
    )


def _parent_weights(run: Run, parent: RoundState) -> str | None:
    """Return the parent's checkpoint; None if `autoqec gc` removed it, which only affects rounds that start from it."""
    path = run.layout.stored(parent.row.checkpoint_path)
    return None if path is None else str(path)


def under_way(run: Run) -> list[tuple[StartedRound, JobOrder]]:
    """Return the rounds that a job of a cluster still measures, in the order in which they started."""
    closed, attempts = run.memory.state.rounds, run.memory.attempt_state.attempts
    open_attempts = [attempt for attempt in attempts.values() if attempt.id not in closed]
    orders = [(attempt, read_job_order(run.layout.round(attempt.round), attempt.id)) for attempt in open_attempts]
    return [(StartedRound(attempt, order.config.commit_sha), order) for attempt, order in orders if order is not None]


def reject_round(run: Run, opened: StartedRound, why: str, on_event: OnEvent) -> HistoryRow:
    """Close a round that could not be measured and quarantine its branch. It does not count as a finished round."""
    row = _reject_edit(run, opened.attempt, RoundError("orphaned_branch", why), on_event).row
    assert row is not None
    return row


def require_sandbox(modules_dir: Path) -> None:
    """Raise RoundError if a branch changes code, no sandbox works here, and the user did not opt out of it."""
    if sandbox.probe() == "none" and not worktree.is_config_only(modules_dir) and not sandbox.opted_out():
        message = "the branch changes code, and no sandbox works on this machine"
        hint = (
            f"{sandbox.INSTALL}; {sandbox.OPT_OUT_VARIABLE}=1 runs the code with all your permissions, but then the "
            "round cannot be VERIFIED"
        )
        raise RoundError("killed_by_safety", message, hint=hint, cause="no sandbox")


def _branch_config(place: Path) -> dict[str, Any]:
    """Return the config of a checked-out branch. Raises RoundError if a merge or an edit left none."""
    try:
        config = files.load_yaml(files.read_text(place / EDITABLE_CONFIG), location=EDITABLE_CONFIG)
    except UsageError as error:
        raise RoundError("compile_error", str(error), cause="bad config") from error
    if not isinstance(config, dict):
        raise RoundError("compile_error", f"{EDITABLE_CONFIG} is not a mapping", cause="bad config")
    return config


def finish_round(
    run: Run, opened: StartedRound, metrics: RoundMetrics, on_event: OnEvent, verify: Verify = verify_here
) -> HistoryRow:
    """Commit the pointer, nominate, verify, write row, views and pin; remove the worktree but not the branch."""
    attempt, number = opened.attempt, opened.attempt.round
    failpoint("measured")
    on_event(RoundMeasured(round=number, phase="recording", metrics=metrics))
    tip = worktree.commit_pointer(run.repo, run.layout, opened.planned, opened.commit_sha)
    failpoint("pointer_committed")
    layout = run.layout.round(number)
    response = _nominate(run, layout, opened.planned, metrics)
    nominated = Nominated(round_attempt_id=attempt.id, round=number, analyst=response, at=utc_now())
    run.memory.history.append_attempt(nominated)
    failpoint("nominated")
    on_event(RoundNominated(round=number, verdict=response.verdict, summary_1line=response.summary_1line))
    attempt, report, unverified_reason = replace(attempt, nominated=nominated), None, None
    if response.verdict == "candidate":
        try:
            modules_dir = run.layout.worktree(opened.planned.branch) / EDITABLE_MODULES
            if not modules_dir.is_dir():
                hint = f"autoqec verify {layout.dir}"
                raise UsageError("the worktree was removed during the round", location=str(modules_dir), hint=hint)
            candidate = Candidate(number, attempt.id, opened.planned.branch, opened.commit_sha, metrics, modules_dir)
            report = verify_candidate(run.memory, run.info, candidate, run.read_secret(), on_event, verify)
        except (ContractError, UsageError, InfrastructureError) as error:
            LOGGER.warning("not verified", exc_info=True, extra={"round": number})
            unverified_reason = f"not verified: {error}"
    recorded_files = load_round(layout)
    pointer = _read_committed_pointer(run, layout, opened.planned, tip)
    row = round_recorder.build_row(
        attempt,
        metrics,
        pointer=pointer,
        report=report,
        config=recorded_files.config,
        sandbox=recorded_files.sandbox,
        unverified_reason=unverified_reason,
    )
    _record_row(run, row, on_event)
    run.repo.update_refs([RefUpdate(run.layout.pin(attempt.id), tip, None)])
    failpoint("pinned")
    run.repo.worktree_remove(run.layout.worktree(opened.planned.branch))
    failpoint("worktree_removed")
    return row


def _nominate(run: Run, layout: RoundLayout, planned: Planned, metrics: RoundMetrics) -> AnalystResponse:
    view = run.memory.l3_for_analyst(layout.dir, hypothesis=planned.ideator.hypothesis)
    try:
        response = run.roles.analyst(view)
    except ContractError as error:
        LOGGER.warning("the analyst's reply was not used: %s", error, extra={"round": layout.round})
        response = None
    if response is None or (response.verdict == "candidate" and metrics.status != "ok"):
        return analyst.analyse(view)
    return response


def _read_committed_pointer(run: Run, layout: RoundLayout, planned: Planned, tip: str) -> Pointer:
    """Return the pointer as committed, so that changes to the worktree do not matter."""
    from autoqec.runner.provenance import read_pointer

    name = pointer_on_branch(layout.round)
    (stored,) = run.repo.objects([f"{tip}:{name}"])
    data = b"" if stored is None else stored[1]
    return read_pointer(data, location=f"{planned.branch}:{name}", run_id=run.info.run_id, branch=planned.branch)


def _record_row(run: Run, row: HistoryRow, on_event: OnEvent) -> None:
    """Append the row, which is the commit point of the round, and update the views."""
    run.memory.append_round(row)
    failpoint("row_appended")
    run.memory.rebuild_views()
    failpoint("views_written")
    on_event(RoundRecorded(round=row.round, phase="done", row=row))


def _end_early(
    run: Run,
    attempt: Attempt,
    on_event: OnEvent,
    *,
    status: str,
    reason: str,
    cause: str | None = None,
    **more: Any,
) -> StartedRound:
    """Record a round that ended before it could be measured."""
    metrics = RoundMetrics.model_validate({"status": status, "status_reason": reason, "failure_cause": cause})
    on_event(RoundEnded(round=attempt.round, status=metrics.status, status_reason=reason))
    row = round_recorder.build_row(attempt, metrics, finished_at=utc_now(), **more)
    _record_row(run, row, on_event)
    return StartedRound(attempt, row=row)


def _reject_edit(run: Run, attempt: Attempt, failure: RoundError, on_event: OnEvent) -> StartedRound:
    """Quarantine the branch of a rejected edit and remove its worktree."""
    planned = attempt.planned
    assert planned is not None
    branch, sha = planned.branch, run.repo.rev_parse(f"refs/heads/{planned.branch}")
    place: dict[str, Any] = {}
    if sha is not None:
        worktree.salvage_and_remove_worktree(run.repo, run.layout, run.layout.worktree(branch))
        # A branch that is checked out elsewhere keeps its name; recovery deletes it later.
        in_use = branch in run.repo.checked_out_branches()
        updates = [] if in_use else [RefUpdate(f"refs/heads/{branch}", None, sha)]
        if sha != planned.base_sha:
            quarantine_branch = quarantine_branch_of(branch)
            updates += [
                RefUpdate(f"refs/heads/{quarantine_branch}", sha, None),
                RefUpdate(run.layout.pin(attempt.id), sha, None),
            ]
            place = {"branch": quarantine_branch, "commit_sha": sha}
        if updates:
            run.repo.update_refs(updates)
    return _end_early(run, attempt, on_event, status=failure.status, reason=str(failure), cause=failure.cause, **place)
