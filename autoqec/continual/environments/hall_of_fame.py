"""HallOfFame: the best designs seen, bounded, each structure once."""

from __future__ import annotations

import bisect
import math
import random
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeVar


class Rankable(Protocol):
    """An environment that can be remembered."""

    @property
    def signature(self) -> str:
        """The structure's name: two environments with the same signature are the same design."""

    def clone(self) -> Any:
        """A copy that later steps of the original leave alone."""


E = TypeVar("E", bound=Rankable)


class HallOfFame:
    """Losses: smaller is better. What is kept are clones. Of equal losses the earlier one ranks higher."""

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"a hall of fame holds at least one environment, not {capacity}")
        self.capacity = capacity
        self._ranked: list[tuple[float, int, str, Any]] = []  # sorted by (loss, arrival)
        self._arrivals = 0

    def add(self, env: Rankable, loss: float) -> bool:
        """Keep a clone if it is among the best; False where it is not, is worse than its twin, or is not finite."""
        if not math.isfinite(loss):
            return False
        signature = env.signature
        duplicate = next((place for place, entry in enumerate(self._ranked) if entry[2] == signature), None)
        if duplicate is not None:
            if loss >= self._ranked[duplicate][0]:
                return False
            del self._ranked[duplicate]
        elif len(self._ranked) == self.capacity:
            if loss >= self._ranked[-1][0]:
                return False
            del self._ranked[-1]
        self._arrivals += 1
        bisect.insort(self._ranked, (float(loss), self._arrivals, signature, env.clone()))
        return True

    def add_all(self, envs: Iterable[Rankable], losses: Iterable[float]) -> None:
        for env, loss in zip(envs, losses, strict=True):
            self.add(env, loss)

    def sample(self, k: int, rng: random.Random) -> list[Any]:
        """At most k different members, drawn evenly."""
        return rng.sample(list(self), min(k, len(self)))

    @property
    def losses(self) -> Sequence[float]:
        """Best first, as the members."""
        return [entry[0] for entry in self._ranked]

    def __iter__(self) -> Iterator[Any]:
        """Best to worst."""
        return iter([entry[3] for entry in self._ranked])

    def __getitem__(self, rank: int) -> Any:
        return self._ranked[rank][3]

    def __len__(self) -> int:
        return len(self._ranked)
