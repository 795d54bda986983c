"""Requests that the guards repeat: which ones are kept, and in which order and batches they are sent again."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoqec.qec.sampling import Shots
from autoqec.verification.candidate.client import CandidateClient, CandidateFailure

GUARD_SHOTS = 5_000  # shots that reached the network, in all kept requests together
MIN_REQUESTS = 2
MAX_EXTRA_CHUNKS = 20  # drawn for the guards alone if test and effect draw sent too few shots
UNEVEN_BATCH_SIZES = (1, 7, 64, 999)  # batch sizes that batch independence is tested with, in turn

BoolArray = NDArray[np.bool_]
FloatArray = NDArray[np.float32]


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
