"""One round, step by step: opened (proposal, branch), measured (the Runner), settled (nomination, judge, row).

Every step leaves on disk what the next one needs, and recovery reads the same.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autoqec.contracts.history import Begun, HistoryRow, Nominated, Planned
from autoqec.contracts.job import JobOrder
from autoqec.contracts.messages import AnalystResponse, CoderResponse, IdeatorResponse
from autoqec.contracts.pins import pinned, told
from autoqec.contracts.provenance import Pointer
from autoqec.contracts.round import RoundMetrics, RunnerConfig, parent_branches
from autoqec.contracts.timing import utc_now
from autoqec.errors import AutoqecError, ContractError, InputError, RoundFailed
from autoqec.ideators import analyst, coder
from autoqec.orchestrator import round_recorder, worktree
from autoqec.orchestrator.failpoint import reach
from autoqec.orchestrator.recovery.inspect import job_order, round_files
from autoqec.orchestrator.run import Run, search
from autoqec.orchestrator.verify_round import Candidate, judge
from autoqec.store import atomic, files
from autoqec.store.layout import SURFACE, SURFACE_CONFIG, RoundLayout, pointer_on_branch, quarantined
from autoqec.store.run_log import LOGGER
from autoqec.store.run_state import Attempt, RoundState
from autoqec.system import sandbox
from autoqec.system.git import MergeConflict, RefUpdate

OnEvent = Callable[[str, dict[str, Any]], None]


@dataclass(frozen=True)
class Opened:
    """A round under way. row: it ended before there was anything to measure, and is recorded already."""

    attempt: Attempt
    commit_sha: str | None = None
    row: HistoryRow | None = None

    @property
    def planned(self) -> Planned:
        assert self.attempt.planned is not None
        return self.attempt.planned


def open_round(run: Run, on_event: OnEvent) -> Opened:
    """Begin an attempt and bring its branch to the code commit."""
    history = run.memory.history
    number = run.memory.next_round()
    begun = Begun(round_attempt_id=str(uuid.uuid4()), round=number, at=utc_now())
    history.append_attempt(begun)
    atomic.make_dir(run.layout.round(number).dir)
    reach("begun")
    on_event("round_begun", {"round": number, "phase": "thinking"})
    attempt = Attempt(begun.round_attempt_id, number, begun.at)
    try:
        planned, edits, tips = _plan(run, attempt)
    except RoundFailed as failure:
        return _ended(run, attempt, on_event, status=failure.status, reason=failure.what)
    except AutoqecError as error:
        _record(run, round_recorder.lost_row(attempt, why=f"no proposal was made: {error.what}"), on_event)
        raise
    history.append_attempt(planned)
    reach("planned")
    attempt = replace(attempt, planned=planned)
    told = {"round": number, "hypothesis": planned.ideator.hypothesis, "branch": planned.branch, "phase": "coding"}
    on_event("planned", told)
    try:
        sha = worktree.create(run.repo, run.layout, planned, tips, edits)
        _config_on(run.layout.worktree(planned.branch))
        confined(run.layout.worktree(planned.branch) / SURFACE)
    except MergeConflict as conflict:
        more = {"conflicting_files": conflict.files}
        return _ended(run, attempt, on_event, status="compose_conflict", reason=conflict.what, **more)
    except RoundFailed as failure:
        return _refused(run, attempt, failure, on_event)
    return Opened(attempt, sha)


def runner_config(run: Run, opened: Opened) -> RunnerConfig:
    """What the Runner is given; the config is what the branch says."""
    planned, place = opened.planned, run.layout.worktree(opened.planned.branch)
    parents = _standing(run, parent_branches(planned.fork_from))
    deltas = [one.row.delta_ler for one in parents if one.row.delta_ler is not None]
    return RunnerConfig(
        env_yaml=run.env_text,
        predecoder_config=_config_on(place),
        profile=run.info.profile,
        seed=run.seed_of(planned.round),
        round_dir=str(run.layout.round(planned.round).dir),
        run_id=run.info.run_id,
        round_idx=planned.round,
        modules_dir=str(place / SURFACE),
        code_cwd=str(place),
        branch=planned.branch,
        commit_sha=opened.commit_sha,
        fork_from=planned.fork_from,
        compose_mode=planned.compose_mode,
        round_attempt_id=opened.attempt.id,
        # Of a composition's parents, the better one is what it has to beat.
        parent_delta_ler=max(deltas, default=None),
        parent_checkpoint=_weights_of(run, parents[0]) if parents else None,
        threads=run.threads,
    )


def _weights_of(run: Run, parent: RoundState) -> str | None:
    """The parent's checkpoint; None if `autoqec gc` removed it, which only matters to rounds that start from it."""
    path = run.layout.stored(parent.row.checkpoint_path)
    return None if path is None else str(path)


def under_way(run: Run) -> list[tuple[Opened, JobOrder]]:
    """Rounds that recovery left to their cluster's job, in the order in which they began."""
    closed, attempts = run.memory.state.rounds, run.memory.attempt_state.attempts
    open_attempts = [attempt for attempt in attempts.values() if attempt.id not in closed]
    orders = [(attempt, job_order(run.layout.round(attempt.round), attempt.id)) for attempt in open_attempts]
    return [(Opened(attempt, order.config.commit_sha), order) for attempt, order in orders if order is not None]


def refuse(run: Run, opened: Opened, why: str, on_event: OnEvent) -> HistoryRow:
    """Close a round that could not be handed over for measuring: it counts for nothing, its branch is set aside."""
    row = _refused(run, opened.attempt, RoundFailed("orphaned_branch", why), on_event).row
    assert row is not None
    return row


def confined(surface: Path) -> None:
    """RoundFailed for code of a branch where nothing would confine it and nobody said that it may run so."""
    if sandbox.probe() == "none" and not worktree.is_config_only(surface) and not sandbox.waived():
        what = "the branch changes code, and no sandbox runs here"
        mend = f"{sandbox.INSTALL} (or {sandbox.WAIVER}=1 to run it with all your rights, never to be VERIFIED)"
        raise RoundFailed("killed_by_safety", f"{what}. Mend: {mend}")


def _config_on(place: Path) -> dict[str, Any]:
    """The config of a checked-out branch. RoundFailed where a merge or an edit left none."""
    try:
        config = files.load_yaml(files.read_text(place / SURFACE_CONFIG), where=SURFACE_CONFIG)
    except InputError as error:
        raise RoundFailed("compile_error", str(error)) from error
    if not isinstance(config, dict):
        raise RoundFailed("compile_error", f"{SURFACE_CONFIG} holds no config")
    return config


def settle(run: Run, opened: Opened, metrics: RoundMetrics, on_event: OnEvent) -> HistoryRow:
    """Pointer commit, nomination, judgement, row, views, pin; the worktree goes, the branch stays."""
    attempt, number = opened.attempt, opened.attempt.round
    reach("measured")
    on_event("measured", {"round": number, "phase": "recording", **metrics.dump()})
    tip = worktree.commit_pointer(run.repo, run.layout, opened.planned, opened.commit_sha)
    reach("pointer_committed")
    layout = run.layout.round(number)
    said = _nominate(run, layout, opened.planned, metrics)
    nominated = Nominated(round_attempt_id=attempt.id, round=number, analyst=said, at=utc_now())
    run.memory.history.append_attempt(nominated)
    reach("nominated")
    told = {"round": number, "verdict": said.verdict, "summary_1line": said.summary_1line}
    on_event("nominated", told)
    attempt, report, unjudged = replace(attempt, nominated=nominated), None, None
    if said.verdict == "candidate":
        try:
            surface = run.layout.worktree(opened.planned.branch) / SURFACE
            if not surface.is_dir():
                mend = f"autoqec verify {layout.dir}"
                raise InputError("its worktree was removed under way", where=str(surface), mend=mend)
            candidate = Candidate(number, attempt.id, opened.planned.branch, opened.commit_sha, metrics, surface)
            report = judge(run.memory, run.info, candidate, run.secret, on_event)
        except (ContractError, InputError) as error:
            LOGGER.warning("not judged", exc_info=True, extra={"round": number})
            unjudged = f"not judged: {error}"
    found = round_files(layout)
    pointer = _pointer(run, layout, opened.planned, tip)
    row = round_recorder.build_row(
        attempt, metrics, pointer=pointer, report=report, config=found.config, sandbox=found.sandbox, unjudged=unjudged
    )
    _record(run, row, on_event)
    run.repo.update_refs([RefUpdate(run.layout.pin(attempt.id), tip, None)])
    reach("pinned")
    run.repo.worktree_remove(run.layout.worktree(opened.planned.branch))
    reach("worktree_removed")
    return row


def _plan(run: Run, attempt: Attempt) -> tuple[Planned, CoderResponse, list[str]]:
    """What the round is to be: the proposal, the edits, the commits to merge in. RoundFailed for one that cannot be."""
    view = run.memory.l2_for_ideator(run.env, run.baseline_config, inputs=run.inputs)
    try:
        proposal = _held(run, run.roles.ideator(view) or search("tpe")(view))
    except ContractError as error:
        raise RoundFailed("compile_error", f"the ideator's reply: {error}") from error
    reach("ideated")
    bases = [_base(run, one) for one in _standing(run, parent_branches(proposal.fork_from))]
    try:
        edits = _edits(run, proposal, bases)
    except ContractError as error:
        raise RoundFailed("compile_error", f"the coder's reply: {error}") from error
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


def _edits(run: Run, proposal: IdeatorResponse, bases: list[str]) -> CoderResponse:
    view: dict[str, Any] = {
        "hypothesis": proposal.hypothesis,
        "slug": proposal.slug,
        "compose_mode": proposal.compose_mode,
        "proposal": proposal.proposal,
    }
    if run.roles.open_surface:
        base = bases[0] if bases else run.info.baseline_sha
        entries = [entry for entry in run.repo.ls_tree(base, SURFACE) if entry.regular]
        blobs = run.repo.objects([entry.oid for entry in entries])
        view["surface"] = {
            entry.path.removeprefix(f"{SURFACE}/"): blob[1].decode("utf-8", "replace")
            for entry, blob in zip(entries, blobs, strict=True)
            if blob is not None
        }
    said = run.roles.coder(view) or coder.code(view)
    config = pinned(said.dsl_config, run.info.pins)
    if config == said.dsl_config:
        return said
    # The Coder let go of a pin: the config's file is written anew, its code stays.
    edits = coder.code({**view, "proposal": config}).edits
    others = (edit for edit in said.edits if edit.path not in {one.path for one in edits})
    return said.model_copy(update={"dsl_config": config, "edits": (*edits, *others)})


def _held(run: Run, proposal: IdeatorResponse) -> IdeatorResponse:
    """The proposal under the run's pins, whoever made it; its source says so. ContractError where they do not go
    together."""
    if not run.info.pins:
        return proposal
    source = f"{proposal.source}; pinned {told(run.info.pins)}"[:200]
    return proposal.model_copy(update={"proposal": pinned(proposal.proposal, run.info.pins), "source": source})


def _standing(run: Run, branches: tuple[str, ...]) -> list[RoundState]:
    """The recorded rounds of these branches, in this order. RoundFailed for one that cannot be forked."""
    known = run.memory.state.by_branch(branches)
    for branch in branches:
        if branch not in known or known[branch].row.commit_sha is None:
            raise RoundFailed("compile_error", f"`fork_from` names {branch}, which is no recorded branch of this run")
    return [known[branch] for branch in branches]


def _base(run: Run, one: RoundState) -> str:
    """The commit to fork from: the recorded pointer commit, whatever a person has put on the branch since."""
    sha = str(one.row.commit_sha)
    pinned = run.repo.refs(run.layout.pin(one.attempt_id)).values()
    return next(iter(pinned), sha)


def _nominate(run: Run, layout: RoundLayout, planned: Planned, metrics: RoundMetrics) -> AnalystResponse:
    view = run.memory.l3_for_analyst(layout.dir, hypothesis=planned.ideator.hypothesis)
    try:
        said = run.roles.analyst(view)
    except ContractError as error:
        LOGGER.warning("the analyst's reply was not used: %s", error, extra={"round": layout.round})
        said = None
    if said is None or (said.verdict == "candidate" and metrics.status != "ok"):
        return analyst.analyse(view)
    return said


def _pointer(run: Run, layout: RoundLayout, planned: Planned, tip: str) -> Pointer:
    """As it was committed: what a person does to the worktree meanwhile costs nothing."""
    from autoqec.runner.pointer import read_pointer

    name = pointer_on_branch(layout.round)
    (stored,) = run.repo.objects([f"{tip}:{name}"])
    data = b"" if stored is None else stored[1]
    return read_pointer(data, where=f"{planned.branch}:{name}", run_id=run.info.run_id, branch=planned.branch)


def _record(run: Run, row: HistoryRow, on_event: OnEvent) -> None:
    """The commit point, and the views that follow from it."""
    run.memory.append_round(row)
    reach("row_appended")
    run.memory.update_views(row)
    reach("views_written")
    on_event("round_recorded", {"round": row.round, "phase": "done", "row": row.dump()})


def _ended(run: Run, attempt: Attempt, on_event: OnEvent, *, status: str, reason: str, **more: Any) -> Opened:
    """A round that came to its end before it could be measured."""
    metrics = RoundMetrics.model_validate({"status": status, "status_reason": reason})
    on_event("measured", {"round": attempt.round, "status": status, "status_reason": reason})
    row = round_recorder.build_row(attempt, metrics, finished_at=utc_now(), **more)
    _record(run, row, on_event)
    return Opened(attempt, row=row)


def _refused(run: Run, attempt: Attempt, failure: RoundFailed, on_event: OnEvent) -> Opened:
    """An edit that may not be: what was committed of it is set aside, the worktree goes."""
    planned = attempt.planned
    assert planned is not None
    branch, sha = planned.branch, run.repo.rev_parse(f"refs/heads/{planned.branch}")
    place: dict[str, Any] = {}
    if sha is not None:
        worktree.salvage_and_remove(run.repo, run.layout, Path(run.layout.worktree(branch)))
        if sha == planned.base_sha:
            run.repo.update_refs([RefUpdate(f"refs/heads/{branch}", None, sha)])
        else:
            shelf = quarantined(branch)
            moved = [RefUpdate(f"refs/heads/{shelf}", sha, None), RefUpdate(f"refs/heads/{branch}", None, sha)]
            run.repo.update_refs([*moved, RefUpdate(run.layout.pin(attempt.id), sha, None)])
            place = {"branch": shelf, "commit_sha": sha}
    return _ended(run, attempt, on_event, status=failure.status, reason=failure.what, **place)
