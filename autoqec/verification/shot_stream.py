"""Shots for verification, from secret seeds that are derived after the artifact is frozen.

seed(purpose, chunk) = HMAC-SHA256(run secret, artifact hash | holdout band | purpose | chunk), mapped to
[2**32, 2**63), above every public band. A chunk always has CHUNK shots, so its shots do not depend on how many chunks
are drawn; the report holds its digest. The same secret and artifact always give the same shots, so repeating a
verification never yields a second draw.

stim gives the same shots for a seed only in the same version and on the same CPU width, so that replays elsewhere read
archived shots. A file holds one chunk in the byte order of its digest: packed detection events (b8, row by row), then
packed observables. Its name is that digest, so that a changed file is detected.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from autoqec.contracts.base import canonical_json, sha256_bytes, sha256_json
from autoqec.contracts.dsl import PredecoderDSL
from autoqec.contracts.env import SEED_SPACE, Band, CodeMember, EnvSpec, StimGeneratorCode
from autoqec.contracts.profiles import Profile
from autoqec.contracts.verdict import VerifyReport
from autoqec.errors import ContractError
from autoqec.qec.problem import Problem
from autoqec.qec.sampling import Shots, pack, sample, unpack
from autoqec.store import atomic
from autoqec.system import machine

SEALED = "sealed"  # purpose of recorded test shots
CHUNK = 5_000  # shots per seed
SEED_END = 2**63
MIN_SECRET_BYTES = 16


@dataclass(frozen=True)
class DerivedSeeds:
    """Stands in for the secret in a job that verifies one candidate: the macs of that candidate's chunks alone.

    Attributes:
        commitment: SHA-256 of the secret.
        macs: Artifact hash -> purpose -> the mac of each chunk.
    """

    commitment: str
    macs: Mapping[str, Mapping[str, Sequence[bytes]]]


Secret = bytes | DerivedSeeds


def commitment(secret: Secret) -> str:
    """Return the SHA-256 of the secret, which is published before the run."""
    return secret.commitment if isinstance(secret, DerivedSeeds) else hashlib.sha256(secret).hexdigest()


def artifact_sha256(checkpoint: Path, dsl: PredecoderDSL, modules_dir: Path | None) -> str:
    """Hash weights, config and, for a branch with code of its own, the editable modules.

    Raises:
        ContractError: The checkpoint cannot be read.
    """
    try:
        with atomic.open_regular(checkpoint) as stream:
            weights = hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise ContractError(
            f"checkpoint cannot be read ({error.strerror})", location=str(checkpoint), hint="run the round again"
        ) from error
    modules = machine.tree_sha256(modules_dir) if modules_dir is not None else None
    return sha256_json({"checkpoint": weights, "dsl": dsl.sha256(), "surface": modules})


def joint_sha256(child: str, parents: Sequence[str]) -> str:
    """Hash the artifacts of a composition and its parents; the shots of their comparison are keyed by it."""
    return sha256_json({"child": child, "parents": list(parents)})


@dataclass
class ShotStream:
    """Samples chunks and records the digest and seed of each.

    Attributes:
        artifact: Hash of the artifact that the shots are keyed by.
        shot_cache: In a replay, the archive that replaces chunks that this stim samples differently.
    """

    secret: Secret
    artifact: str
    band: Band
    shot_cache: ShotCache | None = None
    digests: dict[str, str] = field(default_factory=dict)
    seeds: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        if isinstance(self.secret, bytes) and len(self.secret) < MIN_SECRET_BYTES:
            raise ContractError(f"the run's secret is shorter than {MIN_SECRET_BYTES} bytes", location="secret")

    def mac(self, purpose: str, chunk: int) -> bytes:
        """Return the HMAC that seed and random numbers of a chunk derive from.

        Raises:
            ContractError: The secret is replaced by macs, and this one is not among them.
        """
        if isinstance(self.secret, DerivedSeeds):
            macs = self.secret.macs.get(self.artifact, {}).get(purpose, ())
            if chunk >= len(macs):
                message = f"chunk {chunk} of {purpose!r} is not among the seeds of this job"
                raise ContractError(message, location=f"artifact {self.artifact[:12]}")
            return macs[chunk]
        message = canonical_json({"artifact": self.artifact, "band": self.band, "purpose": purpose, "chunk": chunk})
        return hmac.digest(self.secret, message.encode(), "sha256")

    def seed(self, purpose: str, chunk: int) -> int:
        """Return the stim seed of a chunk."""
        return SEED_SPACE + int.from_bytes(self.mac(purpose, chunk)[:16], "big") % (SEED_END - SEED_SPACE)

    def rng(self, purpose: str) -> np.random.Generator:
        """Return a secret random generator, for canary bits and permutations."""
        return np.random.default_rng(list(self.mac(purpose, 0)))

    def chunk(self, problem: Problem, purpose: str, index: int) -> Shots:
        """Sample chunk `index` of `purpose`: CHUNK shots of `problem`'s own noise."""
        seed, name = self.seed(purpose, index), f"{purpose}/{index}"
        shots = sample(problem, CHUNK, seed)
        if self.shot_cache is not None:
            shots = self.shot_cache.select_shots(name, shots, problem)
        self.digests[name] = digest(shots)
        self.seeds.append(seed)
        return shots

    def chunks(self, problem: Problem, purpose: str, shots: int) -> Iterator[Shots]:
        """Sample whole chunks until `shots` are reached."""
        for index in range(-(-shots // CHUNK)):
            yield self.chunk(problem, purpose, index)

    @property
    def id(self) -> str:
        """Identify the shots drawn so far: equal ids mean equal shots."""
        return sha256_json({"artifact": self.artifact, "digests": self.digests})[:32]

    def digest_lines(self) -> tuple[str, ...]:
        """Return `purpose/chunk sha256` lines, in the order drawn."""
        return tuple(f"{name} {value}" for name, value in self.digests.items())


def shot_bytes(shots: Shots) -> bytes:
    """Serialise packed detection events row by row, then packed observables."""
    return np.ascontiguousarray(shots.detection_events).tobytes() + pack(shots.observables).tobytes()


def digest(shots: Shots) -> str:
    """Return the SHA-256 of `shot_bytes`."""
    return sha256_bytes(shot_bytes(shots))


@dataclass(frozen=True)
class MemberDraw:
    """One circuit of a family at one p.

    Attributes:
        index: Position of the circuit in the env's `other_members`.
        env: The env of this circuit alone.
        size: Its distance and rounds.
    """

    index: int
    env: EnvSpec
    size: CodeMember
    p: float

    def __str__(self) -> str:
        return f"{self.size} p={self.p:g}"

    @property
    def problem(self) -> Problem:
        """The decoding problem."""
        return Problem.from_env(self.env, self.p)

    @property
    def purpose(self) -> str:
        """Name of the draw in the shot stream."""
        return f"member:d={self.size.distance},r={self.size.rounds},p={self.p:g}"

    def shots(self, profile: Profile) -> int:
        """Return the length of the draw: that of the effect draw at the target p, else that of another p."""
        return profile.judge_effect_shots if self.p == self.env.target else profile.judge_point_shots


def member_draws(env: EnvSpec) -> list[MemberDraw]:
    """Return the draws of every circuit of a family but the target, at each p; [] without a family."""
    return [
        MemberDraw(index, each, CodeMember(distance=each.code.distance, rounds=each.code.rounds), p)
        for index, each in enumerate(env.other_members)
        if isinstance(each.code, StimGeneratorCode)
        for p in each.points
        if p is not None
    ]


def report_chunk_digests(report: VerifyReport) -> dict[str, str]:
    """Map `purpose/chunk` to the digest, for every chunk of the report and of its composition."""
    composition_digests = report.composition.chunk_digests if report.composition else ()
    return dict(line.rsplit(" ", 1) for line in (*report.chunk_digests, *composition_digests))


def chunk_file_name(digest: str) -> str:
    """Return the name of a chunk's file."""
    return f"{digest}.b8"


@dataclass
class ShotCache:
    """Chunks that a report names, read from `dir` where sampling gives other shots.

    Attributes:
        expected_digests: `purpose/chunk` -> digest in the report.
        n_redrawn: Chunks that were sampled identically.
        n_from_cache: Chunks that were read from a file.
    """

    dir: Path | None
    expected_digests: Mapping[str, str] = field(default_factory=dict)
    n_redrawn: int = 0
    n_from_cache: int = 0

    def select_shots(self, name: str, sampled: Shots, problem: Problem) -> Shots:
        """Return the sampled shots if they match the report or no file replaces them, else the file's shots.

        Raises:
            ContractError: The file's content does not match its name.
        """
        digest = self.expected_digests.get(name)
        if digest == sha256_bytes(shot_bytes(sampled)):
            self.n_redrawn += 1
            return sampled
        if digest is None or self.dir is None or not (path := self.dir / chunk_file_name(digest)).is_file():
            return sampled
        data = path.read_bytes()
        if sha256_bytes(data) != digest:
            message = f"content has SHA-256 {sha256_bytes(data)}, which is not its name"
            raise ContractError(message, location=str(path), hint="fetch the archive again")
        self.n_from_cache += 1
        return _shots(data, problem, location=str(path))


def _shots(data: bytes, problem: Problem, *, location: str) -> Shots:
    event_bytes, observable_bytes = -(-problem.n_detectors // 8), -(-problem.n_observables // 8)
    n, rest = divmod(len(data), event_bytes + observable_bytes)
    if rest:
        raise ContractError(f"{len(data)} bytes are not a whole number of this env's shots", location=location)
    raw = np.frombuffer(data, np.uint8)
    detection_events = raw[: n * event_bytes].reshape(n, event_bytes)
    return Shots(
        detection_events,
        unpack(raw[n * event_bytes :].reshape(n, observable_bytes), problem.n_observables).astype(bool),
    )


def redraw_chunks(report: VerifyReport, env: EnvSpec, secret: bytes) -> Iterator[tuple[str, bytes]]:
    """Sample every chunk of a report again from the run's secret.

    Yields:
        (digest, bytes) of each chunk; chunks that this machine samples differently are left out, and so are recorded
        shots.
    """
    composition_digests: tuple[str, ...] = ()
    shot_stream = composition_stream = ShotStream(secret, report.artifact_sha256, env.seed_policy.holdout)
    if report.composition:
        composition_digests = report.composition.chunk_digests
        key = joint_sha256(report.artifact_sha256, [parent.artifact_sha256 for parent in report.composition.parents])
        composition_stream = ShotStream(secret, key, env.seed_policy.holdout)
    problems = {"": Problem.from_env(env)}
    problems |= {f"point:{p:g}": Problem.from_env(env, p) for p in env.points if p not in (None, env.target)}
    problems |= {draw.purpose: draw.problem for draw in member_draws(env)}
    for name, digest in report_chunk_digests(report).items():
        purpose, _, index = name.rpartition("/")
        if purpose == SEALED:
            continue
        source = composition_stream if f"{name} {digest}" in composition_digests else shot_stream
        shots = source.chunk(problems.get(purpose, problems[""]), purpose, int(index))
        if (data := shot_bytes(shots)) and sha256_bytes(data) == digest:
            yield digest, data
