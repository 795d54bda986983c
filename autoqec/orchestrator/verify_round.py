"""Verification of one round. The test is registered before it starts, so that it counts even if it is interrupted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from autoqec.contracts.base import sha256_bytes
from autoqec.contracts.dsl import parse_dsl
from autoqec.contracts.events import OnEvent, RoundRecorded, VerificationStarted
from autoqec.contracts.history import AlphaSpent, HistoryRow, RunInfo
from autoqec.contracts.profiles import profile_of
from autoqec.contracts.round import RoundMetrics, parent_branches, utc_now
from autoqec.contracts.verdict import VerifyReport
from autoqec.errors import ContractError, InfrastructureError, UsageError
from autoqec.orchestrator import round_recorder, worktree
from autoqec.orchestrator.executors import verify_here
from autoqec.orchestrator.failpoint import failpoint
from autoqec.orchestrator.hold import hold_run
from autoqec.orchestrator.memory import RunMemory
from autoqec.orchestrator.recovery.inspect import require_own_directory
from autoqec.orchestrator.secret import is_closed, read_published_secret, read_secret
from autoqec.store import atomic, files, run_log
from autoqec.store.history import History
from autoqec.store.layout import EDITABLE_MODULES, RunLayout, recorded_location
from autoqec.store.round_files import load_config, load_round, read_contract
from autoqec.store.run_state import RoundState, fold
from autoqec.system.git import GitError, Repo
from autoqec.system.scratch import scratch

if TYPE_CHECKING:
    from autoqec.verification.verifier import ReplayResult, VerifyRequest


@dataclass(frozen=True)
class Candidate:
    """A measured round as input of the verifier; `modules_dir` is the checkout of its editable modules."""

    number: int
    attempt_id: str
    branch: str | None
    commit_sha: str | None
    metrics: RoundMetrics
    modules_dir: Path


def note_moved_shots(layout: RunLayout, directory: Path, on_event: OnEvent) -> None:
    """Check the directory of the shots that a run's env brings, and note it in the run.

    Raises:
        UsageError: The env samples its shots, or a file is missing or differs.
    """
    env = files.parse_env(files.read_text(layout.env), location=str(layout.env))
    shots = env.code.check_moved(env, directory, str(layout.root), on_event)
    atomic.write_text(recorded_location(layout.round(1).dir), f"{shots.directory}\n")


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


Verify = Callable[["VerifyRequest", OnEvent], VerifyReport]

MAX_INTERRUPTED_TESTS = 2  # of one round; then only `autoqec verify` tries again


def verify_candidate(
    memory: RunMemory,
    info: RunInfo,
    candidate: Candidate,
    secret: bytes,
    on_event: OnEvent,
    verify: Verify = verify_here,
) -> VerifyReport:
    """Register the test of a candidate and run the verifier.

    The caller holds the run. If the candidate process is killed, the verification is repeated once as a further
    registered test: otherwise branch code that kills itself and answers at random would have two chances at one level.

    Raises:
        InfrastructureError: The candidate process was killed twice.
        ContractError: The files of the round do not belong together.
        UsageError: A file of the round or its env cannot be used.
    """
    from autoqec.verification import verifier

    with request_with_parents(memory, info, candidate, secret) as request:
        request = replace(request, expected_artifact=verifier.artifact_sha256(request))
        request, is_registered = place_of_earlier_process(memory, candidate, request)
        if not is_registered:
            _register_test(memory, candidate, request)
        failpoint("test_registered")
        on_event(VerificationStarted(round=candidate.number, phase="verifying"))
        try:
            report = verify(request, on_event)
        except InfrastructureError as error:
            if is_registered and _n_tests(memory)[candidate.attempt_id] >= MAX_INTERRUPTED_TESTS:
                raise  # this was the repetition, begun by an earlier process
            run_log.LOGGER.warning("%s; retrying once", error, extra={"round": candidate.number})
            request = replace(request, attempt_index=memory.next_test_index())
            request, _ = place_of_earlier_process(memory, candidate, request)
            _register_test(memory, candidate, request)
            report = verify(request, on_event)
        failpoint("verified")
        return report


def _register_test(memory: RunMemory, candidate: Candidate, request: VerifyRequest) -> None:
    memory.history.register_test(
        AlphaSpent(
            round_attempt_id=candidate.attempt_id,
            round=candidate.number,
            artifact_sha256=str(request.expected_artifact),
            attempt_index=request.attempt_index,
            at=utc_now(),
        )
    )


def _n_tests(memory: RunMemory) -> Counter[str]:
    """Count the registered tests of each attempt."""
    return Counter(line.round_attempt_id for line in memory.attempt_state.registered_tests)


def verify_or_replay(layout: RunLayout, repo: Repo, number: int, on_event: OnEvent) -> VerifyReport:
    """Verify a recorded round without a verdict and append a follow-up row, or repeat and compare a verification.

    Raises:
        UsageError: There is nothing to verify, another process holds the run, or the run is closed, so that only
            verified rounds can be replayed, with the published secret.
        ContractError: The replay differs.
        ManualInterventionRequired: The secret is lost, or the run is a copy whose original still exists.
    """
    from autoqec.verification import verifier

    with _recorded_candidate(layout, repo, number) as (info, round_state, candidate, secret):
        if round_state.row.verify_verdict is not None:
            # A lost report is written again, so the run is held. Comparing with an existing report writes nothing.
            report_missing = not layout.round(number).report_json.exists()
            memory = RunMemory(layout.root)
            with (
                hold_run(layout, "verify") if report_missing else nullcontext(),
                request_with_parents(memory, info, candidate, secret) as request,
            ):
                return verifier.verify(restore_first_request(memory, round_state, request), on_event=on_event)
        with hold_run(layout, "verify"):
            memory = RunMemory(layout.root)
            # The run may have changed before it was held: a round gets only one verdict, and no verdict may depend on
            # a published secret.
            if is_closed(layout) or _find_measured_round(memory.history, number).row.verify_verdict is not None:
                message = "another process verified the round, or closed the run, meanwhile"
                raise UsageError(message, location=f"round {number}", hint=f"autoqec verify {layout.round(number).dir}")
            return _verify_recorded(memory, info, round_state, candidate, secret, run_log.logged(on_event))[0]


def verify_pending(memory: RunMemory, repo: Repo, on_event: OnEvent, verify: Verify = verify_here) -> list[HistoryRow]:
    """Verify nominated rounds whose process died before their verification. The caller holds the run.

    A round whose verification fails, or was interrupted repeatedly, is left to `autoqec verify`, unless a job of the
    cluster still makes its last test.

    Returns:
        The follow-up rows.
    """
    n_tests = _n_tests(memory)
    rows = []
    for pending in memory.state.rounds.values():
        row = pending.row
        is_pending = row.status == "ok" and row.verdict == "candidate" and row.verify_verdict is None
        if not is_pending or pending.gone:
            continue
        if n_tests[pending.attempt_id] >= MAX_INTERRUPTED_TESTS and not _is_in_a_job(memory, pending):
            continue
        try:
            with _recorded_candidate(memory.layout, repo, row.round) as (info, round_state, candidate, secret):
                report_and_row = _verify_recorded(memory, info, round_state, candidate, secret, on_event, verify)
        except (ContractError, UsageError, InfrastructureError) as error:
            run_log.LOGGER.warning("not verified: %s", error, extra={"round": row.round})
            continue
        rows.append(report_and_row[1])
        on_event(RoundRecorded(round=row.round, phase="done", row=rows[-1]))
    return rows


def _is_in_a_job(memory: RunMemory, round_state: RoundState) -> bool:
    """Return whether a job was ordered for the newest test of the round; its result needs no further test."""
    from autoqec.verification import job

    indices = [
        t.attempt_index for t in memory.attempt_state.registered_tests if t.round_attempt_id == round_state.attempt_id
    ]
    try:
        order = job.read_order(memory.layout.round(round_state.row.round))
    except (ContractError, OSError):
        return False
    return (
        order is not None
        and order.candidate.round_attempt_id == round_state.attempt_id
        and order.attempt_index == indices[-1]
    )


def _verify_recorded(
    memory: RunMemory,
    info: RunInfo,
    round_state: RoundState,
    candidate: Candidate,
    secret: bytes,
    on_event: OnEvent,
    verify: Verify = verify_here,
) -> tuple[VerifyReport, HistoryRow]:
    report = verify_candidate(memory, info, candidate, secret, on_event, verify)
    row = round_recorder.verified_row(round_state.row, round_state.attempt_id, report)
    memory.append_round(row)
    memory.rebuild_views()
    return report, row


def replay(layout: RunLayout, repo: Repo, number: int, on_event: OnEvent) -> ReplayResult:
    """Repeat the verification that a round's report describes and compare the results; nothing is written.

    Raises:
        UsageError: The round has no report.
        ContractError: Report, commit, env or artifact do not belong together.
    """
    from autoqec.verification import verifier

    place = layout.round(number)
    saved_report = read_contract(place.report_json, VerifyReport)
    if saved_report is None:
        raise UsageError(
            "the round has no report to replay", location=str(place.dir), hint=f"autoqec verify {place.dir}"
        )
    with (
        _recorded_candidate(layout, repo, number) as (info, round_state, candidate, secret),
        request_with_parents(memory := RunMemory(layout.root), info, candidate, secret) as request,
    ):
        if round_state.row.verify_verdict is None:
            raise UsageError(
                "a report exists, but history.jsonl has no verdict of the round",
                location=str(place.report_json),
                hint=f"autoqec run --resume {info.run_id}",
            )
        request = restore_first_request(memory, round_state, request)
        replayed = verifier.replay(saved_report, request, on_event=on_event)
        from_history = round_recorder.verdict_differences(round_state.row, saved_report)
        return replace(replayed, differences=(*replayed.differences, *from_history))


@contextmanager
def _recorded_candidate(
    layout: RunLayout, repo: Repo, number: int
) -> Iterator[tuple[RunInfo, RoundState, Candidate, bytes]]:
    """Yield a recorded round as input of the verifier, with its editable modules checked out."""
    history = History(layout)
    info, round_state = history.info(), _find_measured_round(history, number)
    require_own_directory(layout, info)
    if is_closed(layout) and round_state.row.verify_verdict is not None:
        secret = read_published_secret(layout, info)
    else:
        secret = read_secret(layout, info)
    metrics = load_round(layout.round(number)).metrics
    if metrics is None:
        raise UsageError("cannot be read", location=str(layout.round(number).metrics), hint=f"restore round {number}")
    row = round_state.row
    with scratch("modules") as directory:
        modules_dir = directory / "modules"
        repo.extract(str(row.commit_sha), EDITABLE_MODULES, modules_dir)
        candidate = Candidate(number, round_state.attempt_id, row.branch, row.commit_sha, metrics, modules_dir)
        yield info, round_state, candidate, secret


def _find_measured_round(history: History, number: int) -> RoundState:
    for round_state in history.state().rounds.values():
        if round_state.row.round == number and round_state.row.status == "ok" and round_state.row.commit_sha:
            return round_state
    message = f"round {number} does not exist, or has no result that could be verified"
    raise UsageError(message, location=f"run {history.layout.run_id}", hint=f"autoqec show {history.layout.run_id}")


def require_verified(
    layout: RunLayout, number: int, checkpoint: Path, modules_dir: Path | None, *, override: str
) -> None:
    """Check that a round is VERIFIED and that its checkpoint, config and code are those that were verified.

    Args:
        layout: The run.
        number: The round.
        checkpoint: The checkpoint to be used.
        modules_dir: The round's editable modules if its branch changed code; otherwise None.
        override: How the user can skip this check; part of the hint.

    Raises:
        UsageError: The round is not VERIFIED, or the files differ from the verified artifact.
    """
    from autoqec.verification.shot_stream import artifact_sha256

    history, location = History(layout), f"run {layout.run_id}, round {number}"
    verified = [
        round_state
        for round_state in history.state().rounds.values()
        if round_state.row.round == number and round_state.row.verify_verdict == "VERIFIED"
    ]
    if not verified:
        hint = f"autoqec verify {layout.round(number).dir}, or {override}"
        raise UsageError("is not VERIFIED", location=location, hint=hint, code="not_verified")
    attempt = history.attempt_state().attempts.get(verified[-1].attempt_id)
    if attempt is None or attempt.registered_test is None:
        message = "attempts.jsonl does not contain the hash of the verified artifact"
        raise UsageError(message, location=location, hint=f"restore {layout.attempts}, or {override}")
    dsl = parse_dsl(verified[-1].row.dsl_config or {}, location=location)
    if artifact_sha256(checkpoint, dsl, modules_dir) != attempt.registered_test.artifact_sha256:
        message = "is not the checkpoint that was verified: its hash differs"
        hint = f"restore the file, or {override}"
        raise UsageError(message, location=str(checkpoint), hint=hint, code="artifact_mismatch")
