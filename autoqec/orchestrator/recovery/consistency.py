"""Contradictions in a run's files that only the user can resolve, each as a `pause`; pure functions of an inspection.

A row of history.jsonl is compared with its attempt in attempts.jsonl, and one that carries a verdict also with the
registered test there, the report in the round directory, and the pointer on the pinned commit.
"""

from __future__ import annotations

from collections.abc import Iterator

from autoqec.contracts.history import HistoryRow
from autoqec.contracts.provenance import Pointer
from autoqec.contracts.verdict import VerifyReport
from autoqec.orchestrator import round_recorder
from autoqec.orchestrator.recovery.state import RecoveryAction, RunInspection
from autoqec.store.layout import quarantine_branch_of, round_branch_of
from autoqec.store.run_state import Attempt, RoundState


def find_contradictions(state: RunInspection, recorded: list[RoundState]) -> Iterator[RecoveryAction]:
    """Yield a pause for each contradiction between the run's files.

    Args:
        state: The inspected run.
        recorded: Its rounds, as recorded in history.jsonl.
    """
    lines = {row.round_attempt_id or row.refers_to_attempt: number for number, row in enumerate(state.rows, start=1)}
    if state.info.baseline_sha in state.missing:
        message = f"git does not have the baseline commit {state.info.baseline_sha}: this is not the run's repository"
        hint = (
            "move the run directory back into the repository that it was made in, or fetch its branches, then --resume"
        )
        yield RecoveryAction("pause", message, sha=state.info.baseline_sha, hint=hint)
        return
    yield from _missing_verified_commits(state, recorded)
    yield from _missing_open_commits(state, recorded)
    yield from _shared_identity(state, recorded, lines)
    yield from _lost_attempts(state, recorded, lines)
    yield from _lost_tests(state)
    yield from _lost_end(state)
    for round_state in recorded:
        problem = _row_problem(state, round_state)
        if problem is not None:
            yield _pause(state, round_state.row, lines[round_state.attempt_id], problem)


def _pause(state: RunInspection, row: HistoryRow, line: int, problem: str) -> RecoveryAction:
    where = f"{state.layout.history}:{line}"
    hint = f"restore the run's files from a backup (look at {where} and {state.layout.attempts}), then --resume"
    return RecoveryAction("pause", f"{where}: round {row.round}: {problem}", branch=row.branch, hint=hint)


def _missing_verified_commits(state: RunInspection, recorded: list[RoundState]) -> Iterator[RecoveryAction]:
    for round_state in recorded:
        row = round_state.row
        if row.verify_verdict == "VERIFIED" and row.commit_sha in state.missing:
            message = f"git no longer has commit {row.commit_sha} of the verified round {row.round}"
            hint = f"fetch it back (`git fetch BACKUP {row.branch}`), then --resume"
            yield RecoveryAction("pause", message, sha=row.commit_sha, hint=hint)


def _missing_open_commits(state: RunInspection, recorded: list[RoundState]) -> Iterator[RecoveryAction]:
    """Yield a pause for branches of unfinished rounds whose commit was pruned: git cannot rename them either."""
    closed = {round_state.attempt_id for round_state in recorded}
    for attempt in state.attempts.values():
        if attempt.planned is None or attempt.id in closed:
            continue
        for branch in (attempt.planned.branch, quarantine_branch_of(attempt.planned.branch)):
            tip = state.branches.get(branch)
            if tip is not None and tip.sha in state.missing:
                message = f"git no longer has commit {tip.sha}, at which {branch} of the unfinished round is"
                hint = (
                    f"fetch it back (`git fetch BACKUP {branch}`), or give the round up: "
                    f"`git update-ref -d refs/heads/{branch}`; then --resume"
                )
                yield RecoveryAction("pause", message, branch=branch, sha=tip.sha, hint=hint)


def _shared_identity(
    state: RunInspection, recorded: list[RoundState], lines: dict[str | None, int]
) -> Iterator[RecoveryAction]:
    """Yield a pause for two attempts that claim one round number or branch, as after damage to an id."""
    owners: dict[str, str] = {}
    attempts = state.attempts.values()
    claims = [(attempt.id, f"round {attempt.round}") for attempt in attempts]
    claims += [(attempt.id, f"branch {attempt.planned.branch}") for attempt in attempts if attempt.planned]
    for round_state in recorded:
        claims.append((round_state.attempt_id, f"round {round_state.row.round}"))
        if round_state.row.branch:
            claims.append((round_state.attempt_id, f"branch {round_branch_of(round_state.row.branch)}"))
    reported = set()
    for attempt_id, claim in claims:
        other = owners.setdefault(claim, attempt_id)
        pair = frozenset((other, attempt_id))
        if other != attempt_id and pair not in reported:
            reported.add(pair)
            line = lines.get(attempt_id) or lines.get(other)
            where = f"{state.layout.history}:{line}" if line else str(state.layout.attempts)
            message = f"{where}: attempts {other} and {attempt_id} both claim {claim}"
            hint = (
                f"compare {state.layout.history} with {state.layout.attempts}, restore the damaged one, then --resume"
            )
            yield RecoveryAction("pause", message, hint=hint)


def _lost_attempts(
    state: RunInspection, recorded: list[RoundState], lines: dict[str | None, int]
) -> Iterator[RecoveryAction]:
    """Yield a pause for finished rounds without lines in attempts.jsonl, which hold the number of registered tests."""
    for round_state in recorded:
        row = round_state.row
        if not round_state.lost and row.round_attempt_id is not None and round_state.attempt_id not in state.attempts:
            problem = f"{state.layout.attempts} has no line of attempt {round_state.attempt_id}"
            yield _pause(state, row, lines[round_state.attempt_id], problem)


def _lost_tests(state: RunInspection) -> Iterator[RecoveryAction]:
    """Yield a pause if registered tests are missing or renumbered: each new test gets the number after the largest."""
    hint = f"restore {state.layout.attempts} from a backup, then --resume"
    owners: dict[int, str] = {}
    for position, test in enumerate(state.registered_tests, start=1):
        owner = owners.setdefault(test.attempt_index, test.round_attempt_id)
        problem = f"round {test.round} has test {test.attempt_index} of the run"
        if test.attempt_index > position:
            message = f"{problem}, but {state.layout.attempts} has only {position - 1} earlier tests"
        elif owner != test.round_attempt_id:
            message = f"{problem}, which {state.layout.attempts} also registers for attempt {owner}"
        else:
            continue
        yield RecoveryAction("pause", message, hint=hint)
        return


def _lost_end(state: RunInspection) -> Iterator[RecoveryAction]:
    """Yield a pause if the end of attempts.jsonl was cut off or replaced: it may have registered tests."""
    line = state.row_without_its_attempts
    if line is not None:
        row, attempts = state.rows[line - 1], state.layout.attempts
        yield _pause(state, row, line, f"the last line that {attempts} had when this row was written is gone")
    elif state.registered_test_lost:
        attempts, head = state.layout.attempts, state.layout.attempts_head
        hint = f"restore {attempts} from a backup, then --resume"
        yield RecoveryAction("pause", f"{attempts}: the registered test that {head} names is gone", hint=hint)


def _row_problem(state: RunInspection, round_state: RoundState) -> str | None:
    """Return how the row contradicts its files; None if it agrees. Without a verdict, only its attempt is compared."""
    row, attempt_id = round_state.row, round_state.attempt_id
    attempt = state.attempts.get(attempt_id)
    if attempt is not None and (problem := _attempt_problem(row, attempt)) is not None:
        return problem
    if row.verify_verdict is None:
        return None
    if attempt is None or attempt.registered_test is None:
        return f"it is {row.verify_verdict}, but {state.layout.attempts} has no registered test of attempt {attempt_id}"
    if (problem := _pointer_problem(row, state.committed_pointers.get(attempt_id))) is not None:
        return problem
    report, path = state.reports.get(attempt_id), state.layout.round(row.round).report_json
    if report is None:
        # Other verdicts claim no gain; `autoqec verify` writes a lost report again.
        return f"it is VERIFIED, but {path} is missing or damaged" if row.verify_verdict == "VERIFIED" else None
    difference = _report_difference(row, attempt, report)
    return f"{difference} ({path})" if difference else None


def _attempt_problem(row: HistoryRow, attempt: Attempt) -> str | None:
    if attempt.round != row.round:
        return f"attempts.jsonl has attempt {attempt.id} in round {attempt.round}"
    if attempt.planned is not None and row.branch is not None and attempt.planned.branch != round_branch_of(row.branch):
        return f"its branch is {row.branch}, but attempts.jsonl planned {attempt.planned.branch}"
    return None


def _pointer_problem(row: HistoryRow, pointer: Pointer | str | None) -> str | None:
    if pointer is None:  # `autoqec gc` deletes pins of rejected rounds, and their commits may no longer exist
        return None
    if isinstance(pointer, str):
        return f"the pointer on its pinned commit cannot be read: {pointer}"
    for name, expected in (("commit_sha", row.commit_sha), ("round_idx", row.round)):
        if getattr(pointer, name) != expected:
            return f"it has {expected}, but `{name}` is {getattr(pointer, name)} in the pointer on its pinned commit"
    return None


def _report_difference(row: HistoryRow, attempt: Attempt, report: VerifyReport) -> str | None:
    """Return the first difference between the row and its report."""
    pairs = {
        "round": (row.round, report.round),
        "commit_sha": (row.commit_sha, report.commit_sha),
        "round_attempt_id": (attempt.id, report.round_attempt_id),
    }
    if attempt.registered_test is not None:
        pairs["artifact_sha256"] = (attempt.registered_test.artifact_sha256, report.artifact_sha256)
        if report.test is not None:
            pairs["attempt_index"] = (attempt.registered_test.attempt_index, report.test.attempt_index)
    differences = [
        f"{name} is {recorded!r} in the run's files and {reported!r} in the report"
        for name, (recorded, reported) in pairs.items()
        if recorded != reported
    ]
    return next(iter([*round_recorder.verdict_differences(row, report), *differences]), None)
