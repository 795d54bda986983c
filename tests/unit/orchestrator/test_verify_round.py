"""Earlier verifications in the order of attempts: a round's number is the order of starts, not of tests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from autoqec.contracts.history import AlphaSpent
from autoqec.contracts.profiles import PROFILES
from autoqec.contracts.verdict import VerifyReport
from autoqec.contracts.verification_job import VerificationOrder, VerificationSubject
from autoqec.errors import InfrastructureError, UsageError
from autoqec.orchestrator import verify_round
from autoqec.orchestrator.memory import RunMemory
from autoqec.orchestrator.verify_round import (
    Candidate,
    _earlier_artifacts,
    place_of_earlier_process,
    restore_first_request,
)
from autoqec.store.history import History
from autoqec.store.layout import RunLayout
from autoqec.verification import job, verifier
from autoqec.verification.sequential import Monitor
from autoqec.verification.verifier import VerifyRequest
from tests.support import rounds
from tests.unit.system.test_run_lock import owner_process

ONE, TWO = "1" * 64, "2" * 64


def charged(attempt_id: str, number: int, artifact: str, index: int) -> AlphaSpent:
    return AlphaSpent(
        round_attempt_id=attempt_id, round=number, artifact_sha256=artifact, attempt_index=index, at=rounds.AT
    )


# Round 5 came first; a user verified round 2 later, with the same weights.
LINES = [charged("five", 5, ONE, 1), charged("three", 3, TWO, 2), charged("two", 2, ONE, 3)]


def test_replay_uses_the_artifacts_tested_before_its_attempt() -> None:
    assert _earlier_artifacts(LINES, "five", verified=True) == {}
    assert _earlier_artifacts(LINES, "three", verified=True) == {ONE: 5}
    assert _earlier_artifacts(LINES, "two", verified=True) == {ONE: 5, TWO: 3}


def test_next_attempt_counts_all_earlier_artifacts() -> None:
    assert _earlier_artifacts(LINES, "six", verified=False) == {
        ONE: 5,
        TWO: 3,
    }  # the first draw of an artifact is named


def test_interrupted_attempt_is_not_a_separate_draw() -> None:
    again = [*LINES, charged("three", 3, TWO, 4)]
    assert _earlier_artifacts(LINES, "three", verified=False) == {ONE: 5}
    assert _earlier_artifacts(again, "three", verified=True) == {ONE: 5}
    assert _earlier_artifacts(again, "six", verified=False) == {ONE: 5, TWO: 3}


def test_lost_report_is_recreated_at_its_original_level(tmp_path: Path) -> None:
    """Rounds tested later change neither the level nor the first draws of an earlier round."""
    layout = RunLayout(tmp_path, rounds.RUN_ID)
    history = History(layout)
    layout.root.mkdir(parents=True)
    for number, artifact, verdict in ((1, TWO, "VERIFIED"), (2, ONE, "SUSPICIOUS"), (3, ONE, "VERIFIED")):
        layout.round(number).dir.mkdir()
        history.append_attempt(charged(f"attempt-{number}", number, artifact, number))
        history.append_row(rounds.row(number, verify_verdict=verdict))
    dsl: dict[str, Any] = {}
    today = VerifyRequest(
        "", layout.round(2), tmp_path, dsl, b"", PROFILES["smoke"], rounds.RUN_ID, True,
        attempt_index=4, discoveries_before=2, tested_artifacts={ONE: 3, TWO: 1},
    )  # fmt: skip
    then = restore_first_request(RunMemory(layout.root), [*history.state().rounds.values()][1], today)
    assert (then.attempt_index, then.discoveries_before, then.tested_artifacts) == (2, 1, {TWO: 1})


def test_unrecorded_report_keeps_its_registered_position(tmp_path: Path) -> None:
    """A process ended between report and row: the report keeps its place in the sequence if it was registered."""
    layout = RunLayout(tmp_path, rounds.RUN_ID)
    layout.round(1).dir.mkdir(parents=True)
    history = History(layout)
    history.append_attempt(charged("attempt-1", 1, ONE, 3))
    report = rounds.report(1)
    assert report.effect is not None
    monitor = Monitor(0.05, 3, 0, 10_000)
    monitor.add(report.effect.counts)
    candidate = Candidate(1, "attempt-1", None, None, rounds.metrics(1), tmp_path)
    request = VerifyRequest(
        "", layout.round(1), tmp_path, {}, b"", PROFILES["smoke"], rounds.RUN_ID, True,
        attempt_index=7, discoveries_before=1,
    )  # fmt: skip
    for index, expected in ((3, 3), (1, 7)):
        test = monitor.result("evidence").model_copy(update={"attempt_index": index})
        layout.round(1).report_json.write_text(json.dumps(report.model_copy(update={"test": test}).dump()))
        found, _ = place_of_earlier_process(RunMemory(layout.root), candidate, request)
        assert found.attempt_index == expected


def order_of(layout: RunLayout, attempt_id: str, index: int) -> VerificationOrder:
    subject = VerificationSubject(
        round_dir=str(layout.round(1).dir), round=1, round_attempt_id=attempt_id, branch=None, commit_sha=None,
        dsl_config={}, modules_dir=None, claimed=None, artifact_sha256=ONE,
    )  # fmt: skip
    return VerificationOrder(
        name="a-job", options={}, code_sha256=TWO, run_id=rounds.RUN_ID, env_text="", profile=PROFILES["smoke"],
        candidate=subject, attempt_index=index, discoveries_before=0, tested_artifacts={},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("ordered", "verified"), [(None, 0), (("attempt-1", 1), 0), (("another", 2), 0), (("attempt-1", 2), 1)]
)
def test_repeated_verification_is_given_up_only_if_no_job_makes_it(
    ordered: tuple[str, int] | None, verified: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process ended while a job made the second test: the next one awaits it, and makes no third test."""
    layout = RunLayout(tmp_path, rounds.RUN_ID)
    layout.round(1).verification_dir.mkdir(parents=True)
    history = History(layout)
    for line in (rounds.begun(1), charged("attempt-1", 1, ONE, 1), charged("attempt-1", 1, ONE, 2)):
        history.append_attempt(line)
    history.append_row(rounds.row(1, verdict="candidate", verify_verdict=None))
    if ordered is not None:
        order = order_of(layout, *ordered)
        (layout.round(1).verification_dir / job.ORDER).write_text(json.dumps(order.dump()))
    candidate = Candidate(1, "attempt-1", None, None, rounds.metrics(1), tmp_path)
    request = VerifyRequest(
        "", layout.round(1), tmp_path, {}, b"", PROFILES["smoke"], rounds.RUN_ID, True,
        attempt_index=3, round_attempt_id="attempt-1",
    )  # fmt: skip
    verified_indices = []

    def verify(request: VerifyRequest, on_event: Any) -> VerifyReport:
        verified_indices.append(request.attempt_index)
        raise InfrastructureError("the job was killed")

    monkeypatch.setattr(
        verify_round, "_recorded_candidate", lambda *_: nullcontext((rounds.info(), None, candidate, b""))
    )
    monkeypatch.setattr(verify_round, "request_with_parents", lambda *_: nullcontext(request))
    monkeypatch.setattr(verifier, "artifact_sha256", lambda request: ONE)
    rows = verify_round.verify_pending(RunMemory(layout.root), None, lambda *_: None, verify)  # type: ignore[arg-type]
    assert rows == [] and verified_indices == [2] * verified
    assert len(history.attempt_state().registered_tests) == 2


@pytest.mark.parametrize("meanwhile", ["verified", "closed"])
def test_concurrent_request_does_not_verify_twice(
    meanwhile: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes verify one round: the second read it as unverified and waited for the first."""
    layout = RunLayout(tmp_path, rounds.RUN_ID)
    layout.round(1).dir.mkdir(parents=True)
    layout.secret.write_bytes(b"x" * 32)
    history = History(layout)
    history.write_info(rounds.info())
    history.append_attempt(rounds.begun(1))
    history.append_row(rounds.row(1, verify_verdict=None))
    (unverified_reason,) = [*history.state().rounds.values()]

    @contextmanager
    def request(*_: Any) -> Iterator[tuple[Any, ...]]:
        yield rounds.info(), unverified_reason, None, b""

    monkeypatch.setattr(verify_round, "_recorded_candidate", request)
    monkeypatch.setattr(verify_round, "verify_candidate", lambda *_: pytest.fail("it was verified a second time"))
    if meanwhile == "verified":
        follow_up = {"round_attempt_id": None, "reconcile_id": "one", "refers_to_attempt": "attempt-1"}
        history.append_row(rounds.row(1, verify_verdict="SUSPICIOUS", **follow_up))
    else:
        layout.secret_hex.write_text("")
    before = layout.history.read_bytes()
    with pytest.raises(UsageError, match="meanwhile.*autoqec verify"):
        verify_round.verify_or_replay(layout, None, 1, lambda *_: None)  # type: ignore[arg-type]
    assert layout.history.read_bytes() == before


@pytest.mark.parametrize("stands", [True, False])
def test_lost_report_is_rewritten_only_by_the_owner_of_the_run(
    stands: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Comparing with an existing report changes nothing, so that it is allowed while rounds run."""
    layout = RunLayout(tmp_path, rounds.RUN_ID)
    layout.round(1).dir.mkdir(parents=True)
    history = History(layout)
    history.write_info(rounds.info())
    history.append_row(rounds.row(1, verify_verdict="SUSPICIOUS"))
    (verified,) = [*history.state().rounds.values()]
    if stands:
        layout.round(1).report_json.write_text("{}")

    @contextmanager
    def request(*_: Any) -> Iterator[tuple[Any, ...]]:
        yield rounds.info(), verified, None, b""

    @contextmanager
    def requested(*_: Any) -> Iterator[None]:
        yield None

    for name, fake in (
        ("_recorded_candidate", request),
        ("request_with_parents", requested),
        ("restore_first_request", lambda *_: None),
    ):
        monkeypatch.setattr(verify_round, name, fake)
    monkeypatch.setattr("autoqec.verification.verifier.verify", lambda *_, **__: "replayed")
    refused = nullcontext() if stands else pytest.raises(UsageError, match="held by process")
    with owner_process(layout.root), refused:
        assert verify_round.verify_or_replay(layout, None, 1, lambda *_: None) == "replayed"  # type: ignore[arg-type]
    assert verify_round.verify_or_replay(layout, None, 1, lambda *_: None) == "replayed"  # type: ignore[arg-type]
