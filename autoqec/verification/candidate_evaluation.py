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
from autoqec.qec.stats import NO_PAIRS, add_pairs, count_pairs, paired, wrong
from autoqec.verification.baselines import Panel
from autoqec.verification.candidate.client import Failure, Link
from autoqec.verification.sequential import Monitor
from autoqec.verification.shot_stream import Bundle

Bools = NDArray[np.bool_]
Floats = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Kept:
    """A chunk of the test with the candidate's answer, for the guards."""

    shots: Shots
    log_odds: Floats
    predictions: Bools


@dataclass
class Trial:
    """Holds what every draw needs, and counts what went wrong.

    faults: reason -> shots without a usable answer, each scored as an error. judged: shots sent in all.
    """

    problem: Problem
    bundle: Bundle
    link: Link
    output_mode: OutputMode = "soft_priors"
    faults: Counter[str] = field(default_factory=Counter)
    judged: int = 0
    kept: Kept | None = None

    def __post_init__(self) -> None:
        self.backend = backends.make_soft(self.problem, self.output_mode)
        self.priors = self.problem.variables(self.output_mode).log_odds.astype(np.float32)

    def answers(
        self, problem: Problem, purpose: str, shots: int
    ) -> Generator[tuple[Shots, Floats | Failure], None, None]:
        """Chunks with their answers; the next chunk is under way while the caller decodes this one.

        Leaving early is safe: the answer that is under way is taken in and dropped.
        """
        n_edges = len(self.priors)
        waiting: deque[Shots] = deque()
        try:
            for chunk in self.bundle.chunks(problem, purpose, shots):
                self.link.send(chunk.detectors)
                self.judged += len(chunk)
                waiting.append(chunk)
                if len(waiting) == 2:
                    yield waiting[0], self.link.receive(n_edges)
                    waiting.popleft()
            while waiting:
                yield waiting[0], self.link.receive(n_edges)
                waiting.popleft()
        finally:
            while self.link.outstanding:
                self.link.receive(n_edges)

    def candidate_wrong(
        self, backend: backends.SoftBackend, shots: Shots, answer: Floats | Failure, shift: Floats | None = None
    ) -> tuple[Bools, Bools | None]:
        """Which shots the candidate loses, bool [n], and its predictions where the whole chunk is usable.

        shift [n_edges] is added to the log-odds: the public priors' move from the target p to this one.
        """
        lost = np.ones(len(shots), bool)
        if isinstance(answer, Failure):
            self.faults[str(answer)] += len(shots)
            return lost, None
        usable = np.isfinite(answer).all(axis=1)
        if not usable.all():
            self.faults["not finite"] += int((~usable).sum())
        log_odds = answer[usable] if shift is None else answer[usable] + shift
        predictions = backend.decode_soft(shots.detectors[usable], log_odds)
        lost[usable] = wrong(predictions, shots.observables[usable])
        return lost, predictions if usable.all() else None

    def test(self, monitor: Monitor, tell: Callable[[Monitor], None]) -> StoppedBy:
        """Feed the monitor chunk by chunk until it stops, or until an answer is unusable."""
        with closing(self.answers(self.problem, "test", monitor.budget)) as answers:
            for shots, answer in answers:
                reference = wrong(self.backend.decode(shots.detectors), shots.observables)
                lost, predictions = self.candidate_wrong(self.backend, shots, answer)
                reason = monitor.add(count_pairs(reference, lost))
                tell(monitor)
                if self.faults:
                    return "guard"
                if self.kept is None and predictions is not None and not isinstance(answer, Failure):
                    self.kept = Kept(shots, answer, predictions)
                if reason is not None:
                    return reason
        raise AssertionError("the monitor stops at its budget")

    def effect(self, shots: int, panel: Panel, tell: Callable[[PairedCounts], None]) -> dict[str, PairedEffect]:
        """The candidate against every panel member on one fresh draw; keyed by the member's name.

        `tell` hears the counts against the plain backend so far; the draw's length does not depend on them.
        """
        totals = dict.fromkeys(panel.names, NO_PAIRS)
        for chunk, answer in self.answers(self.problem, "effect", shots):
            lost, _ = self.candidate_wrong(self.backend, chunk, answer)
            for name, errors in panel.wrong(chunk).items():
                totals[name] = add_pairs(totals[name], count_pairs(errors, lost))
            tell(totals[self.problem.env.plain])
        return {name: paired(counts, reference=name, p=self.problem.p) for name, counts in totals.items()}

    def point(self, other: Problem, shots: int) -> tuple[PairedEffect, ...]:
        """At another p, against every panel member, the plain backend first: the same log-odds, moved by the difference
        of the public priors, edge by edge."""
        backend, panel = backends.make_soft(other, self.output_mode), Panel(other)
        shift = other.variables(self.output_mode).log_odds.astype(np.float32) - self.priors
        totals = dict.fromkeys(panel.names, NO_PAIRS)
        for chunk, answer in self.answers(other, f"point:{other.p:g}", shots):
            lost, _ = self.candidate_wrong(backend, chunk, answer, shift)
            for name, errors in panel.wrong(chunk).items():
                totals[name] = add_pairs(totals[name], count_pairs(errors, lost))
        return tuple(paired(counts, reference=name, p=other.p) for name, counts in totals.items())

    def canary(self) -> tuple[int, int]:
        """(predictions that meet the flipped labels, shots). The flips are in place before anything is sent."""
        shots = self.bundle.chunk(self.problem, "guards", 0)
        coins = self.bundle.rng("canary").integers(0, 2, len(shots)).astype(bool)
        flipped = Shots(shots.detectors, shots.observables ^ coins[:, None])
        self.link.send(flipped.detectors)
        self.judged += len(flipped)
        lost, _ = self.candidate_wrong(self.backend, flipped, self.link.receive(len(self.priors)))
        return int((~lost).sum()), len(flipped)

    def ablate(self, kept: Kept) -> tuple[PairedCounts, PairedCounts, PairedCounts]:
        """(priors alone against plain, shuffled against plain, shuffled against own) on the kept chunk."""
        shots, truth = kept.shots, kept.shots.observables
        plain = wrong(self.backend.decode(shots.detectors), truth)
        own = wrong(kept.predictions, truth)
        priors = np.broadcast_to(self.priors, kept.log_odds.shape)
        by_priors = wrong(self.backend.decode_soft(shots.detectors, priors), truth)
        others = kept.log_odds[derangement(len(shots), self.bundle.rng("shuffle"))]
        by_others = wrong(self.backend.decode_soft(shots.detectors, others), truth)
        return count_pairs(plain, by_priors), count_pairs(plain, by_others), count_pairs(own, by_others)


UNEVEN = (1, 7, 64, 999)  # sizes of the batches that batch independence is tried with, in turn


def uneven_answers(link: Link, kept: Kept, order: NDArray[np.intp]) -> Floats | None:
    """The kept shots in another order and uneven batches, answers put back in place; None where one is missing."""
    restored = np.empty_like(kept.log_odds)
    starts = np.cumsum([0, *itertools.islice(itertools.cycle(UNEVEN), len(order))])
    for rows in np.split(order, starts[(starts > 0) & (starts < len(order))]):
        link.send(kept.shots.detectors[rows])
        answer = link.receive(kept.log_odds.shape[1])
        if isinstance(answer, Failure):
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
    pairs = ((one.H, other.H), (one.L, other.L), (one.graph.fault_to_edge, other.graph.fault_to_edge))
    return all(a.shape == b.shape and (a != b).nnz == 0 for a, b in pairs)
