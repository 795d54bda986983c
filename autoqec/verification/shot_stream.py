"""The judge's shots: seeds that nobody could know before the artifact was frozen.

seed(purpose, chunk) = HMAC-SHA256(run secret, artifact hash | holdout band | purpose | chunk), mapped into
[2**32, 2**63): above every public band. A chunk is always CHUNK shots, so the shots of a chunk do not depend on how
many chunks were drawn; its digest stands in the report. The same secret and artifact give the same shots, whoever
asks and however often: one draw an artifact.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from autoqec.contracts.base import canonical_json, sha256_bytes, sha256_json
from autoqec.contracts.dsl import PredecoderDSL
from autoqec.contracts.env import SEED_SPACE, Band
from autoqec.errors import ContractError
from autoqec.qec.problem import Problem
from autoqec.qec.sampling import Shots, pack, sample
from autoqec.system import machine

if TYPE_CHECKING:
    from autoqec.verification.shot_cache import ShotCache

CHUNK = 5_000  # shots to a seed
JUDGE_SEED_END = 2**63
MIN_SECRET_BYTES = 16  # bytes


def commitment(secret: bytes) -> str:
    """What is published of the secret before the run: its SHA-256."""
    return hashlib.sha256(secret).hexdigest()


def artifact_sha256(checkpoint: Path, dsl: PredecoderDSL, modules_dir: Path | None) -> str:
    """One hash for what is judged: weights, config and, where it is a branch's own, the search surface.

    ContractError where the checkpoint can't be read.
    """
    try:
        with checkpoint.open("rb") as stream:
            weights = hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise ContractError(
            f"checkpoint can't be read ({error.strerror})", location=str(checkpoint), hint="run the round again"
        ) from error
    surface = machine.tree_sha256(modules_dir) if modules_dir is not None else None
    return sha256_json({"checkpoint": weights, "dsl": dsl.sha256(), "surface": surface})


@dataclass
class ShotStream:
    """Draws chunks and remembers the digest of each. `artifact`: the hash the draw belongs to.

    shelf: for a replay, where chunks are kept that this stim draws otherwise.
    """

    secret: bytes
    artifact: str
    band: Band
    shot_cache: ShotCache | None = None
    digests: dict[str, str] = field(default_factory=dict)
    seeds: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        if len(self.secret) < MIN_SECRET_BYTES:
            raise ContractError(f"the judge's secret is shorter than {MIN_SECRET_BYTES} bytes", location="secret")

    def mac(self, purpose: str, chunk: int) -> bytes:
        message = canonical_json({"artifact": self.artifact, "band": self.band, "purpose": purpose, "chunk": chunk})
        return hmac.digest(self.secret, message.encode(), "sha256")

    def seed(self, purpose: str, chunk: int) -> int:
        return SEED_SPACE + int.from_bytes(self.mac(purpose, chunk)[:16], "big") % (JUDGE_SEED_END - SEED_SPACE)

    def rng(self, purpose: str) -> np.random.Generator:
        """Secret coin flips: canary bits, permutations."""
        return np.random.default_rng(list(self.mac(purpose, 0)))

    def chunk(self, problem: Problem, purpose: str, index: int) -> Shots:
        """Chunk `index` of `purpose`, CHUNK shots of `problem`'s own noise."""
        seed, name = self.seed(purpose, index), f"{purpose}/{index}"
        shots = sample(problem, CHUNK, seed)
        if self.shot_cache is not None:
            shots = self.shot_cache.select_shots(name, shots, problem)
        self.digests[name] = digest(shots)
        self.seeds.append(seed)
        return shots

    def chunks(self, problem: Problem, purpose: str, shots: int) -> Iterator[Shots]:
        """As many chunks as hold `shots`, one at a time, the last one whole too."""
        for index in range(-(-shots // CHUNK)):
            yield self.chunk(problem, purpose, index)

    @property
    def id(self) -> str:
        """Names the shots of this judgement; equal ids, equal shots."""
        return sha256_json({"artifact": self.artifact, "digests": self.digests})[:32]

    def digest_lines(self) -> tuple[str, ...]:
        """`purpose/chunk sha256` lines, in the order drawn."""
        return tuple(f"{name} {value}" for name, value in self.digests.items())


def shot_bytes(shots: Shots) -> bytes:
    """Packed detectors, row by row, then packed observables."""
    return np.ascontiguousarray(shots.detection_events).tobytes() + pack(shots.observables).tobytes()


def digest(shots: Shots) -> str:
    """SHA-256 over packed detectors, then packed observables."""
    return sha256_bytes(shot_bytes(shots))
