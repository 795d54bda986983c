from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest

from autoqec.contracts.dsl import parse_dsl
from autoqec.contracts.env import SEED_SPACE
from autoqec.errors import ContractError
from autoqec.verification import shot_stream
from autoqec.verification.shot_stream import CHUNK, SEED_END, ShotStream
from tests.support.envs import problem
from tests.support.verification import CONFIG, SECRET

ARTIFACT, BAND = "a" * 64, (2_000_000, 2_999_999)


def test_seeds_are_above_every_band_and_depend_on_all_inputs() -> None:
    first = ShotStream(SECRET, ARTIFACT, BAND)
    seeds = {first.seed(purpose, chunk) for purpose in ("test", "effect", "point:0.01") for chunk in range(200)}
    assert len(seeds) == 600 and all(SEED_SPACE <= seed < SEED_END for seed in seeds)
    for second in (
        ShotStream(bytes(32), ARTIFACT, BAND),
        ShotStream(SECRET, "b" * 64, BAND),
        ShotStream(SECRET, ARTIFACT, (0, 9)),
    ):
        assert second.seed("test", 0) != first.seed("test", 0)
    assert first.seed("test", 0) == ShotStream(SECRET, ARTIFACT, BAND).seed("test", 0)


def test_shots_depend_only_on_secret_and_artifact() -> None:
    first, second = ShotStream(SECRET, ARTIFACT, BAND), ShotStream(SECRET, ARTIFACT, BAND)
    second.chunk(problem(), "effect", 0)
    mine, theirs = first.chunk(problem(), "test", 3), second.chunk(problem(), "test", 3)
    assert np.array_equal(mine.detection_events, theirs.detection_events) and np.array_equal(
        mine.observables, theirs.observables
    )
    assert first.digests["test/3"] == second.digests["test/3"] and len(mine) == CHUNK
    assert first.id != second.id


def test_digest_depends_on_every_bit() -> None:
    shots = ShotStream(SECRET, ARTIFACT, BAND).chunk(problem(), "test", 0)
    before = shot_stream.digest(shots)
    shots.observables[17, 0] ^= True
    assert shot_stream.digest(shots) != before


def test_chunks_are_complete_and_cover_the_budget() -> None:
    drawn = list(ShotStream(SECRET, ARTIFACT, BAND).chunks(problem(), "test", CHUNK + 1))
    assert [len(shots) for shots in drawn] == [CHUNK, CHUNK]


def test_commitment_binds_and_short_secrets_are_refused() -> None:
    assert shot_stream.commitment(SECRET) == hashlib.sha256(SECRET).hexdigest()
    with pytest.raises(ContractError, match="secret"):
        ShotStream(b"short", ARTIFACT, BAND)


def test_artifact_hash_covers_weights_config_and_modules(tmp_path: Path) -> None:
    weights, modules = tmp_path / "w.pt", tmp_path / "modules"
    weights.write_bytes(b"weights")
    modules.mkdir()
    (modules / "mlp.py").write_text("x = 1\n")
    dsl = parse_dsl(CONFIG)
    hashes = {shot_stream.artifact_sha256(weights, dsl, None), shot_stream.artifact_sha256(weights, dsl, modules)}
    (modules / "mlp.py").write_text("x = 2\n")
    hashes.add(shot_stream.artifact_sha256(weights, dsl, modules))
    hashes.add(shot_stream.artifact_sha256(weights, parse_dsl({"type": "mlp", "mlp": {"hidden": 65}}), None))
    weights.write_bytes(b"weightz")
    hashes.add(shot_stream.artifact_sha256(weights, dsl, None))
    assert len(hashes) == 5
    with pytest.raises(ContractError, match=r"run the round again"):
        shot_stream.artifact_sha256(tmp_path / "absent.pt", dsl, None)


def test_fifo_in_place_of_a_checkpoint_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "checkpoint.pt")
    with pytest.raises(ContractError, match="is not a regular file"):
        shot_stream.artifact_sha256(tmp_path / "checkpoint.pt", parse_dsl(CONFIG), None)
