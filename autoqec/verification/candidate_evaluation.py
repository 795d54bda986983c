"""Evaluate one candidate on the verification's shots: sample, request log-odds, decode, score, repeat for guards.

Memory: two chunks at a time.
"""

from __future__ import annotations

import bisect
import itertools
from collections import Counter, deque
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from autoqec.contracts.dsl import OutputMode
from autoqec.contracts.round import PairedCounts
from autoqec.contracts.verdict import Latency, LatencyScope, PairedEffect, StoppedBy
from autoqec.decoders import gating, latency
from autoqec.decoders.gating import GatedDecoder, Selection
from autoqec.qec.problem import Problem
from autoqec.qec.sampling import Shots
from autoqec.qec.stats import NO_PAIRS, add_pairs, count_pairs, cpu_timed, error_mask, latency_quantiles, paired_effect
from autoqec.verification.baselines import Baselines
from autoqec.verification.candidate.client import CandidateClient, CandidateFailure
from autoqec.verification.candidate.protocol import LATENCY_LIMIT_S
from autoqec.verification.sequential import Monitor
from autoqec.verification.shot_stream import ShotStream

GUARD_SHOTS = 5_000  # shots that reached the network, in all kept requests together
MIN_REQUESTS = 2
MAX_EXTRA_CHUNKS = 20  # drawn for the guards alone if test and effect draw sent too few shots
UNEVEN_BATCH_SIZES = (1, 7, 64, 999)  # batch sizes that batch independence is tested with, in turn

BoolArray = NDArray[np.bool_]
FloatArray = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class ChunkAnswer:
    """The candidate's answer to a chunk.

    Attributes:
        shots: The whole chunk.
        selection: Shots that were sent, and the predictions of the others.
        log_odds: float32 [len(selection), n_edges], or why there are none.
    """

    shots: Shots
    selection: Selection
    log_odds: FloatArray | CandidateFailure


@dataclass
class CandidateEvaluation:
    """Candidate, shots and decoder of one verification, with counts of what went wrong.

    Attributes:
        failures: Reason -> shots without a usable answer, each scored as an error.
        shots_sent: Shots sent in all draws together; under a gate, only ambiguous ones are sent.
        canary_events: Detection events of the canary's shots, whether ambiguous or not.
        canary_predictions: Their predictions, bool [n, n_observables]; None if an answer was unusable.
        decoder_cpu_s: CPU time of gate and inner decoder so far, network excluded.
        guard_shots: Requests that are kept for the guards.
    """

    problem: Problem
    shot_stream: ShotStream
    client: CandidateClient
    output_mode: OutputMode = "soft_priors"
    gate: float | None = None
    failures: Counter[str] = field(default_factory=Counter)
    shots_sent: int = 0
    decoder_cpu_s: float = 0.0
    canary_events: NDArray[np.uint8] = field(default_factory=lambda: np.empty((0, 0), np.uint8))
    canary_predictions: BoolArray | None = None

    def __post_init__(self) -> None:
        self.guard_shots = GuardShots(self.shot_stream.rng("guard requests"))
        self.decoder = gating.make_decoder(self.problem, self.output_mode, self.gate)
        self.priors = self.problem.variables(self.output_mode).log_odds.astype(np.float32)

    @property
    def ambiguous_share(self) -> float | None:
        """Return the share of shots that the config's gate sends to the predecoder; None without a gate."""
        gate = self.decoder.gate
        return None if gate is None else gate.ambiguous_share

    def send(self, decoder: GatedDecoder, detection_events: NDArray[np.uint8]) -> Selection:
        """Send the shots that need the network, if there are any."""
        selection, cpu_s = cpu_timed(decoder.select, detection_events)
        self.decoder_cpu_s += cpu_s
        if len(selection):
            self.client.send(selection.detection_events)
            self.shots_sent += len(selection)
        return selection

    def receive(self, selection: Selection) -> FloatArray | CandidateFailure:
        """Return the oldest outstanding answer, float32 [len(selection), n_edges]."""
        n_edges = len(self.priors)
        return self.client.receive(n_edges) if len(selection) else np.empty((0, n_edges), np.float32)

    def answers(
        self, decoder: GatedDecoder, problem: Problem, purpose: str, shots: int
    ) -> Generator[ChunkAnswer, None, None]:
        """Yield chunks with their answers; the next request is sent before the caller decodes the current answer.

        Stopping early is safe: outstanding answers are received and dropped.
        """
        pending: deque[tuple[Shots, Selection]] = deque()
        try:
            for chunk in self.shot_stream.chunks(problem, purpose, shots):
                pending.append((chunk, self.send(decoder, chunk.detection_events)))
                if len(pending) == 2:
                    yield ChunkAnswer(*pending[0], self.receive(pending[0][1]))
                    pending.popleft()
            while pending:
                yield ChunkAnswer(*pending[0], self.receive(pending[0][1]))
                pending.popleft()
        finally:
            while self.client.outstanding:
                self.client.receive(len(self.priors))

    def score_answer(
        self, decoder: GatedDecoder, answer: ChunkAnswer, shift: FloatArray | None = None
    ) -> tuple[BoolArray, BoolArray | None]:
        """Decode under an answer and compare with the labels.

        Args:
            decoder: Inner decoder and gate.
            answer: A chunk with the candidate's answer.
            shift: Added to the log-odds, float32 [n_edges]: the difference of the priors at this p and the target p.

        Returns:
            Shots decoded wrongly, bool [n], and the predictions if the whole chunk was usable.
        """
        shots, selection, log_odds = answer.shots, answer.selection, answer.log_odds
        if isinstance(log_odds, CandidateFailure):
            self.failures[str(log_odds)] += len(selection)
            return np.ones(len(shots), bool), None
        usable = np.asarray(np.isfinite(log_odds).all(axis=1))
        if not usable.all():
            self.failures["not finite"] += int((~usable).sum())
            log_odds = np.where(usable[:, None], log_odds, self.priors)
        predictions, cpu_s = cpu_timed(decoder.complete, selection, log_odds if shift is None else log_odds + shift)
        self.decoder_cpu_s += cpu_s
        candidate_errors = error_mask(predictions, shots.observables)
        candidate_errors[np.flatnonzero(selection.mask)[~usable]] = True
        return candidate_errors, predictions if usable.all() else None

    def test(self, monitor: Monitor, on_progress: Callable[[Monitor], None]) -> StoppedBy:
        """Feed the monitor chunk by chunk until it stops or an answer is unusable."""
        with closing(self.answers(self.decoder, self.problem, "test", monitor.budget)) as answers:
            for answer in answers:
                shots = answer.shots
                reference = error_mask(self.decoder.decode(shots.detection_events), shots.observables)
                candidate_errors, predictions = self.score_answer(self.decoder, answer)
                reason = monitor.add(count_pairs(reference, candidate_errors))
                on_progress(monitor)
                if self.failures:
                    return "guard"
                self.keep_for_guards(answer, predictions)
                if reason is not None:
                    return reason
        raise AssertionError("the monitor stops at its budget")

    def keep_for_guards(self, answer: ChunkAnswer, predictions: BoolArray | None) -> None:
        """Offer the shots that were sent to the guards."""
        if predictions is not None and not isinstance(answer.log_odds, CandidateFailure):
            mask = answer.selection.mask
            shots = Shots(answer.selection.detection_events, answer.shots.observables[mask])
            self.guard_shots.offer(GuardChunk(shots, answer.log_odds, predictions[mask]))

    def draw_guard_shots(self) -> None:
        """Draw chunks for the guards until enough shots were sent, or an answer is unusable."""
        for index in range(1, MAX_EXTRA_CHUNKS + 1):  # chunk 0 is the canary's
            if self.guard_shots.enough or self.failures:
                return
            shots = self.shot_stream.chunk(self.problem, "guards", index)
            selection = self.send(self.decoder, shots.detection_events)
            answer = ChunkAnswer(shots, selection, self.receive(selection))
            self.keep_for_guards(answer, self.score_answer(self.decoder, answer)[1])

    def effect(
        self, shots: int, baselines: Baselines, on_progress: Callable[[PairedCounts], None], purpose: str = "effect"
    ) -> dict[str, PairedEffect]:
        """Measure the candidate against every baseline on one fresh draw of fixed length.

        Args:
            shots: Length of the draw.
            baselines: Decoders to compare with.
            on_progress: Called with the counts against the baseline decoder after each chunk.
            purpose: Names the draw in the shot stream.

        Returns:
            The effect by baseline name.
        """
        totals = dict.fromkeys(baselines.names, NO_PAIRS)
        for answer in self.answers(self.decoder, self.problem, purpose, shots):
            candidate_errors, predictions = self.score_answer(self.decoder, answer)
            self.keep_for_guards(answer, predictions)
            for name, errors in baselines.error_mask(answer.shots).items():
                totals[name] = add_pairs(totals[name], count_pairs(errors, candidate_errors))
            on_progress(totals[self.problem.env.plain])
        return {name: paired_effect(counts, reference=name, p=self.problem.p) for name, counts in totals.items()}

    def point(self, other: Problem, shots: int) -> tuple[PairedEffect, ...]:
        """Measure the candidate at another p against every baseline, the baseline decoder first.

        Its log-odds are for the target p; the difference of the public priors is added edge by edge.
        """
        decoder, baselines = gating.make_decoder(other, self.output_mode, self.gate), Baselines(other)
        shift = other.variables(self.output_mode).log_odds.astype(np.float32) - self.priors
        totals = dict.fromkeys(baselines.names, NO_PAIRS)
        for answer in self.answers(decoder, other, f"point:{other.p:g}", shots):
            candidate_errors, _ = self.score_answer(decoder, answer, shift)
            for name, errors in baselines.error_mask(answer.shots).items():
                totals[name] = add_pairs(totals[name], count_pairs(errors, candidate_errors))
        return tuple(paired_effect(counts, reference=name, p=other.p) for name, counts in totals.items())

    def canary(self) -> tuple[int, int]:
        """Score the candidate against labels flipped by a secret coin; they are flipped before any request is sent.

        Returns:
            (predictions that agree with the flipped labels, shots)
        """
        shots = self.shot_stream.chunk(self.problem, "guards", 0)
        self.canary_events = shots.detection_events
        coins = self.shot_stream.rng("canary").integers(0, 2, len(shots)).astype(bool)
        flipped = Shots(shots.detection_events, shots.observables ^ coins[:, None])
        selection = self.send(self.decoder, flipped.detection_events)
        answer = ChunkAnswer(flipped, selection, self.receive(selection))
        candidate_errors, self.canary_predictions = self.score_answer(self.decoder, answer)
        return int((~candidate_errors).sum()), len(flipped)

    def decode_kept(self, guard_chunk: GuardChunk, log_odds: FloatArray) -> BoolArray | None:
        """Decode the kept shots under other answers; None if one is not finite."""
        ungated = GatedDecoder(self.decoder.inner, self.problem.n_observables, None)
        selection = ungated.select(guard_chunk.shots.detection_events)
        _, predictions = self.score_answer(ungated, ChunkAnswer(guard_chunk.shots, selection, log_odds))
        return predictions

    def count_changed_by_rounding(self, guard_chunk: GuardChunk, size: float) -> tuple[int, int]:
        """Count predictions of the inner decoder that change if the answers are off by rounding errors.

        Args:
            guard_chunk: The kept shots.
            size: Largest error of a log-odds, relative where it exceeds 1 nat.

        Returns:
            (shots with another prediction, shots)
        """
        log_odds = guard_chunk.log_odds
        noise = self.shot_stream.rng("rounding").uniform(-size, size, log_odds.shape)
        rounded = (log_odds + noise * np.maximum(1.0, np.abs(log_odds))).astype(np.float32)
        predictions = self.decoder.inner.decode_soft(guard_chunk.shots.detection_events, rounded)
        return int(error_mask(predictions, guard_chunk.predictions).sum()), len(log_odds)

    def run_ablations(self, guard_chunk: GuardChunk) -> tuple[PairedCounts, PairedCounts, PairedCounts]:
        """Decode the kept shots with information removed; see `guards.ablation`.

        Returns:
            Priors alone against the baseline decoder, another shot's log-odds against it, and these against the own.
        """
        shots, truth = guard_chunk.shots, guard_chunk.shots.observables
        inner = self.decoder.inner
        plain = error_mask(inner.decode(shots.detection_events), truth)
        own = error_mask(guard_chunk.predictions, truth)
        priors = np.broadcast_to(self.priors, guard_chunk.log_odds.shape)
        by_priors = error_mask(inner.decode_soft(shots.detection_events, priors), truth)
        others = guard_chunk.log_odds[derangement(len(shots), self.shot_stream.rng("shuffle"))]
        by_others = error_mask(inner.decode_soft(shots.detection_events, others), truth)
        return count_pairs(plain, by_priors), count_pairs(plain, by_others), count_pairs(own, by_others)


def same_edges(first: Problem, second: Problem) -> bool:
    """Return whether log-odds for the edges of the first problem apply to those of the second."""
    pairs = ((first.H, second.H), (first.L, second.L), (first.graph.mechanism_to_edge, second.graph.mechanism_to_edge))
    return all(a.shape == b.shape and (a != b).nnz == 0 for a, b in pairs)


@dataclass(frozen=True, eq=False)
class GuardChunk:
    """Shots that the candidate answered in one request, with its answers and their predictions."""

    shots: Shots
    log_odds: FloatArray
    predictions: BoolArray

    @classmethod
    def joined(cls, chunks: Sequence[GuardChunk]) -> GuardChunk:
        """Return several chunks as one."""
        shots = Shots(
            np.concatenate([chunk.shots.detection_events for chunk in chunks]),
            np.concatenate([chunk.shots.observables for chunk in chunks]),
        )
        return cls(
            shots,
            np.concatenate([chunk.log_odds for chunk in chunks]),
            np.concatenate([chunk.predictions for chunk in chunks]),
        )


class GuardShots:
    """A secret random choice of the requests of test and effect draw.

    A candidate cannot know which requests are kept, and late ones are kept as often as early ones.

    Args:
        rng: Secret generator of the choice.
    """

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._kept: list[tuple[float, GuardChunk]] = []

    def offer(self, chunk: GuardChunk) -> None:
        """Keep an answered request, or not. The requests with the smallest random keys stay, until there are enough."""
        if not len(chunk.shots):
            return
        key = float(self._rng.random())
        if self.enough and key > self._kept[-1][0]:
            return
        bisect.insort(self._kept, (key, chunk), key=lambda kept: kept[0])
        while _enough(self._kept[:-1]):
            self._kept.pop()

    @property
    def n_shots(self) -> int:
        """Number of kept shots."""
        return sum(len(chunk.shots) for _, chunk in self._kept)

    @property
    def enough(self) -> bool:
        """Whether the guards have as many shots as they ask for."""
        return _enough(self._kept)

    @property
    def requests(self) -> list[GuardChunk]:
        """The kept requests, as they were sent."""
        return [chunk for _, chunk in self._kept]


def _enough(kept: Sequence[tuple[float, GuardChunk]]) -> bool:
    return len(kept) >= MIN_REQUESTS and sum(len(chunk.shots) for _, chunk in kept) >= GUARD_SHOTS


def repeated_answers(client: CandidateClient, requests: Sequence[GuardChunk]) -> FloatArray | None:
    """Send the requests again, each as it was.

    Returns:
        The answers one after the other, float32 [n, n_edges]; None if one is missing.
    """
    answers = []
    for chunk in requests:
        client.send(chunk.shots.detection_events)
        answer = client.receive(chunk.log_odds.shape[1])
        if isinstance(answer, CandidateFailure):
            return None
        answers.append(answer)
    return np.concatenate(answers)


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


def measure_single_shots(
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
