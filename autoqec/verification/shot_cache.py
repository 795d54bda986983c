"""Archived shots of verifications, for replays on machines that sample differently.

stim gives the same shots for a seed only in the same version and on the same CPU width. A file holds one chunk of
`shot_stream.CHUNK` shots in the byte order of its digest: packed detection events (b8, row by row), then packed
observables. Its name is that digest, so a report's `chunk_digests` name the files and a changed file is detected.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from autoqec.contracts.base import sha256_bytes
from autoqec.contracts.env import EnvSpec
from autoqec.contracts.verdict import VerifyReport
from autoqec.errors import ContractError
from autoqec.qec.problem import Problem
from autoqec.qec.sampling import Shots, unpack
from autoqec.verification.member_draws import member_draws
from autoqec.verification.shot_stream import SEALED, ShotStream, joint_sha256, shot_bytes


def report_chunk_digests(report: VerifyReport) -> dict[str, str]:
    """Map `purpose/chunk` to the digest, for every chunk of the report and of its composition."""
    composition_digests = report.composition.chunk_digests if report.composition else ()
    return dict(line.rsplit(" ", 1) for line in (*report.chunk_digests, *composition_digests))


def file_name(digest: str) -> str:
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
        if digest is None or self.dir is None or not (path := self.dir / file_name(digest)).is_file():
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
