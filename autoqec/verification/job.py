"""A verification in a cluster's job: its order and seeds, written by the process that holds the run's secret.

`work(round_dir, number)` is the function that the job calls. It gets no secret, only the macs of this candidate's
chunks and a key that signs the result of this order.
"""

from __future__ import annotations

import hmac
import json
import os
import shutil
import stat
from dataclasses import replace
from pathlib import Path

from autoqec.contracts.verdict import VerifyReport
from autoqec.contracts.verification_job import (
    VerificationOrder,
    VerificationResult,
    VerificationSeeds,
    VerificationSubject,
)
from autoqec.errors import AutoqecError, ContractError, InfrastructureError, UsageError
from autoqec.store import atomic
from autoqec.store.layout import RoundLayout
from autoqec.system import machine
from autoqec.verification import verifier
from autoqec.verification.candidate_evaluation import MAX_EXTRA_CHUNKS
from autoqec.verification.composition import SHOT_PURPOSE
from autoqec.verification.request import VerifyRequest
from autoqec.verification.shot_stream import CHUNK, DerivedSeeds, ShotStream, commitment, joint_sha256, member_draws

ORDER, SEEDS, LOGS = "order.json", "seeds", "job"
# Purposes of `ShotStream.rng`.
RANDOM_CHOICES = dict.fromkeys(("canary", "shuffle", "order", "guard requests", "rounding"), 1)
_ERRORS = {kind.__name__: kind for kind in (ContractError, UsageError, InfrastructureError)}


# In the process that holds the run --------------------------------------------------------------------------------


def make_order(request: VerifyRequest, name: str, options: dict[str, str]) -> VerificationOrder:
    """Return the order of a request; modules of branches are copied to where the job can read them.

    Raises:
        StorageError: A file cannot be written.
    """
    directory = request.round.verification_dir
    with atomic.storage_errors(directory):
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir()
    return VerificationOrder(
        name=name,
        options=options,
        code_sha256=machine.code_sha256(),
        run_id=request.run_id,
        env_text=request.env_text,
        profile=request.profile,
        candidate=_subject(request, directory / "modules"),
        parents=tuple(_subject(parent, directory / f"parent_{parent.round.round}") for parent in request.parents),
        no_comparison_reason=request.no_comparison_reason,
        attempt_index=request.attempt_index,
        discoveries_before=request.discoveries_before,
        tested_artifacts=dict(request.tested_artifacts),
    )


def _subject(request: VerifyRequest, modules_copy: Path) -> VerificationSubject:
    if request.branch_modules is not None:
        with atomic.storage_errors(modules_copy):
            shutil.copytree(request.branch_modules, modules_copy, symlinks=True)
    return VerificationSubject(
        round_dir=str(request.round.dir.resolve()),
        round=request.round.round,
        round_attempt_id=request.round_attempt_id,
        branch=request.branch,
        commit_sha=request.commit_sha,
        dsl_config=dict(request.dsl_config),
        modules_dir=None if request.branch_modules is None else str(modules_copy.resolve()),
        claimed=request.claimed,
        artifact_sha256=request.expected_artifact or verifier.artifact_sha256(request),
    )


def derive_seeds(request: VerifyRequest, order: VerificationOrder) -> VerificationSeeds:
    """Return what the job may know of the secret: the macs of the chunks that it can draw, and its signing key."""
    assert isinstance(request.secret, bytes)  # only a job has anything else
    profile, env = request.profile, request.env
    shots = {"test": profile.judge_test_shots, "effect": profile.judge_effect_shots}
    shots |= {f"point:{p:g}": profile.judge_point_shots for p in env.points if p not in (None, env.target)}
    shots |= {draw.purpose: draw.shots(profile) for draw in member_draws(env)}
    chunks = {purpose: -(-count // CHUNK) for purpose, count in shots.items()}
    chunks |= {"guards": 1 + MAX_EXTRA_CHUNKS, **RANDOM_CHOICES}
    artifact = order.candidate.artifact_sha256
    drawn = {artifact: chunks}
    if order.parents:
        joint = joint_sha256(artifact, [parent.artifact_sha256 for parent in order.parents])
        drawn[joint] = {SHOT_PURPOSE: -(-profile.judge_effect_shots // CHUNK), **RANDOM_CHOICES}
    macs = {}
    for key, purposes in drawn.items():
        stream = ShotStream(request.secret, key, env.seed_policy.holdout)
        macs[key] = {
            purpose: tuple(stream.mac(purpose, index).hex() for index in range(count))
            for purpose, count in purposes.items()
        }
    return VerificationSeeds(
        order_sha256=order.sha256,
        commitment=commitment(request.secret),
        macs=macs,
        key=signing_key(request.secret, order),
    )


def signing_key(secret: bytes, order: VerificationOrder) -> str:
    """Return the key of one order's result; it binds the result to attempt, artifact and test index."""
    return hmac.digest(secret, f"autoqec/verification-job/{order.sha256}".encode(), "sha256").hex()


def write_order(layout: RoundLayout, order: VerificationOrder, seeds: VerificationSeeds) -> None:
    """Write the seeds, readable by their owner alone, then the order."""
    atomic.write_bytes(layout.verification_dir / SEEDS, json.dumps(seeds.dump()).encode(), mode=0o600)
    atomic.write_json(layout.verification_dir / ORDER, order.dump())


def read_order(layout: RoundLayout) -> VerificationOrder | None:
    """Read the order of a round's verification; None if there is none.

    Raises:
        ContractError: The order is damaged.
    """
    path = layout.verification_dir / ORDER
    try:
        return VerificationOrder.read(json.loads(atomic.read_bytes(path)), location=str(path))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise ContractError("is not JSON", location=str(path)) from error


def unfinished_order(request: VerifyRequest) -> VerificationOrder | None:
    """Return the order of an earlier process for the artifact and attempt of a request; None if there is none."""
    try:
        order = read_order(request.round)
    except ContractError:
        return None
    if order is None or order.candidate.artifact_sha256 != request.expected_artifact:
        return None
    return order if order.candidate.round_attempt_id == request.round_attempt_id else None


def result_path(layout: RoundLayout, order: VerificationOrder) -> Path:
    """Return the file of the result, so that a job of an earlier order cannot overwrite it."""
    return layout.verification_dir / f"result-{order.sha256[:16]}.json"


def read_result(layout: RoundLayout, order: VerificationOrder, key: str) -> VerifyReport | None:
    """Return the report of the job; None if it has not ended.

    Raises:
        ContractError: The result is not signed for this order, e.g. because it was changed or copied from another
            attempt.
        AutoqecError: The job ended with this error.
    """
    path = result_path(layout, order)
    try:
        result = VerificationResult.read(json.loads(atomic.read_bytes(path)), location=str(path))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ContractError("cannot be read as a result", location=str(path)) from error
    if not result.is_signed_with(key, order.sha256):
        message = "is not signed for this order: it was changed, or is the result of another attempt"
        raise ContractError(message, location=str(path), hint=f"autoqec verify {layout.dir}")
    if result.error is not None:
        kind = _ERRORS.get(str(result.error.get("error")), InfrastructureError)
        message = result.error.get("what") or "the verification failed"
        raise kind(message, location=result.error.get("where"), hint=result.error.get("hint"))
    return VerifyReport.read(result.report, location=str(path))


# In the job --------------------------------------------------------------------------------------------------------


def work(round_dir: str, number: int) -> None:
    """Verify the candidate of the order in `round_dir`, and write the signed result.

    Raises:
        AutoqecError: The order was withdrawn, or its seeds were consumed; nothing was written.
    """
    layout = RoundLayout(Path(round_dir), number)
    order = read_order(layout)
    if order is None:
        return
    seeds = consume_seeds(layout)
    if seeds.order_sha256 != order.sha256:
        raise ContractError("the seeds are not those of the order", location=str(layout.verification_dir))
    report, error = None, None
    try:
        report = verify_order(layout, order, seeds).dump()
    except AutoqecError as failure:
        shown = failure.to_json()
        error = {name: None if shown[name] is None else str(shown[name]) for name in ("error", "what", "where", "hint")}
    result = VerificationResult.signed(seeds.key, order.sha256, report, error)
    atomic.write_json(result_path(layout, order), result.dump())


def consume_seeds(layout: RoundLayout) -> VerificationSeeds:
    """Read the seeds and delete them.

    Raises:
        InfrastructureError: They were consumed already, by a job that was requeued.
        ContractError: They are not a regular file of this user that only its owner can read, or are damaged.
    """
    path = layout.verification_dir / SEEDS
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError as error:
        message = "an earlier start of this job consumed the seeds"
        raise InfrastructureError(message, location=str(path), hint=f"autoqec verify {layout.dir}") from error
    except OSError as error:
        raise ContractError(f"cannot be read: {error.strerror}", location=str(path)) from error
    with os.fdopen(fd, "rb") as stream:
        found = os.fstat(fd)
        path.unlink()
        atomic.fsync_dir(path.parent)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
            message = "must be a regular file that only its owner, who runs the job, can read"
            raise ContractError(message, location=str(path))
        text = stream.read()
    try:
        return VerificationSeeds.read(json.loads(text), location=str(path))
    except ValueError as error:
        raise ContractError("is not JSON", location=str(path)) from error


def verify_order(layout: RoundLayout, order: VerificationOrder, seeds: VerificationSeeds) -> VerifyReport:
    """Verify the candidate of an order.

    Raises:
        UsageError: The node has other trusted code than the run.
    """
    if machine.code_sha256() != order.code_sha256:
        raise UsageError("the node has different trusted code than the run, so nothing was verified")
    macs = {
        artifact: {purpose: [bytes.fromhex(mac) for mac in chunk_macs] for purpose, chunk_macs in purposes.items()}
        for artifact, purposes in seeds.macs.items()
    }
    derived = DerivedSeeds(seeds.commitment, macs)
    request = _request(order, order.candidate, derived)
    parents = tuple(_request(order, parent, derived) for parent in order.parents)
    if request.round.dir != layout.dir.resolve():
        raise ContractError("the order is of another round", location=str(layout.verification_dir))
    return verifier.run_verification(replace(request, parents=parents, no_comparison_reason=order.no_comparison_reason))


def _request(order: VerificationOrder, subject: VerificationSubject, seeds: DerivedSeeds) -> VerifyRequest:
    place = RoundLayout(Path(subject.round_dir), subject.round)
    return VerifyRequest(
        env_text=order.env_text,
        round=place,
        checkpoint=place.checkpoint,
        dsl_config=subject.dsl_config,
        secret=seeds,
        profile=order.profile,
        run_id=order.run_id,
        config_only=subject.modules_dir is None,
        modules_dir=None if subject.modules_dir is None else Path(subject.modules_dir),
        round_attempt_id=subject.round_attempt_id,
        branch=subject.branch,
        commit_sha=subject.commit_sha,
        claimed=subject.claimed,
        attempt_index=order.attempt_index,
        discoveries_before=order.discoveries_before,
        tested_artifacts=order.tested_artifacts,
        expected_artifact=subject.artifact_sha256,
    )
