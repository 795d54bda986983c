"""One candidate against the reference on the judge's shots: draw, ask, decode, score. Memory: two chunks at a time."""

from __future__ import annotations

import itertools
from collections import Counter, deque
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from autoqec.contracts.dsl import OutputMode
from autoqec.contracts.verdict import PairedCounts, PairedEffect, StoppedBy
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
    """A chunk of the test with the candidate's answer, for the guards."""

    shots: Shots
    log_odds: FloatArray
    predictions: BoolArray


@dataclass
class CandidateEvaluation:
    """Holds what every draw needs, and counts what went wrong.

    faults: reason -> shots without a usable answer, each scored as an error. judged: shots sent in all.
    """

    problem: Problem
    shot_stream: ShotStream
    client: CandidateClient
    output_mode: OutputMode = "soft_priors"
    failures: Counter[str] = field(default_factory=Counter)
    shots_sent: int = 0
    guard_chunk: GuardChunk | None = None

    def __post_init__(self) -> None:
        self.backend = backends.make_soft_backend(self.problem, self.output_mode)
        self.priors = self.problem.variables(self.output_mode).log_odds.astype(np.float32)

    def answers(
        self, problem: Problem, purpose: str, shots: int
    ) -> Generator[tuple[Shots, FloatArray | CandidateFailure], None, None]:
        """Chunks with their answers; the next chunk is under way while the caller decodes this one.

        Leaving early is safe: the answer that is under way is taken in and dropped.
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
        """Which shots the candidate loses, bool [n], and its predictions where the whole chunk is usable.

        shift [n_edges] is added to the log-odds: the public priors' move from the target p to this one.
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
        """Feed the monitor chunk by chunk until it stops, or until an answer is unusable."""
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
        """The candidate against every panel member on one fresh draw; keyed by the member's name.

        `tell` hears the counts against the plain backend so far; the draw's length does not depend on them.
        """
        totals = dict.fromkeys(baselines.names, NO_PAIRS)
        for chunk, answer in self.answers(self.problem, "effect", shots):
            candidate_errors, _ = self.score_answer(self.backend, chunk, answer)
            for name, errors in baselines.error_mask(chunk).items():
                totals[name] = add_pairs(totals[name], count_pairs(errors, candidate_errors))
            on_progress(totals[self.problem.env.plain])
        return {name: paired_effect(counts, reference=name, p=self.problem.p) for name, counts in totals.items()}

    def point(self, other: Problem, shots: int) -> tuple[PairedEffect, ...]:
        """At another p, against every panel member, the plain backend first: the same log-odds, moved by the difference
        of the public priors, edge by edge."""
        backend, baselines = backends.make_soft_backend(other, self.output_mode), Baselines(other)
        shift = other.variables(self.output_mode).log_odds.astype(np.float32) - self.priors
        totals = dict.fromkeys(baselines.names, NO_PAIRS)
        for chunk, answer in self.answers(other, f"point:{other.p:g}", shots):
            candidate_errors, _ = self.score_answer(backend, chunk, answer, shift)
            for name, errors in baselines.error_mask(chunk).items():
                totals[name] = add_pairs(totals[name], count_pairs(errors, candidate_errors))
        return tuple(paired_effect(counts, reference=name, p=other.p) for name, counts in totals.items())

    def canary(self) -> tuple[int, int]:
        """(predictions that meet the flipped labels, shots). The flips are in place before anything is sent."""
        shots = self.shot_stream.chunk(self.problem, "guards", 0)
        coins = self.shot_stream.rng("canary").integers(0, 2, len(shots)).astype(bool)
        flipped = Shots(shots.detection_events, shots.observables ^ coins[:, None])
        self.client.send(flipped.detection_events)
        self.shots_sent += len(flipped)
        candidate_errors, _ = self.score_answer(self.backend, flipped, self.client.receive(len(self.priors)))
        return int((~candidate_errors).sum()), len(flipped)

    def run_ablations(self, guard_chunk: GuardChunk) -> tuple[PairedCounts, PairedCounts, PairedCounts]:
        """(priors alone against plain, shuffled against plain, shuffled against own) on the kept chunk."""
        shots, truth = guard_chunk.shots, guard_chunk.shots.observables
        plain = error_mask(self.backend.decode(shots.detection_events), truth)
        own = error_mask(guard_chunk.predictions, truth)
        priors = np.broadcast_to(self.priors, guard_chunk.log_odds.shape)
        by_priors = error_mask(self.backend.decode_soft(shots.detection_events, priors), truth)
        others = guard_chunk.log_odds[derangement(len(shots), self.shot_stream.rng("shuffle"))]
        by_others = error_mask(self.backend.decode_soft(shots.detection_events, others), truth)
        return count_pairs(plain, by_priors), count_pairs(plain, by_others), count_pairs(own, by_others)


UNEVEN_BATCH_SIZES = (1, 7, 64, 999)  # sizes of the batches that batch independence is tried with, in turn


def rebatched_answers(client: CandidateClient, guard_chunk: GuardChunk, order: NDArray[np.intp]) -> FloatArray | None:
    """The kept shots in another order and uneven batches, answers put back in place; None where one is missing."""
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
    """A permutation that leaves no row in place (n >= 2): a secret rotation of a secret order."""
    order = rng.permutation(n)
    moved = np.empty(n, np.intp)
    moved[order] = np.roll(order, 1)
    return moved


def same_edges(one: Problem, other: Problem) -> bool:
    """Whether log-odds of one problem's edges mean the same edges of the other's."""
    pairs = ((one.H, other.H), (one.L, other.L), (one.graph.mechanism_to_edge, other.graph.mechanism_to_edge))
    return all(a.shape == b.shape and (a != b).nnz == 0 for a, b in pairs)
