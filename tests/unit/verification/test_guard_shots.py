"""Which requests the guards repeat."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from autoqec.qec.sampling import Shots
from autoqec.verification.candidate_evaluation import (
    GUARD_SHOTS,
    MAX_EXTRA_CHUNKS,
    CandidateEvaluation,
    GuardChunk,
    GuardShots,
)
from autoqec.verification.shot_stream import ShotStream
from tests.support import verification as support
from tests.support.envs import problem as small_problem
from tests.unit.verification.test_verifier import StubClient


def request(number: int, shots: int) -> GuardChunk:
    """Return a request whose log-odds are its number."""
    flags = np.zeros((shots, 1), bool)
    return GuardChunk(Shots(flags.view(np.uint8), flags), np.full((shots, 1), number, np.float32), flags)


def kept(sizes: list[int], seed: int = 0) -> list[tuple[int, int]]:
    """Return (number, shots) of the requests that are kept."""
    guard_shots = GuardShots(np.random.default_rng(seed))
    for number, size in enumerate(sizes):
        guard_shots.offer(request(number, size))
    assert guard_shots.n_shots == sum(len(chunk.shots) for chunk in guard_shots.requests)
    return [(int(chunk.log_odds[0, 0]), len(chunk.shots)) for chunk in guard_shots.requests]


def test_late_requests_are_kept_as_often_as_early_ones() -> None:
    counts = Counter(number for seed in range(600) for number, _ in kept([5_000] * 12, seed))
    assert sum(counts.values()) == 2 * 600, "two requests of 5,000 shots are enough"
    assert all(60 < counts[number] < 145 for number in range(12)), counts  # 100 expected, standard deviation 9


@pytest.mark.parametrize("size", [300, 4_999, 5_001])
def test_requests_are_kept_until_enough_shots_were_sent(size: int) -> None:
    sizes = [size] * 40
    found = kept([0, *sizes, 0])
    assert sum(shots for _, shots in found) >= GUARD_SHOTS and len(found) >= 2
    assert sum(shots for _, shots in found[:-1]) < GUARD_SHOTS or len(found) == 2
    assert len(kept([300] * 10)) == 10, "all of them, if there are too few"


@pytest.mark.parametrize(("gate", "chunks"), [(1e-3, MAX_EXTRA_CHUNKS), (100.0, 2)])
def test_further_chunks_are_drawn_if_the_gate_sends_few_shots(gate: float, chunks: int) -> None:
    problem = small_problem(3, 0.01)
    stream = ShotStream(support.SECRET, "a" * 64, (0, 9))
    evaluation = CandidateEvaluation(problem, stream, StubClient(problem), gate=gate)  # type: ignore[arg-type]
    evaluation.draw_guard_shots()
    assert list(stream.digests) == [f"guards/{index}" for index in range(1, chunks + 1)]
    assert evaluation.guard_shots.n_shots <= evaluation.shots_sent and evaluation.guard_shots.enough == (chunks == 2)
