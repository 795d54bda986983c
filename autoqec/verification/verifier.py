"""The judge: one frozen artifact, shots that nobody could have seen, a verdict with its evidence on disk."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from autoqec.contracts.base import canonical_json, sha256_bytes
from autoqec.contracts.dsl import PredecoderDSL, parse_dsl
from autoqec.contracts.env import EnvSpec
from autoqec.contracts.profiles import Profile
from autoqec.contracts.round import RoundMetrics
from autoqec.contracts.verdict import VerifyReport
from autoqec.errors import ContractError
from autoqec.store.files import parse_env
from autoqec.store.layout import RoundLayout, hidden_from_branch_code
from autoqec.system import machine
from autoqec.system.scratch import scratch
from autoqec.verification import artifact, report, shot_stream
from autoqec.verification.session import VerificationSession
from autoqec.verification.shot_cache import ShotCache, report_chunk_digests

OnEvent = Callable[[str, dict[str, Any]], None]


@dataclass(frozen=True)
class VerifyRequest:
    """What is judged, under whose identity, with which error budget.

    env_text: the run's frozen env. modules_dir: the branch's search surface, None for the package's own.
    config_only: the branch differs from the baseline in predecoder.yaml alone, so only trusted code runs, and
    `modules_dir` is not looked at. claimed: the round's metrics (cost and val counts are claims to be tested).
    attempt_index, discoveries_before: place in the run's stream of charged attempts, and VERIFIED rows before it.
    judged_before: artifact hash -> round, for every artifact that this run charged before this attempt was.
    expected_artifact: the hash that was charged; another one is refused.
    shots: where the run's shots may be kept; a replay takes those from there that come out otherwise. shelf: the
    replay's own.
    parents: of a composition whose parents are all VERIFIED, each as it was judged; else empty. uncompared: why a
    composition has none.
    """

    env_text: str
    round: RoundLayout
    checkpoint: Path
    dsl_config: Mapping[str, Any]
    secret: bytes
    profile: Profile
    run_id: str
    config_only: bool
    modules_dir: Path | None = None
    round_attempt_id: str | None = None
    branch: str | None = None
    commit_sha: str | None = None
    claimed: RoundMetrics | None = None
    attempt_index: int = 1
    discoveries_before: int = 0
    tested_artifacts: Mapping[str, int] = field(default_factory=dict)
    expected_artifact: str | None = None
    parents: tuple[VerifyRequest, ...] = ()
    no_comparison_reason: str | None = None
    shots: Path | None = None
    shot_cache: ShotCache | None = None

    @property
    def surface(self) -> Path | None:
        """The search surface that runs: a branch's own, or None for the trusted package's."""
        return None if self.config_only else self.modules_dir

    @property
    def env(self) -> EnvSpec:
        return parse_env(self.env_text, location="the run's env")

    @property
    def dsl(self) -> PredecoderDSL:
        return parse_dsl(dict(self.dsl_config), location=str(self.round.config))


@dataclass(frozen=True)
class ReplayResult:
    """A judgement made again from the same secret. differences: empty where it says the same.

    redrawn, kept: chunks of shots that were drawn alike, and that had to be taken from an archive.
    """

    report: VerifyReport
    differences: tuple[str, ...]
    n_redrawn: int
    n_from_cache: int

    @property
    def agrees(self) -> bool:
        return not self.differences

    @property
    def source(self) -> str:
        """Where the shots came from, in words."""
        if self.n_from_cache:
            from_cache = f"{self.n_from_cache} of {self.n_redrawn + self.n_from_cache} chunks from the archive"
            return f"{from_cache}: stim {machine.versions()['stim']} on this machine draws them otherwise"
        return f"{self.n_redrawn} chunks redrawn from the run's secret"


def artifact_sha256(request: VerifyRequest) -> str:
    """The hash under which the candidate is charged, before it is judged."""
    return shot_stream.artifact_sha256(request.checkpoint, request.dsl, request.surface)


def verify(request: VerifyRequest, *, on_event: OnEvent | None = None) -> VerifyReport:
    """Judge, and write verification_report.{json,md} into the round's directory.

    Where a report stands already it is replayed and compared, never overwritten: one artifact, one draw a run.
    Raises ContractError where artifact, env or manifest do not belong together, or where the replay disagrees;
    UsageError where branch code would have to run without a sandbox. Nothing is written then.
    """
    saved_report = report.read(request.round)
    if saved_report is not None:
        replayed = replay(saved_report, request, on_event=on_event)
        if not replayed.agrees:
            raise ContractError(
                f"the replay disagrees with the report: {'; '.join(replayed.differences)}",
                location=str(request.round.report_json),
                hint="compare the versions in the report with `autoqec machine-state`",
            )
        return saved_report
    found = run_verification(request, on_event=on_event)
    report.write(request.round, found)
    return found


def run_verification(request: VerifyRequest, *, on_event: OnEvent | None = None) -> VerifyReport:
    """The judgement alone; writes nothing that stays."""
    start_time = time.monotonic()
    env, dsl = request.env, request.dsl
    manifest = artifact.load_manifest(request.round)
    with scratch("judge") as directory:
        closed = hidden_from_branch_code(request.round.dir)
        frozen = artifact.freeze(request.checkpoint, dsl, request.surface, directory, closed)
        artifact.check_manifest(manifest, sha256_bytes(request.env_text.encode()), frozen, str(request.round.manifest))
        if request.expected_artifact not in (None, frozen.sha256):
            raise ContractError(
                f"the artifact was charged as {request.expected_artifact} and is now {frozen.sha256}",
                location=str(request.checkpoint),
                hint="restore the round's files",
            )
        circuit = manifest.environment.circuit_sha256 if manifest else None
        session = VerificationSession(request, env, dsl, frozen, circuit, on_event or (lambda kind, payload: None))
        return session.run(start_time)


def replay(saved_report: VerifyReport, request: VerifyRequest, *, on_event: OnEvent | None = None) -> ReplayResult:
    """Judge again with the standing report's place in the stream; list what differs.

    ContractError, with both hashes, for a report of another commit, env or artifact than the request's.
    """
    _check_same_subject(saved_report, request)
    test = saved_report.test
    shot_cache = ShotCache(request.shots, expected_digests=report_chunk_digests(saved_report))
    replayed = run_verification(
        replace(
            request,
            attempt_index=test.attempt_index if test else request.attempt_index,
            discoveries_before=test.discoveries_before if test else request.discoveries_before,
            expected_artifact=saved_report.artifact_sha256,
            # A parent that was verified later was not compared with then.
            parents=request.parents if saved_report.composition else (),
            shot_cache=shot_cache,
        ),
        on_event=on_event,
    )
    return ReplayResult(
        replayed, tuple(_differences(saved_report, replayed)), shot_cache.n_redrawn, shot_cache.n_from_cache
    )


def _check_same_subject(saved_report: VerifyReport, request: VerifyRequest) -> None:
    """A report can only be replayed on what it speaks of."""
    env = sha256_bytes(request.env_text.encode())
    for what, was, now, hint in (
        ("commit", saved_report.commit_sha, request.commit_sha, "restore the round's own verification_report.json"),
        ("env", saved_report.env_yaml_sha256, env, "restore the run's env.yaml"),
    ):
        if None not in (was, now) and was != now:
            raise ContractError(
                f"the report speaks of {what} {was}, this is {what} {now}",
                location=str(request.round.report_json),
                hint=hint,
            )


def _differences(one: VerifyReport, other: VerifyReport) -> list[str]:
    found = []
    for name in ("artifact_sha256", "seeds_commitment", "verdict"):
        mine, theirs = getattr(one, name), getattr(other, name)
        if mine != theirs:
            found.append(f"{name} was {mine}, is {theirs}")
    if one.chunk_digests != other.chunk_digests:
        known = dict(zip(one.chunk_digests, other.chunk_digests, strict=False))
        first = next((a for a, b in known.items() if a != b), "their number")
        stims = (one.versions.get("stim"), other.versions.get("stim"))
        found.append(f"shots were not redrawn alike, from {first} on (stim {stims[0]} then, {stims[1]} now)")
    for name, mine, theirs in (
        ("test", one.test and one.test.counts, other.test and other.test.counts),
        ("effect", one.effect and one.effect.counts, other.effect and other.effect.counts),
        ("composition", _composition_digest(one), _composition_digest(other)),
    ):
        if mine != theirs:
            found.append(f"{name} counts were {mine}, are {theirs}")
    return found


def _composition_digest(report: VerifyReport) -> str | None:
    """Verdict, shots and counts of a composition."""
    one = report.composition
    if one is None:
        return None
    counts = [
        one.effect.counts,
        *(effect.counts for parent in one.parents for effect in (parent.effect, parent.against)),
    ]
    return canonical_json({"verdict": one.verdict, "bundle": one.bundle_id, "counts": [each.dump() for each in counts]})
