"""The proposal of a round: asks Ideator and Coder, applies the pins, and finds the commits to fork from."""

from __future__ import annotations

from autoqec.contracts.history import Planned
from autoqec.contracts.messages import CoderResponse, IdeatorResponse
from autoqec.contracts.pins import apply_pins, format_pins
from autoqec.contracts.round import parent_branches
from autoqec.contracts.timing import utc_now
from autoqec.contracts.views import CoderView
from autoqec.errors import ContractError, RoundError
from autoqec.ideators import coder
from autoqec.orchestrator.editable_modules import read_modules
from autoqec.orchestrator.failpoint import failpoint
from autoqec.orchestrator.run import Run, search
from autoqec.store.attempt_state import Attempt
from autoqec.store.run_state import RoundState


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
