"""HallOfFame: a bounded collection of the best designs, each structure once."""

from __future__ import annotations

import bisect
import math
import random
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeVar


class Rankable(Protocol):
    """An environment that can be kept."""

    @property
    def signature(self) -> str:
        """Identifier of the structure: environments with equal signatures are the same design."""

    def clone(self) -> Any:
        """Return a copy that later steps of the original do not change."""


E = TypeVar("E", bound=Rankable)


class HallOfFame:
    """Keeps copies of environments with the smallest losses. Of equal losses the earlier one ranks higher."""

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"the capacity of a hall of fame is at least 1, not {capacity}")
        self.capacity = capacity
        self._ranked: list[tuple[float, int, str, Any]] = []  # sorted by (loss, arrival)
        self._arrivals = 0

    def add(self, env: Rankable, loss: float) -> bool:
        """Keep a copy if the loss is among the best.

        Returns:
            False if it is not, if the same design is kept with a loss as small, or if the loss is not finite.
        """
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
        """Add several environments with their losses."""
        for env, loss in zip(envs, losses, strict=True):
            self.add(env, loss)

    def sample(self, k: int, rng: random.Random) -> list[Any]:
        """At most k distinct members, drawn uniformly."""
        return rng.sample(list(self), min(k, len(self)))

    @property
    def losses(self) -> Sequence[float]:
        """Losses of the members, best first."""
        return [entry[0] for entry in self._ranked]

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the members, best first."""
        return iter([entry[3] for entry in self._ranked])

    def __getitem__(self, rank: int) -> Any:
        return self._ranked[rank][3]

    def __len__(self) -> int:
        return len(self._ranked)
