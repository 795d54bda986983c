"""Latency of single shots, and whether their predictions are those of batches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoqec.contracts.verdict import Latency, LatencyScope
from autoqec.decoders import gating, latency
from autoqec.qec.timing import latency_quantiles
from autoqec.verification.candidate.client import CandidateClient, CandidateFailure
from autoqec.verification.candidate.protocol import LATENCY_LIMIT_S
from autoqec.verification.candidate_evaluation import CandidateEvaluation


@dataclass(frozen=True)
class SingleShots:
    """Single shots of one candidate.

    Attributes:
        latency: Quantiles of their times.
        differing: Number of shots whose prediction is not that of the batch that they were in before.
    """

    latency: Latency
    differing: int


class _NoAnswerError(Exception):
    """The candidate did not answer a request, or not with numbers."""


def measure(
    evaluation: CandidateEvaluation, client: CandidateClient, shots: int, scope: LatencyScope
) -> SingleShots | CandidateFailure:
    """Decode the canary's shots one by one, as a control system would.

    Slow inner decoders get through fewer shots within LATENCY_LIMIT_S.

    Args:
        evaluation: Of the candidate, which has decoded the canary's shots.
        client: Another process than the one whose CPU time counts.
        shots: Number of shots, at most those of the canary.
        scope: `decoder` if the process may decode by itself, which needs an artifact without branch code.

    Returns:
        The measurement; a failure if an answer is missing.
    """
    events, expected = evaluation.canary_events[:shots], evaluation.canary_predictions
    assert expected is not None, "only a candidate whose answers were all usable is timed"
    if scope == "decoder":
        decoded = client.decode_one_by_one(events, evaluation.problem.n_observables)
        if isinstance(decoded, CandidateFailure):
            return decoded
    else:
        try:
            decoded = _decode_with_requests(evaluation, client, events)
        except _NoAnswerError as error:
            return CandidateFailure("latency", str(error))
    predictions, elapsed_us = decoded
    p50, p99, p999 = latency_quantiles(elapsed_us)
    quantiles = Latency(shots=len(elapsed_us), p50=p50, p99=p99, p999=p999, scope=scope)
    return SingleShots(quantiles, int((predictions != expected[: len(predictions)]).any(axis=1).sum()))


def _decode_with_requests(
    evaluation: CandidateEvaluation, client: CandidateClient, detection_events: NDArray[np.uint8]
) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Decode here, with a request to the candidate for every shot that the network decodes."""
    # Its gate counts no shot twice.
    decoder = gating.make_decoder(evaluation.problem, evaluation.output_mode, evaluation.gate)
    n_edges = len(evaluation.priors)

    def network(shot: NDArray[np.uint8]) -> NDArray[np.float32]:
        client.send(shot)
        log_odds = client.receive(n_edges)
        if isinstance(log_odds, CandidateFailure):
            raise _NoAnswerError(str(log_odds))
        if not np.isfinite(log_odds).all():
            raise _NoAnswerError("an answer is not finite")
        return log_odds

    return latency.decode_one_by_one(lambda shot: decoder.decode_with(shot, network), detection_events, LATENCY_LIMIT_S)
