"""Samplers: batches of labelled shots for training, and evaluation on validation shots.

A shot is a trajectory of one step. Training seeds come from the env's train band, evaluation seeds from its val band.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import numpy as np

from autoqec.contracts.dsl import Labels
from autoqec.contracts.env import Band
from autoqec.errors import RoundError, UsageError
from autoqec.qec import sampling
from autoqec.qec.logical_classes import LogicalClassMatcher
from autoqec.qec.problem import Problem
from autoqec.runner.agents import PredecoderAgent
from autoqec.runner.evaluate import decode_both
from autoqec.runner.round_memory import MAX_LABEL_BYTES, SHOTS_PER_DRAW
from autoqec.runner.samples import GAP, Samples, TrajInfos
from autoqec.runner.shot_source import shot_source

MAX_GAP = 20.0  # nats; larger gaps are not computed, such shots are far from failure
NEAR_FAILURE_SHOTS_PER_DRAW = 8192  # a few of which are near failure; a batch waits for a whole draw
MAX_EMPTY_DRAWS = 256  # consecutive draws without a shot near failure before the sampler gives up


def partition_seed_range(band: Band, rank: int, world_size: int) -> Band:
    """Return the part of a seed band that a rank draws from; parts of different ranks are disjoint.

    Raises:
        UsageError: The band has fewer seeds than there are ranks.
    """
    low, high = band
    width = high - low + 1
    if width < world_size:
        raise UsageError(
            f"the train band [{low}, {high}] has fewer seeds than {world_size} samplers need",
            location="env field `seed_policy.train`",
            hint="widen the band, or use fewer ranks or samplers",
        )
    return low + width * rank // world_size, low + width * (rank + 1) // world_size - 1


class Sampler(ABC):
    """The interface of samplers to loops.

    Attributes:
        batch_size: Samples per batch of one rank.
    """

    batch_size: int

    @abstractmethod
    def initialize(self, agent: Any, *, rank: int = 0, world_size: int = 1) -> None:
        """Set up for one rank, before the agent moves to its device."""

    @abstractmethod
    def obtain_samples(self, itr: int) -> tuple[Any, TrajInfos]:
        """Return the next batch (sized and sliceable) and the statistics of the trajectories that ended in it."""

    @abstractmethod
    def evaluate_agent(self, itr: int) -> TrajInfos:
        """Return the statistics of trajectories that the agent is evaluated on."""

    @abstractmethod
    def train_seed(self, *key: str | int) -> int:
        """Return a seed of this rank, derived from `key`."""

    def shutdown(self) -> None:  # noqa: B027  most samplers hold nothing
        """Release what was drawn ahead."""


class ShotSampler(Sampler):
    """Base of samplers: buffering, seeds and evaluation.

    Args:
        problem: Circuit, detector error model and decoders of the env.
        batch_size: Shots per batch of one rank.
        seed: Seed of the training; every stream is derived from it and the env's seed bands.
        eval_shots: Validation shots of one evaluation.
        recorded: See `directory` of `shot_source`.
        simulated: Train on sampled shots although the env's code brings its own.
    """

    def __init__(
        self,
        problem: Problem,
        batch_size: int,
        seed: int,
        *,
        eval_shots: int = 0,
        recorded: Path | None = None,
        simulated: bool = False,
    ) -> None:
        self.source = shot_source(problem, recorded, simulated=simulated)
        self.problem, self.batch_size, self.seed, self.eval_shots = problem, batch_size, seed, eval_shots
        self._buffer: Samples | None = None
        self._buffer_infos: TrajInfos = {}
        self._position = 0

    def initialize(self, agent: PredecoderAgent, *, rank: int = 0, world_size: int = 1) -> None:
        """Set up for one rank, before the agent moves to its device; ranks draw from disjoint parts of the band."""
        self.agent = agent
        self.rank = rank
        self._band = partition_seed_range(self.problem.env.seed_policy.train, rank, world_size)

    def train_seed(self, *key: str | int) -> int:
        """Return a seed of this rank's part of the train band, derived from `key`."""
        return sampling.band_seed(self._band, type(self).__name__, self.seed, self.rank, *key)

    def obtain_samples(self, itr: int) -> tuple[Samples, TrajInfos]:
        """Return the next batch and the statistics of its shots."""
        while self._buffer is None or self._position + self.batch_size > len(self._buffer):
            self._refill()
        part = slice(self._position, self._position + self.batch_size)
        self._position = part.stop
        return self._buffer[part], {name: values[part] for name, values in self._buffer_infos.items()}

    def evaluate_agent(self, itr: int) -> TrajInfos:
        """Decode `eval_shots` validation shots with and without the agent; return whether each failed."""
        plain, candidate = decode_both(self.problem, self.agent, self.source.validation(self.eval_shots))
        return {"PlainFail": plain, "PredecoderFail": candidate}

    def shutdown(self) -> None:
        """Release the shots drawn ahead."""
        self._buffer = None

    @abstractmethod
    def _draw(self) -> tuple[Samples, TrajInfos]:
        """Draw any number of further shots, with their statistics."""

    def _refill(self) -> None:
        fresh, infos = self._draw()
        if self._buffer is None or self._position == len(self._buffer):
            self._buffer, self._buffer_infos = fresh, infos
        else:
            rest = self._buffer[slice(self._position, None)]
            self._buffer_infos = {
                name: np.concatenate([self._buffer_infos[name][self._position :], values])
                for name, values in infos.items()
            }
            self._buffer = rest.concatenated(fresh)
        self._position = 0


class EdgeLabelSampler(ShotSampler):
    """Shots labelled with the edges that their error mechanisms flip; for hard_flip with the mechanisms themselves.

    Statistics: `Detections` and `Edges` per shot; with `gaps` also `Gap`, the complementary gap of the baseline's
    matching in nats. `labels` is that of the config.
    """

    def __init__(
        self,
        problem: Problem,
        batch_size: int,
        seed: int,
        *,
        gaps: bool = False,
        labels: Labels = "sampled",
        **more: Any,
    ) -> None:
        super().__init__(problem, batch_size, seed, **more)
        self.labels = labels
        self._class_matcher = LogicalClassMatcher(problem) if gaps else None

    def initialize(self, agent: PredecoderAgent, *, rank: int = 0, world_size: int = 1) -> None:
        """Set up the labelled source for one rank."""
        super().initialize(agent, rank=rank, world_size=world_size)
        self._labelled = sampling.LabelledSampler(self.problem, self.train_seed(), agent.output_mode, self.labels)
        bytes_per_shot = self.problem.variables(agent.output_mode).n_edges * (1 if self.labels == "sampled" else 4)
        max_shots = min(SHOTS_PER_DRAW, MAX_LABEL_BYTES // bytes_per_shot)
        self._draw_size = max(max_shots - max_shots % self.batch_size, self.batch_size)

    def _draw(self) -> tuple[Samples, TrajInfos]:
        drawn = self._labelled.draw(self._draw_size)
        infos = {
            "Detections": drawn.detections.sum(1, dtype=np.int32),
            "Edges": drawn.edges.sum(1, dtype=np.int32 if self.labels == "sampled" else np.float32),
        }
        if self._class_matcher is not None:
            infos[GAP] = np.abs(self._class_matcher.complementary_gap(sampling.pack(drawn.detections), cap=MAX_GAP))
        return Samples(drawn.detections, drawn.observables, drawn.edges), infos


class NearFailureSampler(ShotSampler):
    """Shots near failure: the two logical classes of the baseline's matching differ by less than `gap` nats.

    Statistics: `Gap`, and `PlainFail`, whether the baseline failed.
    """

    def __init__(self, problem: Problem, batch_size: int, seed: int, *, gap: float, **more: Any) -> None:
        super().__init__(problem, batch_size, seed, **more)
        self.gap = gap
        self._class_matcher = LogicalClassMatcher(problem)
        self._draws = self._empty_draws = 0

    def _draw(self) -> tuple[Samples, TrajInfos]:
        shots = self.source.training(NEAR_FAILURE_SHOTS_PER_DRAW, self.train_seed(self._draws))
        self._draws += 1
        gap = self._class_matcher.complementary_gap(shots.detection_events, cap=self.gap + 0.5)
        near = np.abs(gap) < self.gap
        self._empty_draws = 0 if near.any() else self._empty_draws + 1
        if self._empty_draws == MAX_EMPTY_DRAWS:
            raise RoundError(
                "train_error",
                f"none of {MAX_EMPTY_DRAWS * NEAR_FAILURE_SHOTS_PER_DRAW} shots has a complementary gap below "
                f"{self.gap} nats",
                location="training.finetune_gap",
                hint="raise `training.finetune_gap`, or set `training.finetune_share: 0`",
            )
        detections = sampling.unpack(shots.detection_events[near], self.problem.n_detectors)
        kept, flipped = Samples(detections, shots.observables[near]), shots.observables[near, 0]
        return kept, {GAP: np.abs(gap[near]), "PlainFail": (gap[near] < 0) != flipped}
