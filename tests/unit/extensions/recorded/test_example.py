"""The builtin env of recorded shots: generated once, the same everywhere, and not quite what its model says."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from autoqec.contracts.base import sha256_bytes
from autoqec.extensions.recorded.env import preflight
from autoqec.extensions.recorded.example import SLICE_SHOTS, write_example
from autoqec.extensions.recorded.split import Split
from autoqec.qec.event_statistics import count_events
from autoqec.qec.problem import Problem
from autoqec.store.files import load_env


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_example(tmp_path_factory.mktemp("example") / "recorded_example", slices=1)


def content(directory: Path) -> str:
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    return sha256_bytes(b"".join(hashlib.sha256(path.read_bytes()).digest() for path in files))


def test_example_is_generated_once_and_always_the_same(example: Path, tmp_path: Path) -> None:
    again = write_example(tmp_path / "again", slices=1)
    assert content(again.parent) == content(example.parent)
    before = {path: path.stat().st_mtime_ns for path in example.parent.rglob("*")}
    assert write_example(example.parent, slices=2) == example
    assert before == {path: path.stat().st_mtime_ns for path in example.parent.rglob("*")}
    assert [path.name for path in tmp_path.iterdir()] == ["again"]


def test_shots_of_the_example_fit_its_model_only_roughly(example: Path) -> None:
    env, _ = load_env(example)
    recorded = preflight(env, example.parent / "shots")
    split = Split.of(env.code)
    assert split.candidates == 4 and split.part_blocks >= 19
    problem = Problem.from_env(env)
    events = (part.detection_events for block in recorded.layout.blocks for part in recorded.chunks(block))
    counts = count_events(events, problem.n_detectors)
    assert counts.shots == 4 * SLICE_SHOTS
    expected = count_events(
        iter([problem.given.dem.compile_sampler(seed=1).sample(20_000, bit_packed=True)[0]]), problem.n_detectors
    )
    assert (counts.fractions > 1.2 * expected.fractions).all()
