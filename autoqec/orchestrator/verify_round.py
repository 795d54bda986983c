"""Verification of one round: the test is registered first, so that it counts whatever becomes of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from autoqec.contracts.base import sha256_bytes
from autoqec.contracts.dsl import parse_dsl
from autoqec.contracts.events import OnEvent, RoundRecorded, VerificationStarted
from autoqec.contracts.history import AlphaSpent, HistoryRow, RunInfo
from autoqec.contracts.profiles import PROFILES
from autoqec.contracts.round import RoundMetrics, parent_branches
from autoqec.contracts.timing import utc_now
from autoqec.contracts.verdict import VerifyReport
from autoqec.errors import ContractError, InfrastructureError, UsageError
from autoqec.orchestrator import round_recorder, worktree
from autoqec.orchestrator.failpoint import failpoint
from autoqec.orchestrator.hold import hold_run
from autoqec.orchestrator.memory import RunMemory
from autoqec.orchestrator.recovery.inspect import read_config, read_round_files, require_own_directory
from autoqec.orchestrator.secret import is_closed, read_published_secret, read_secret
from autoqec.store import files, run_log
from autoqec.store.history import History
from autoqec.store.layout import EDITABLE_MODULES, RunLayout
from autoqec.store.run_state import RoundState, fold
from autoqec.system.git import GitError, Repo
from autoqec.system.scratch import scratch

if TYPE_CHECKING:
    from autoqec.verification.verifier import ReplayResult, VerifyRequest


MAX_INTERRUPTED_TESTS = 2  # of one round; then only `autoqec verify` tries again


@dataclass(frozen=True)
class Candidate:
    """A measured round as the verifier gets it. modules_dir: its checked-out editable modules."""

    number: int
    attempt_id: str
    branch: str | None
    commit_sha: str | None
    metrics: RoundMetrics
    modules_dir: Path


def verify_candidate(
    memory: RunMemory, info: RunInfo, candidate: Candidate, secret: bytes, on_event: OnEvent
) -> VerifyReport:
    """Register the test, so that it counts whatever becomes of it, and have the candidate verified.

    Call while holding the run. If a candidate process is killed, the verification is repeated once, as a test of its
    own: branch code that kills itself and answers at random would otherwise have two chances at one level.

    Raises:
        InfrastructureError: It was killed again.
        ContractError, UsageError: As the verifier.
    """
    from autoqec.verification import verifier

    with _request_with_parents(memory, info, candidate, secret) as request:
        request = _place_of_unrecorded_report(memory, candidate, request)
        request = replace(request, expected_artifact=verifier.artifact_sha256(request))
        _register_test(memory, candidate, request)
        failpoint("charged")
        on_event(VerificationStarted(round=candidate.number, phase="judging"))
        try:
            report = verifier.verify(request, on_event=on_event)
        except InfrastructureError as error:
            run_log.LOGGER.warning("%s; tried once more", error, extra={"round": candidate.number})
            request = replace(request, attempt_index=_next_test_index(memory))
            request = _place_of_unrecorded_report(memory, candidate, request)
            _register_test(memory, candidate, request)
            report = verifier.verify(request, on_event=on_event)
        failpoint("judged")
        return report


def _register_test(memory: RunMemory, candidate: Candidate, request: VerifyRequest) -> None:
    memory.history.append_attempt(
        AlphaSpent(
            round_attempt_id=candidate.attempt_id,
            round=candidate.number,
            artifact_sha256=str(request.expected_artifact),
            attempt_index=request.attempt_index,
            at=utc_now(),
        )
    )


def verify_or_replay(layout: RunLayout, repo: Repo, number: int, on_event: OnEvent) -> VerifyReport:
    """Verify a recorded round that has no verdict, with a follow-up row; replay and compare one that has.

    Raises:
        UsageError: There is nothing to verify, another process holds the run, or it is closed, so that only a replay
            with the published secret is possible.
        ContractError: The replay disagrees.
        ManualInterventionRequired: The secret is lost, or the run is a copy whose original still exists.
    """
    from autoqec.verification import verifier

    with _recorded_candidate(layout, repo, number) as (info, round_state, candidate, secret):
        if round_state.row.verify_verdict is not None:
            # A lost report is written anew; only to compare with an existing one needs no hold on the run.
            report_missing = not layout.round(number).report_json.exists()
            memory = RunMemory(layout.root)
            with (
                hold_run(layout) if report_missing else nullcontext(),
                _request_with_parents(memory, info, candidate, secret) as request,
            ):
                return verifier.verify(_restore_first_request(memory, round_state, request), on_event=on_event)
        with hold_run(layout):
            memory = RunMemory(layout.root)
            # The run may have changed before it was held: no round gets a second verdict, and none is derived from a
            # secret that has been published.
            if is_closed(layout) or _find_measured_round(memory.history, number).row.verify_verdict is not None:
                what = "another process verified the round, or closed the run, meanwhile"
                raise UsageError(what, location=f"round {number}", hint=f"autoqec verify {layout.round(number).dir}")
            return _verify_recorded(memory, info, round_state, candidate, secret, run_log.logged(on_event))[0]


def verify_pending(memory: RunMemory, repo: Repo, on_event: OnEvent) -> list[HistoryRow]:
    """Verify the nominated rounds whose process died before it could; call while holding the run.

    A round whose verification fails again, or was interrupted before, is left to `autoqec verify`.

    Returns:
        The follow-up rows.
    """
    charged = Counter(line.round_attempt_id for line in memory.attempt_state.charged)
    rows = []
    for found in memory.state.rounds.values():
        row = found.row
        is_pending = row.status == "ok" and row.verdict == "candidate" and row.verify_verdict is None
        if not is_pending or found.gone or charged[found.attempt_id] >= MAX_INTERRUPTED_TESTS:
            continue
        try:
            with _recorded_candidate(memory.layout, repo, row.round) as (info, round_state, candidate, secret):
                report_and_row = _verify_recorded(memory, info, round_state, candidate, secret, on_event)
        except (ContractError, UsageError, InfrastructureError) as error:
            run_log.LOGGER.warning("not verified: %s", error, extra={"round": row.round})
            continue
        rows.append(report_and_row[1])
        on_event(RoundRecorded(round=row.round, phase="done", row=rows[-1]))
    return rows


def _verify_recorded(
    memory: RunMemory, info: RunInfo, round_state: RoundState, candidate: Candidate, secret: bytes, on_event: OnEvent
) -> tuple[VerifyReport, HistoryRow]:
    report = verify_candidate(memory, info, candidate, secret, on_event)
    row = round_recorder.verified_row(round_state.row, round_state.attempt_id, report)
    memory.append_round(row)
    memory.rebuild_views()
    return report, row


def replay(layout: RunLayout, repo: Repo, number: int, on_event: OnEvent) -> ReplayResult:
    """Repeat the verification that a round's report describes and compare; nothing is written.

    Raises:
        UsageError: There is no report.
        ContractError: Report, commit, env or artifact do not belong together.
    """
    from autoqec.verification import report, verifier

    place = layout.round(number)
    saved_report = report.read(place)
    if saved_report is None:
        raise UsageError("there is no report to replay", location=str(place.dir), hint=f"autoqec verify {place.dir}")
    with (
        _recorded_candidate(layout, repo, number) as (info, round_state, candidate, secret),
        _request_with_parents(memory := RunMemory(layout.root), info, candidate, secret) as request,
    ):
        if round_state.row.verify_verdict is None:
            raise UsageError(
                "a report exists, but history.jsonl has no verdict of the round",
                location=str(place.report_json),
                hint=f"autoqec run --resume {info.run_id}",
            )
        request = _restore_first_request(memory, round_state, request)
        replayed = verifier.replay(saved_report, request, on_event=on_event)
        from_history = round_recorder.verdict_differences(round_state.row, saved_report)
        return replace(replayed, differences=(*replayed.differences, *from_history))


@contextmanager
def _recorded_candidate(
    layout: RunLayout, repo: Repo, number: int
) -> Iterator[tuple[RunInfo, RoundState, Candidate, bytes]]:
    """A recorded round as the verifier gets it, its editable modules checked out for as long as the context lasts."""
    history = History(layout)
    info, round_state = history.info(), _find_measured_round(history, number)
    require_own_directory(layout, info)
    if is_closed(layout) and round_state.row.verify_verdict is not None:
        secret = read_published_secret(layout, info)
    else:
        secret = read_secret(layout, info)
    metrics = read_round_files(layout.round(number)).metrics
    if metrics is None:
        raise UsageError("cannot be read", location=str(layout.round(number).metrics), hint=f"restore round {number}")
    row = round_state.row
    with scratch("surface") as directory:
        modules_dir = directory / "modules"
        repo.extract(str(row.commit_sha), EDITABLE_MODULES, modules_dir)
        candidate = Candidate(number, round_state.attempt_id, row.branch, row.commit_sha, metrics, modules_dir)
        yield info, round_state, candidate, secret


def _find_measured_round(history: History, number: int) -> RoundState:
    for round_state in history.state().rounds.values():
        if round_state.row.round == number and round_state.row.status == "ok" and round_state.row.commit_sha:
            return round_state
    what = f"round {number} left nothing that could be verified"
    raise UsageError(what, location=f"run {history.layout.run_id}", hint=f"autoqec show {history.layout.run_id}")


@contextmanager
def _request_with_parents(
    memory: RunMemory, info: RunInfo, candidate: Candidate, secret: bytes
) -> Iterator[VerifyRequest]:
    """The verifier's request; a composition's with its parents, checked out for as long as the context lasts."""
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
        except (ContractError, UsageError, GitError) as error:  # costs the comparison, not the verdict
            request = replace(request, no_comparison_reason=error.message)
        yield request


def _parent_request(memory: RunMemory, info: RunInfo, branch: str, secret: bytes, directory: Path) -> VerifyRequest:
    """A parent as it was verified: its own files, its branch's modules, the artifact that its report names."""
    layout = memory.layout
    round_state = next(
        (round_state for round_state in memory.state.rounds.values() if round_state.row.branch == branch), None
    )
    if round_state is None or round_state.row.verify_verdict != "VERIFIED":
        raise UsageError(f"parent {branch} is not VERIFIED")
    number = round_state.row.round
    place = read_round_files(layout.round(number))
    if place.metrics is None or place.report is None:
        raise UsageError(f"metrics or report of parent round {number} cannot be read")
    modules_dir = directory / str(number)
    Repo.discover(layout.repo_root).extract(str(round_state.row.commit_sha), EDITABLE_MODULES, modules_dir)
    parent = Candidate(number, round_state.attempt_id, branch, round_state.row.commit_sha, place.metrics, modules_dir)
    return replace(_build_request(memory, info, parent, secret), expected_artifact=place.report.artifact_sha256)


def _build_request(memory: RunMemory, info: RunInfo, candidate: Candidate, secret: bytes) -> VerifyRequest:
    """The verifier's request, from what is on disk."""
    from autoqec.verification import verifier

    layout, place = memory.layout, memory.layout.round(candidate.number)
    env_text = files.read_text(layout.env, what="the run's env", hint=f"restore {layout.env}")
    if (current_sha256 := sha256_bytes(env_text.encode())) != info.env_yaml_sha256:
        what = f"the run began on env {info.env_yaml_sha256}, this is {current_sha256}"
        raise UsageError(what, location=str(layout.env), hint=f"restore {layout.env}")
    share = files.parse_env(env_text, location=str(layout.env)).protocol.shots_share
    charged = memory.attempt_state.charged
    return verifier.VerifyRequest(
        env_text=env_text,
        round=place,
        checkpoint=place.checkpoint,
        dsl_config=parse_dsl(read_config(place.config), location=str(place.config)).config(),
        secret=secret,
        profile=PROFILES[info.profile].scaled(share),
        run_id=info.run_id,
        config_only=worktree.is_config_only(candidate.modules_dir),
        modules_dir=candidate.modules_dir,
        round_attempt_id=candidate.attempt_id,
        branch=candidate.branch,
        commit_sha=candidate.commit_sha,
        claimed=candidate.metrics,
        attempt_index=_next_test_index(memory),
        discoveries_before=len(memory.state.verified),
        tested_artifacts=_earlier_artifacts(charged, candidate.attempt_id, judged=place.report_json.exists()),
        shots=layout.shots,
    )


def _place_of_unrecorded_report(memory: RunMemory, candidate: Candidate, request: VerifyRequest) -> VerifyRequest:
    """Return the request at the place of a report that a process left behind when it ended before it wrote the row.

    The report's place counts only if attempts.jsonl registered it for this attempt; it has no more discoveries than
    there are now.
    """
    from autoqec.verification import report

    saved = report.read(request.round)
    own = {line.attempt_index for line in memory.attempt_state.charged if line.round_attempt_id == candidate.attempt_id}
    if saved is None or saved.test is None or saved.test.attempt_index not in own:
        return request
    discoveries = min(saved.test.discoveries_before, request.discoveries_before)
    return replace(request, attempt_index=saved.test.attempt_index, discoveries_before=discoveries)


def _next_test_index(memory: RunMemory) -> int:
    """The place of the next test in the run's error budget; no loss of lines in attempts.jsonl makes it smaller."""
    charged = memory.attempt_state.charged
    verified = sum(found.row.verify_verdict is not None for found in memory.state.rounds.values())
    return max([len(charged), verified, *(line.attempt_index for line in charged)]) + 1


def _restore_first_request(memory: RunMemory, round_state: RoundState, request: VerifyRequest) -> VerifyRequest:
    """The request as it was when the round got its verdict: a report that was lost since is made again at the same
    level, whatever the run has verified and found by now."""
    charged = memory.attempt_state.charged
    indices = [line.attempt_index for line in charged if line.round_attempt_id == round_state.attempt_id]
    rows = memory.history.rows()
    is_verdict = (
        row.verify_verdict and round_state.attempt_id in (row.round_attempt_id, row.refers_to_attempt) for row in rows
    )
    before = fold(rows[: next(index for index, judged in enumerate(is_verdict) if judged)])
    return replace(
        request,
        attempt_index=indices[-1] if indices else request.attempt_index,
        discoveries_before=len(before.verified),
        tested_artifacts=_earlier_artifacts(charged, round_state.attempt_id, judged=True),
    )


def _earlier_artifacts(charged: Sequence[AlphaSpent], attempt_id: str, *, judged: bool) -> dict[str, int]:
    """Artifact -> round of its first draw, in the order of registered tests: for a verified attempt, up to its last.

    A test that was interrupted told nobody anything, so the attempt's own tests are no earlier draws.
    """
    own_indices = [index for index, line in enumerate(charged) if line.round_attempt_id == attempt_id]
    until = own_indices[-1] if own_indices and judged else len(charged)
    earlier = [line for line in charged[:until] if line.round_attempt_id != attempt_id]
    return {line.artifact_sha256: line.round for line in reversed(earlier)}
