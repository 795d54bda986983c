"""Verify one frozen artifact on shots from a secret seed, and keep the verdict with its evidence on disk."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Protocol

from autoqec.contracts.events import OnEvent, ignore
from autoqec.contracts.provenance import Manifest
from autoqec.contracts.verdict import VerifyReport
from autoqec.errors import ContractError
from autoqec.store.layout import hidden_from_branch_code
from autoqec.store.round_files import read_contract
from autoqec.system.scratch import scratch
from autoqec.verification import artifact, report, shot_stream
from autoqec.verification.request import ReplayResult, VerifyRequest
from autoqec.verification.session import VerificationSession
from autoqec.verification.shot_stream import ShotCache, report_chunk_digests

__all__ = ["Measure", "ReplayResult", "VerifyRequest", "artifact_sha256", "replay", "run_verification", "verify"]


def artifact_sha256(request: VerifyRequest) -> str:
    """Return the hash under which the candidate is registered before it is verified."""
    return shot_stream.artifact_sha256(request.checkpoint, request.dsl, request.branch_modules)


class Measure(Protocol):
    """Verifies without writing a report: `run_verification` in this process, or a cluster's job."""

    def __call__(self, request: VerifyRequest, *, on_event: OnEvent | None = None) -> VerifyReport:
        """Return the report."""
        ...


def verify(request: VerifyRequest, *, on_event: OnEvent | None = None, measure: Measure | None = None) -> VerifyReport:
    """Verify and write verification_report.{json,md} into the round's directory.

    An existing report is replayed and compared, never overwritten: each artifact gets one draw per run.

    Args:
        request: What to verify.
        on_event: Receives progress.
        measure: Verifies a round that has no report yet; None: `run_verification`.

    Raises:
        ContractError: Artifact, env or manifest do not belong together, or the replay disagrees. Nothing is written.
        UsageError: Branch code would have to run without a sandbox. Nothing is written.
    """
    saved_report = read_contract(request.round.report_json, VerifyReport)
    if saved_report is not None:
        replayed = replay(saved_report, request, on_event=on_event)
        if not replayed.agrees:
            raise ContractError(
                f"the replay disagrees with the report: {'; '.join(replayed.differences)}",
                location=str(request.round.report_json),
                hint="compare the versions in the report with `autoqec machine-state`",
            )
        return saved_report
    verified = (measure or run_verification)(request, on_event=on_event)
    report.write(request.round, verified)
    return verified


def run_verification(request: VerifyRequest, *, on_event: OnEvent | None = None) -> VerifyReport:
    """Verify without writing a report."""
    start_time = time.monotonic()
    manifest = read_contract(request.round.manifest, Manifest)
    with scratch("verification") as directory:
        frozen = _freeze(request, directory)
        artifact.check_manifest(manifest, request.env_sha256, frozen, str(request.round.manifest))
        if request.expected_artifact not in (None, frozen.sha256):
            raise ContractError(
                f"the artifact was registered as {request.expected_artifact} and is now {frozen.sha256}",
                location=str(request.checkpoint),
                hint="restore the round's files",
            )
        kind: type[VerificationSession] = request.env.code.verification_session() or VerificationSession
        session = kind(request, frozen, ignore if on_event is None else on_event)
        circuit = manifest.environment.circuit_sha256 if manifest else None
        found = report.build_report(session, session.run(), circuit)
    return found.model_copy(update={"judge_wallclock_s": time.monotonic() - start_time})


def _freeze(request: VerifyRequest, directory: Path) -> artifact.FrozenArtifact:
    hidden = hidden_from_branch_code(request.round.dir)
    return artifact.freeze(request.checkpoint, request.dsl, request.branch_modules, directory, hidden)


def replay(saved_report: VerifyReport, request: VerifyRequest, *, on_event: OnEvent | None = None) -> ReplayResult:
    """Verify again and compare the whole report.

    Args:
        saved_report: The report to reproduce.
        on_event: Receives progress.
        request: As on record, with the round's place in the stream of attempts; the report's is not trusted.

    Raises:
        ContractError: The report is of another commit or env than the request's; names both.
    """
    _check_same_subject(saved_report, request)
    shot_cache = ShotCache(request.shots, expected_digests=report_chunk_digests(saved_report))
    replayed = run_verification(request.for_replay(saved_report, shot_cache), on_event=on_event)
    differences = report.report_differences(saved_report, replayed)
    cpu = saved_report.cost.cpu_model if saved_report.cost else None
    return ReplayResult(replayed, tuple(differences), shot_cache.n_redrawn, shot_cache.n_from_cache, cpu)


def _check_same_subject(saved_report: VerifyReport, request: VerifyRequest) -> None:
    for message, recorded, current, hint in (
        ("commit", saved_report.commit_sha, request.commit_sha, "restore the round's own verification_report.json"),
        ("env", saved_report.env_yaml_sha256, request.env_sha256, "restore the run's env.yaml"),
    ):
        if None not in (recorded, current) and recorded != current:
            raise ContractError(
                f"the report is of {message} {recorded}, the recorded verification of {message} {current}",
                location=str(request.round.report_json),
                hint=hint,
            )
