"""The verifier's request for a round of a run, built from the files on disk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from autoqec.contracts.base import sha256_bytes
from autoqec.contracts.dsl import parse_dsl
from autoqec.contracts.history import AlphaSpent, RunInfo
from autoqec.contracts.profiles import profile_of
from autoqec.contracts.round import RoundMetrics, parent_branches
from autoqec.contracts.verdict import VerifyReport
from autoqec.errors import ContractError, UsageError
from autoqec.orchestrator import worktree
from autoqec.orchestrator.memory import RunMemory
from autoqec.store import files
from autoqec.store.layout import EDITABLE_MODULES
from autoqec.store.round_files import load_config, load_round, read_contract
from autoqec.store.run_state import RoundState, fold
from autoqec.system.git import GitError, Repo
from autoqec.system.scratch import scratch

if TYPE_CHECKING:
    from autoqec.verification.verifier import VerifyRequest


@dataclass(frozen=True)
class Candidate:
    """A measured round as input of the verifier; `modules_dir` is the checkout of its editable modules."""

    number: int
    attempt_id: str
    branch: str | None
    commit_sha: str | None
    metrics: RoundMetrics
    modules_dir: Path


@contextmanager
def request_with_parents(
    memory: RunMemory, info: RunInfo, candidate: Candidate, secret: bytes
) -> Iterator[VerifyRequest]:
    """Yield the verifier's request; for a composition with its parents, whose modules are checked out."""
    request = _build_request(memory, info, candidate, secret)
    attempt = memory.attempt_state.attempts.get(candidate.attempt_id)
    branches = parent_branches(attempt.planned.fork_from) if attempt and attempt.planned else ()
    if len(branches) < 2:
        yield request
        return
    with scratch("parents") as directory:
        try:
            parents = tuple(_parent_request(memory, info, branch, secret, directory) for branch in branches)
            request = replace(request, parents=parents)
        except (ContractError, UsageError, GitError) as error:  # only the comparison is lost, not the verdict
            request = replace(request, no_comparison_reason=error.message)
        yield request


def _parent_request(memory: RunMemory, info: RunInfo, branch: str, secret: bytes, directory: Path) -> VerifyRequest:
    """Return the request of a parent as it was verified: its files, its modules and the artifact of its report."""
    layout = memory.layout
    round_state = next(
        (round_state for round_state in memory.state.rounds.values() if round_state.row.branch == branch), None
    )
    if round_state is None or round_state.row.verify_verdict != "VERIFIED":
        raise UsageError(f"parent {branch} is not VERIFIED")
    number = round_state.row.round
    place = load_round(layout.round(number))
    if place.metrics is None or place.report is None:
        raise UsageError(f"metrics or report of parent round {number} cannot be read")
    modules_dir = directory / str(number)
    Repo.discover(layout.repo_root).extract(str(round_state.row.commit_sha), EDITABLE_MODULES, modules_dir)
    parent = Candidate(number, round_state.attempt_id, branch, round_state.row.commit_sha, place.metrics, modules_dir)
    return replace(_build_request(memory, info, parent, secret), expected_artifact=place.report.artifact_sha256)


def _build_request(memory: RunMemory, info: RunInfo, candidate: Candidate, secret: bytes) -> VerifyRequest:
    """Return the verifier's request, built from the files on disk."""
    from autoqec.verification import verifier

    layout, place = memory.layout, memory.layout.round(candidate.number)
    env_text = files.read_text(layout.env, what="the run's env", hint=f"restore {layout.env}")
    if (current_sha256 := sha256_bytes(env_text.encode())) != info.env_yaml_sha256:
        message = (
            f"the env has changed: its SHA-256 is {current_sha256}, at the start of the run {info.env_yaml_sha256}"
        )
        raise UsageError(message, location=str(layout.env), hint=f"restore {layout.env}")
    share = files.parse_env(env_text, location=str(layout.env)).protocol.shots_share
    tests = memory.attempt_state.registered_tests
    return verifier.VerifyRequest(
        env_text=env_text,
        round=place,
        checkpoint=place.checkpoint,
        dsl_config=parse_dsl(load_config(place.config), location=str(place.config)).config(),
        secret=secret,
        profile=profile_of(info.profile, info.scale).scaled(share),
        run_id=info.run_id,
        config_only=worktree.is_config_only(candidate.modules_dir),
        modules_dir=candidate.modules_dir,
        round_attempt_id=candidate.attempt_id,
        branch=candidate.branch,
        commit_sha=candidate.commit_sha,
        claimed=candidate.metrics,
        attempt_index=memory.next_test_index(),
        discoveries_before=len(memory.state.verified),
        tested_artifacts=_earlier_artifacts(tests, candidate.attempt_id, verified=place.report_json.exists()),
        shots=layout.shots,
    )


def place_of_earlier_process(
    memory: RunMemory, candidate: Candidate, request: VerifyRequest
) -> tuple[VerifyRequest, bool]:
    """Return the request with the test index of a process that died before it wrote the row.

    It left a report, or a job that verifies the same artifact. The index is used only if attempts.jsonl registered it
    for this attempt. The number of earlier discoveries is at most the present one.

    Returns:
        The request, and whether its test needs no further registration because the job of that test is awaited.
    """
    from autoqec.verification import job

    saved = read_contract(request.round.report_json, VerifyReport)
    tests = memory.attempt_state.registered_tests
    own = {line.attempt_index for line in tests if line.round_attempt_id == candidate.attempt_id}
    if saved is not None and saved.test is not None and saved.test.attempt_index in own:
        discoveries = min(saved.test.discoveries_before, request.discoveries_before)
        return replace(request, attempt_index=saved.test.attempt_index, discoveries_before=discoveries), False
    order = None if saved else job.unfinished_order(request)
    if order is None or order.attempt_index not in own:
        return request, False
    return replace(request, attempt_index=order.attempt_index, discoveries_before=order.discoveries_before), True


def restore_first_request(memory: RunMemory, round_state: RoundState, request: VerifyRequest) -> VerifyRequest:
    """Return the request as it was when the round got its verdict.

    A report that was lost since is written again at the same significance level, regardless of later tests.
    """
    tests = memory.attempt_state.registered_tests
    indices = [line.attempt_index for line in tests if line.round_attempt_id == round_state.attempt_id]
    rows = memory.history.rows()
    is_verdict = (
        row.verify_verdict and round_state.attempt_id in (row.round_attempt_id, row.refers_to_attempt) for row in rows
    )
    before = fold(rows[: next(index for index, has_verdict in enumerate(is_verdict) if has_verdict)])
    return replace(
        request,
        attempt_index=indices[-1] if indices else request.attempt_index,
        discoveries_before=len(before.verified),
        tested_artifacts=_earlier_artifacts(tests, round_state.attempt_id, verified=True),
    )


def _earlier_artifacts(tests: Sequence[AlphaSpent], attempt_id: str, *, verified: bool) -> dict[str, int]:
    """Return the round of the first test of every artifact; for a verified attempt, of tests before its last one.

    Interrupted tests of the attempt itself do not count: they revealed nothing.
    """
    own_indices = [index for index, line in enumerate(tests) if line.round_attempt_id == attempt_id]
    until = own_indices[-1] if own_indices and verified else len(tests)
    earlier = [line for line in tests[:until] if line.round_attempt_id != attempt_id]
    return {line.artifact_sha256: line.round for line in reversed(earlier)}
