"""Evaluate one candidate on the verification's shots: sample, request log-odds, decode, score.

Memory: two chunks at a time.
"""

from __future__ import annotations

import itertools
from collections import Counter, deque
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from autoqec.contracts.dsl import OutputMode
from autoqec.contracts.verdict import PairedCounts, PairedEffect, ReportVersion, StoppedBy
from autoqec.decoders import gating
from autoqec.qec import backends
from autoqec.qec.problem import Problem
from autoqec.qec.sampling import Shots
from autoqec.qec.stats import NO_PAIRS, add_pairs, count_pairs, error_mask, paired_effect
from autoqec.verification.baselines import Baselines
from autoqec.verification.candidate.client import CandidateClient, CandidateFailure
from autoqec.verification.sequential import Monitor
from autoqec.verification.shot_stream import ShotStream

BoolArray = NDArray[np.bool_]
FloatArray = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class GuardChunk:
    """A chunk of the test with the candidate's answer, kept for the guards."""

    shots: Shots
    log_odds: FloatArray
    predictions: BoolArray


@dataclass
class CandidateEvaluation:
    """Candidate, shots and decoder of one verification, with counts of what went wrong.

    Attributes:
        failures: Reason -> shots without a usable answer, each scored as an error.
        shots_sent: Shots sent in all draws together.
        guard_chunk: The first chunk of the test, for the guards.
    """

    problem: Problem
    shot_stream: ShotStream
    client: CandidateClient
    output_mode: OutputMode = "soft_priors"
    gate: float | None = None
    failures: Counter[str] = field(default_factory=Counter)
    shots_sent: int = 0
    guard_chunk: GuardChunk | None = None

    def __post_init__(self) -> None:
        self.backend = gating.make_decoder(self.problem, self.output_mode, self.gate)
        self.priors = self.problem.variables(self.output_mode).log_odds.astype(np.float32)

    @property
    def ambiguous_share(self) -> float | None:
        """Return the share of shots that the config's gate sends to the predecoder; None without a gate."""
        return self.backend.gate.ambiguous_share if isinstance(self.backend, gating.GatedDecoder) else None

    def answers(
        self, problem: Problem, purpose: str, shots: int
    ) -> Generator[tuple[Shots, FloatArray | CandidateFailure], None, None]:
        """Yield chunks with their answers; the next request is sent before the caller decodes the current answer.

        Stopping early is safe: outstanding answers are received and dropped.
        """
        n_edges = len(self.priors)
        pending: deque[Shots] = deque()
        try:
            for chunk in self.shot_stream.chunks(problem, purpose, shots):
                self.client.send(chunk.detection_events)
                self.shots_sent += len(chunk)
                pending.append(chunk)
                if len(pending) == 2:
                    yield pending[0], self.client.receive(n_edges)
                    pending.popleft()
            while pending:
                yield pending[0], self.client.receive(n_edges)
                pending.popleft()
        finally:
            while self.client.outstanding:
                self.client.receive(n_edges)

    def score_answer(
        self,
        backend: backends.SoftBackend,
        shots: Shots,
        answer: FloatArray | CandidateFailure,
        shift: FloatArray | None = None,
    ) -> tuple[BoolArray, BoolArray | None]:
        """Decode under an answer and compare with the labels.

        Args:
            backend: Inner decoder.
            shots: Detection events and labels.
            answer: Log-odds, float32 [n, n_edges], or why there are none.
            shift: Added to the log-odds, float32 [n_edges]: the difference of the priors at this p and the target p.

        Returns:
            Shots decoded wrongly, bool [n], and the predictions if the whole chunk was usable.
        """
        candidate_errors = np.ones(len(shots), bool)
        if isinstance(answer, CandidateFailure):
            self.failures[str(answer)] += len(shots)
            return candidate_errors, None
        usable = np.isfinite(answer).all(axis=1)
        if not usable.all():
            self.failures["not finite"] += int((~usable).sum())
        log_odds = answer[usable] if shift is None else answer[usable] + shift
        predictions = backend.decode_soft(shots.detection_events[usable], log_odds)
        candidate_errors[usable] = error_mask(predictions, shots.observables[usable])
        return candidate_errors, predictions if usable.all() else None

    def test(self, monitor: Monitor, on_progress: Callable[[Monitor], None]) -> StoppedBy:
        """Feed the monitor chunk by chunk until it stops or an answer is unusable."""
        with closing(self.answers(self.problem, "test", monitor.budget)) as answers:
            for shots, answer in answers:
                reference = error_mask(self.backend.decode(shots.detection_events), shots.observables)
                candidate_errors, predictions = self.score_answer(self.backend, shots, answer)
                reason = monitor.add(count_pairs(reference, candidate_errors))
                on_progress(monitor)
                if self.failures:
                    return "guard"
                if self.guard_chunk is None and predictions is not None and not isinstance(answer, CandidateFailure):
                    self.guard_chunk = GuardChunk(shots, answer, predictions)
                if reason is not None:
                    return reason
        raise AssertionError("the monitor stops at its budget")

    def effect(
        self, shots: int, baselines: Baselines, on_progress: Callable[[PairedCounts], None]
    ) -> dict[str, PairedEffect]:
        """Measure the candidate against every baseline on one fresh draw of fixed length.

        Args:
            shots: Length of the draw.
            baselines: Decoders to compare with.
            on_progress: Called with the counts against the baseline decoder after each chunk.

        Returns:
            The effect by baseline name.
        """
        totals = dict.fromkeys(baselines.names, NO_PAIRS)
        for chunk, answer in self.answers(self.problem, "effect", shots):
            candidate_errors, _ = self.score_answer(self.backend, chunk, answer)
            for name, errors in baselines.error_mask(chunk).items():
                totals[name] = add_pairs(totals[name], count_pairs(errors, candidate_errors))
            on_progress(totals[self.problem.env.plain])
        return {name: paired_effect(counts, reference=name, p=self.problem.p) for name, counts in totals.items()}

    def point(self, other: Problem, shots: int, rules: ReportVersion) -> tuple[PairedEffect, ...]:
        """Measure the candidate at another p against every baseline, the baseline decoder first.

        Its log-odds are for the target p; the difference of the public priors is added edge by edge.
        """
        backend, baselines = gating.make_decoder(other, self.output_mode, self.gate), Baselines(other, rules)
        shift = other.variables(self.output_mode).log_odds.astype(np.float32) - self.priors
        totals = dict.fromkeys(baselines.names, NO_PAIRS)
        for chunk, answer in self.answers(other, f"point:{other.p:g}", shots):
            candidate_errors, _ = self.score_answer(backend, chunk, answer, shift)
            for name, errors in baselines.error_mask(chunk).items():
                totals[name] = add_pairs(totals[name], count_pairs(errors, candidate_errors))
        return tuple(paired_effect(counts, reference=name, p=other.p) for name, counts in totals.items())

    def canary(self) -> tuple[int, int]:
        """Score the candidate against labels flipped by a secret coin; they are flipped before any request is sent.

        Returns:
            (predictions that agree with the flipped labels, shots)
        """
        shots = self.shot_stream.chunk(self.problem, "guards", 0)
        coins = self.shot_stream.rng("canary").integers(0, 2, len(shots)).astype(bool)
        flipped = Shots(shots.detection_events, shots.observables ^ coins[:, None])
        self.client.send(flipped.detection_events)
        self.shots_sent += len(flipped)
        candidate_errors, _ = self.score_answer(self.backend, flipped, self.client.receive(len(self.priors)))
        return int((~candidate_errors).sum()), len(flipped)

    def run_ablations(self, guard_chunk: GuardChunk) -> tuple[PairedCounts, PairedCounts, PairedCounts]:
        """Decode the kept chunk with information removed; see `guards.ablation`.

        Returns:
            Priors alone against the baseline decoder, another shot's log-odds against it, and these against the own.
        """
        shots, truth = guard_chunk.shots, guard_chunk.shots.observables
        plain = error_mask(self.backend.decode(shots.detection_events), truth)
        own = error_mask(guard_chunk.predictions, truth)
        priors = np.broadcast_to(self.priors, guard_chunk.log_odds.shape)
        by_priors = error_mask(self.backend.decode_soft(shots.detection_events, priors), truth)
        others = guard_chunk.log_odds[derangement(len(shots), self.shot_stream.rng("shuffle"))]
        by_others = error_mask(self.backend.decode_soft(shots.detection_events, others), truth)
        return count_pairs(plain, by_priors), count_pairs(plain, by_others), count_pairs(own, by_others)


UNEVEN_BATCH_SIZES = (1, 7, 64, 999)  # batch sizes that batch independence is tested with, in turn


def rebatched_answers(client: CandidateClient, guard_chunk: GuardChunk, order: NDArray[np.intp]) -> FloatArray | None:
    """Request the kept shots in another order and uneven batches.

    Returns:
        The answers in the original order, float32 [n, n_edges]; None if one is missing.
    """
    restored = np.empty_like(guard_chunk.log_odds)
    starts = np.cumsum([0, *itertools.islice(itertools.cycle(UNEVEN_BATCH_SIZES), len(order))])
    for rows in np.split(order, starts[(starts > 0) & (starts < len(order))]):
        client.send(guard_chunk.shots.detection_events[rows])
        answer = client.receive(guard_chunk.log_odds.shape[1])
        if isinstance(answer, CandidateFailure):
            return None
        restored[rows] = answer
    return restored


def derangement(n: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """Return a permutation that leaves no row in place (n >= 2): a rotation of a random order."""
    order = rng.permutation(n)
    moved = np.empty(n, np.intp)
    moved[order] = np.roll(order, 1)
    return moved


def same_edges(one: Problem, other: Problem) -> bool:
    """Return whether log-odds for one problem's edges apply to the other's edges."""
    pairs = ((one.H, other.H), (one.L, other.L), (one.graph.mechanism_to_edge, other.graph.mechanism_to_edge))
    return all(a.shape == b.shape and (a != b).nnz == 0 for a, b in pairs)
