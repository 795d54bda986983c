"""Shots for verification, from secret seeds that are derived after the artifact is frozen.

seed(purpose, chunk) = HMAC-SHA256(run secret, artifact hash | holdout band | purpose | chunk), mapped to
[2**32, 2**63), above every public band. A chunk always has CHUNK shots, so its shots do not depend on how many chunks
are drawn; the report holds its digest. The same secret and artifact always give the same shots, so repeating a
verification never yields a second draw.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np

from autoqec.contracts.base import canonical_json, sha256_bytes, sha256_json
from autoqec.contracts.dsl import PredecoderDSL
from autoqec.contracts.env import SEED_SPACE, Band
from autoqec.errors import ContractError
from autoqec.qec.problem import Problem
from autoqec.qec.sampling import Shots, pack, sample
from autoqec.store import atomic
from autoqec.system import machine

SEALED = "sealed"  # purpose of recorded test shots
CHUNK = 5_000  # shots per seed
SEED_END = 2**63
MIN_SECRET_BYTES = 16


class ShotSource(Protocol):
    """Replaces sampled chunks by archived ones; see `shot_cache.ShotCache`."""

    def select_shots(self, name: str, sampled: Shots, problem: Problem) -> Shots:
        """Return the shots to use for chunk `name`."""
        ...


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
    shot_cache: ShotSource | None = None
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
