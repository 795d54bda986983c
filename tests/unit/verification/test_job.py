"""A verification in a cluster's job: the same report as in this process, no secret, and refused results."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from autoqec.contracts.base import canonical_json
from autoqec.contracts.verdict import VerifyReport
from autoqec.contracts.verification_job import VerificationOrder, VerificationResult
from autoqec.errors import ContractError, InfrastructureError, UsageError
from autoqec.qec.problem import Problem
from autoqec.verification import job, verifier
from autoqec.verification.report import MACHINE_GUARDS, MEASURED, MEASURED_COST, report_differences
from autoqec.verification.request import VerifyRequest
from autoqec.verification.shot_stream import DerivedSeeds, ShotStream, commitment
from tests.support import verification as support
from tests.support.envs import surface

ENV = surface(3, 0.01)
OPTIONS = {"time": "17", "cpus": "2", "mem": "5000M"}


def prepared(directory: Path) -> VerifyRequest:
    """Return a request as the orchestrator builds it: the weights are in the round's directory."""
    place = directory / "round_1"
    place.mkdir(parents=True)
    support.train(place / "checkpoint.pt", Problem.from_env(ENV), steps=20)
    request = support.request(
        place.resolve(), ENV, place.resolve() / "checkpoint.pt", round_attempt_id="attempt-1", attempt_index=2
    )
    return replace(request, expected_artifact=verifier.artifact_sha256(request), tested_artifacts={"f" * 64: 7})


def ordered(request: VerifyRequest) -> VerificationOrder:
    order = job.make_order(request, "autoqec-verify-1-attempt-1-2", OPTIONS)
    job.write_order(request.round, order, job.derive_seeds(request, order))
    return order


@pytest.fixture
def request_(tmp_path: Path) -> VerifyRequest:
    return prepared(tmp_path)


@dataclass(frozen=True)
class Finished:
    request: VerifyRequest
    order: VerificationOrder
    here: VerifyReport
    seen: str


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """One candidate, verified in this process and by the job's function."""
    request = prepared(tmp_path_factory.mktemp("finished"))
    here = verifier.run_verification(request)
    order = ordered(request)
    place = request.round.verification_dir
    seen = "".join(path.read_text() for path in place.rglob("*") if path.is_file())
    assert (place / job.SEEDS).stat().st_mode & 0o777 == 0o600
    job.work(str(request.round.dir), 1)
    return Finished(request, order, here, seen)


def key(found: Finished) -> str:
    assert isinstance(found.request.secret, bytes)
    return job.signing_key(found.request.secret, found.order)


def determined(report: VerifyReport) -> str:
    """Return the report's bytes without times, memory and texts that quote them."""
    fields = report.model_dump(mode="json", exclude=MEASURED)
    fields["cost"] = {name: value for name, value in fields["cost"].items() if name not in MEASURED_COST}
    fields["guards"] = [guard for guard in fields["guards"] if guard["name"] not in MACHINE_GUARDS]
    return canonical_json(fields)


def test_job_returns_the_report_of_this_process(finished: Finished) -> None:
    report = job.read_result(finished.request.round, finished.order, key(finished))
    assert report is not None
    assert report_differences(finished.here, report) == []
    assert determined(report) == determined(finished.here)
    assert report.verdict == finished.here.verdict and report.test is not None and report.test.attempt_index == 2
    assert report.seeds_commitment == commitment(support.SECRET)


def test_job_never_sees_the_secret_and_consumes_its_seeds(finished: Finished) -> None:
    assert support.SECRET.hex() not in finished.seen and str(list(support.SECRET)) not in finished.seen
    assert not (finished.request.round.verification_dir / job.SEEDS).exists()
    with pytest.raises(InfrastructureError, match="earlier start of this job consumed the seeds"):
        job.work(str(finished.request.round.dir), 1)


@pytest.mark.parametrize("field", ["verdict", "round", "effect"])
def test_changed_report_is_refused(finished: Finished, field: str) -> None:
    path = job.result_path(finished.request.round, finished.order)
    original = path.read_bytes()
    stored = json.loads(original)
    stored["report"][field] = {"verdict": "VERIFIED", "round": 2, "effect": None}[field]
    changed = stored["report"] != json.loads(original)["report"]
    path.write_text(json.dumps(stored))
    try:
        if changed:
            with pytest.raises(ContractError, match="not signed for this order"):
                job.read_result(finished.request.round, finished.order, key(finished))
        else:
            pytest.fail("the test changed nothing")
    finally:
        path.write_bytes(original)


@pytest.mark.parametrize("other", [{"attempt_index": 3}, {"round_attempt_id": "attempt-2"}])
def test_result_of_another_attempt_is_refused(finished: Finished, other: dict[str, Any], tmp_path: Path) -> None:
    """A genuine, signed result of one attempt, put in the place of another's."""
    request = replace(finished.request, **other)
    order = finished.order
    if "attempt_index" in other:
        order = order.model_copy(update=other)
    else:
        order = order.model_copy(update={"candidate": order.candidate.model_copy(update=other)})
    genuine = job.result_path(finished.request.round, finished.order).read_bytes()
    place = job.result_path(request.round, order)
    place.write_bytes(genuine)
    assert isinstance(request.secret, bytes)
    with pytest.raises(ContractError, match="another attempt"):
        job.read_result(request.round, order, job.signing_key(request.secret, order))
    place.unlink()


def test_seeds_are_those_of_the_secret_for_this_candidate_alone(request_: VerifyRequest) -> None:
    order = ordered(request_)
    seeds = job.consume_seeds(request_.round)
    macs = {
        artifact: {purpose: [bytes.fromhex(mac) for mac in found] for purpose, found in purposes.items()}
        for artifact, purposes in seeds.macs.items()
    }
    artifact, band = order.candidate.artifact_sha256, ENV.seed_policy.holdout
    derived, full = (
        ShotStream(secret, artifact, band) for secret in (DerivedSeeds(seeds.commitment, macs), support.SECRET)
    )
    assert [derived.seed("test", 0), derived.seed("effect", 0)] == [full.seed("test", 0), full.seed("effect", 0)]
    for purpose, index in (("test", 1), ("effect", 1), ("nonsense", 0)):
        with pytest.raises(ContractError, match="not among the seeds of this job"):
            derived.mac(purpose, index)
    with pytest.raises(ContractError, match="not among the seeds"):
        ShotStream(DerivedSeeds(seeds.commitment, macs), "a" * 64, band).mac("test", 0)


@pytest.mark.parametrize("flaw", ["readable by others", "a link", "of another order", "not JSON"])
def test_seeds_that_others_could_have_read_or_written_are_refused(
    request_: VerifyRequest, flaw: str, tmp_path: Path
) -> None:
    ordered(request_)
    path = request_.round.verification_dir / job.SEEDS
    if flaw == "readable by others":
        path.chmod(0o644)
    elif flaw == "a link":
        target = tmp_path / "elsewhere"
        path.rename(target)
        path.symlink_to(target)
    elif flaw == "not JSON":
        path.write_bytes(b"\xff")
    else:
        stored = json.loads(path.read_bytes()) | {"order_sha256": "0" * 64}
        path.write_text(json.dumps(stored))
        os.chmod(path, 0o600)
    with pytest.raises(ContractError):
        job.work(str(request_.round.dir), 1)
    assert not list(request_.round.verification_dir.glob("result*"))


def test_errors_of_the_job_come_back(request_: VerifyRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    order = ordered(request_)
    monkeypatch.setattr(job.machine, "code_sha256", lambda: "0" * 64)
    job.work(str(request_.round.dir), 1)
    with pytest.raises(UsageError, match="different trusted code"):
        job.read_result(request_.round, order, job.signing_key(support.SECRET, order))


def test_job_without_an_order_does_nothing(tmp_path: Path) -> None:
    job.work(str(tmp_path), 1)
    assert list(tmp_path.iterdir()) == []


def test_signature_covers_the_order() -> None:
    result = VerificationResult.signed("ab" * 32, "1" * 64, {"round": 1})
    assert result.is_signed_with("ab" * 32, "1" * 64)
    assert not result.is_signed_with("ab" * 32, "2" * 64) and not result.is_signed_with("cd" * 32, "1" * 64)


def test_every_random_choice_of_a_verification_is_among_the_seeds() -> None:
    package = Path(job.__file__).parent
    named = {name for path in package.rglob("*.py") for name in re.findall(r"\.rng\(\"([^\"]+)\"\)", path.read_text())}
    assert named == set(job.RANDOM_CHOICES)
