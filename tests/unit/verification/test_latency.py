"""Latency of single shots in the verifier: bounded in time, with requests to the candidate only for ambiguous shots."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from autoqec.verification import candidate_evaluation
from autoqec.verification.candidate_evaluation import CandidateEvaluation
from autoqec.verification.shot_stream import ShotStream
from tests.support.envs import problem
from tests.support.verification import SECRET


class Echo:
    """A candidate that answers with the priors."""

    def __init__(self, priors: np.ndarray) -> None:
        self.priors, self.requests = priors, 0

    def send(self, detection_events: np.ndarray) -> None:
        assert len(detection_events) == 1
        self.requests += 1

    def receive(self, n_edges: int) -> np.ndarray:
        return self.priors[None]


@pytest.mark.parametrize(("limit_s", "gate", "expected"), [(60.0, None, 40), (60.0, 2.0, 40), (-1.0, None, 1)])
def test_single_shots_end_at_the_time_limit(
    monkeypatch: pytest.MonkeyPatch, limit_s: float, gate: float | None, expected: int
) -> None:
    monkeypatch.setattr(candidate_evaluation, "LATENCY_LIMIT_S", limit_s)
    prob = problem(3)
    stream = ShotStream(SECRET, "a" * 64, (0, 9))
    evaluation = CandidateEvaluation(prob, stream, None, "soft_priors", gate)  # type: ignore[arg-type]
    evaluation.canary_events = stream.chunk(prob, "guards", 0).detection_events
    client: Any = Echo(evaluation.priors)
    latency = evaluation.latency(client, 40)
    assert latency is not None and latency.shots == expected and 0 < latency.p50 <= latency.p999
    assert client.requests == expected if gate is None else 0 < client.requests < expected
