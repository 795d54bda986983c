"""Samplers draw batches of shots; those whose figures need it decode them too.

A shot is a trajectory of one step. Every seed comes from inside the env's train band; offline evaluation
takes its shots from the val band.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields

import numpy as np

from autoqec.contracts.env import Band
from autoqec.errors import RoundError, UsageError
from autoqec.qec import sampling
from autoqec.qec.logical_classes import LogicalClassMatcher
from autoqec.qec.problem import Problem
from autoqec.runner.agents import PredecoderAgent
from autoqec.runner.evaluate import VAL_KEY, decode_both
from autoqec.runner.replay_buffer import GAP

SHOTS_PER_DRAW = 32_768  # shots drawn at once, fewer where their labels would fill more than MAX_LABEL_BYTES
MAX_LABEL_BYTES = 2**25
MAX_GAP = 20.0  # nats; beyond, no shot is near failure, and matching need not look
NEAR_FAILURE_SHOTS_PER_DRAW = (
    8192  # of which some are near failure; few at once, for whoever waits for a batch waits for a whole draw
)
MAX_EMPTY_DRAWS = 256  # draws in a row without one shot near failure: there is nothing to learn from

TrajInfos = dict[str, np.ndarray]  # one value a trajectory, under each name


@dataclass(frozen=True, eq=False)
class Samples:
    """What is not None has a row a shot: detections uint8 [n, n_detectors], observables bool [n, n_observables].

    edges: uint8 [n, n_edges], the labels. flips, rewards, log_probs: what a policy did, what it got for it, and how
    likely it was to do it: uint8 [n, n_faults], float32 [n], float32 [n].
    """

    detections: np.ndarray
    observables: np.ndarray | None = None
    edges: np.ndarray | None = None
    flips: np.ndarray | None = None
    rewards: np.ndarray | None = None
    log_probs: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.detections)

    def __getitem__(self, part: slice | np.ndarray) -> Samples:
        return Samples(**{name: values[part] for name, values in self.fields().items()})

    def fields(self) -> dict[str, np.ndarray]:
        """Those that are there."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: values for name, values in found.items() if values is not None}

    def concatenated(self, other: Samples) -> Samples:
        own_fields, other_fields = self.fields(), other.fields()
        return Samples(**{name: np.concatenate([own_fields[name], other_fields[name]]) for name in own_fields})


def partition_seed_range(band: Band, rank: int, world_size: int) -> Band:
    """Rank's own part of a seed band: parts are disjoint, and the whole band is one rank's that is alone."""
    low, high = band
    width = high - low + 1
    if width < world_size:
        raise UsageError(
            f"the train band [{low}, {high}] has fewer seeds than there are {world_size} samplers",
            location="env field `seed_policy.train`",
            hint="widen the band, or start fewer",
        )
    return low + width * rank // world_size, low + width * (rank + 1) // world_size - 1


class ShotSampler(ABC):
    """What loops ask of a sampler. `batch_size` is the shots of one batch, on one rank."""

    def __init__(self, problem: Problem, batch_size: int, seed: int, *, eval_shots: int = 0) -> None:
        self.problem, self.batch_size, self.seed, self.eval_shots = problem, batch_size, seed, eval_shots
        self._buffer: Samples | None = None
        self._buffer_infos: TrajInfos = {}
        self._position = 0

    def initialize(self, agent: PredecoderAgent, *, rank: int = 0, world_size: int = 1) -> None:
        """Called once, before the agent moves to its device. Ranks draw from disjoint parts of the train band."""
        self.agent = agent
        self.rank = rank
        self._band = partition_seed_range(self.problem.env.seed_policy.train, rank, world_size)

    def train_seed(self, *key: str | int) -> int:
        return sampling.band_seed(self._band, type(self).__name__, self.seed, self.rank, *key)

    def obtain_samples(self, itr: int) -> tuple[Samples, TrajInfos]:
        """The next batch, and the online figures of its shots."""
        while self._buffer is None or self._position + self.batch_size > len(self._buffer):
            self._refill()
        part = slice(self._position, self._position + self.batch_size)
        self._position = part.stop
        return self._buffer[part], {name: values[part] for name, values in self._buffer_infos.items()}

    def evaluate_agent(self, itr: int) -> TrajInfos:
        """Offline figures: the same `eval_shots` shots of the val band every time, decoded with and without."""
        seed = sampling.band_seed(self.problem.env.seed_policy.val, VAL_KEY)
        shots = sampling.sample(self.problem, self.eval_shots, seed)
        plain, candidate = decode_both(self.problem, self.agent, shots)
        return {"PlainFail": plain, "PredecoderFail": candidate}

    def shutdown(self) -> None:
        """Let go of what was drawn."""
        self._buffer = None

    @abstractmethod
    def _draw(self) -> tuple[Samples, TrajInfos]:
        """More shots, any number of them, and a figure of each."""

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
    """Shots labelled with the edges their mechanisms ran over; for an agent that flips, with the mechanisms themselves.

    Figures: detection events and flipped edges a shot; with `gaps`, also how near to failure plain matching is.
    """

    def __init__(
        self, problem: Problem, batch_size: int, seed: int, *, gaps: bool = False, eval_shots: int = 0
    ) -> None:
        super().__init__(problem, batch_size, seed, eval_shots=eval_shots)
        self._class_matcher = LogicalClassMatcher(problem) if gaps else None

    def initialize(self, agent: PredecoderAgent, *, rank: int = 0, world_size: int = 1) -> None:
        super().initialize(agent, rank=rank, world_size=world_size)
        self._source = sampling.LabelledSampler(self.problem, self.train_seed(), agent.output_mode)
        max_shots = min(SHOTS_PER_DRAW, MAX_LABEL_BYTES // self.problem.variables(agent.output_mode).n_edges)
        self._draw_size = max(max_shots - max_shots % self.batch_size, self.batch_size)

    def _draw(self) -> tuple[Samples, TrajInfos]:
        drawn = self._source.draw(self._draw_size)
        infos = {
            "Detections": drawn.detections.sum(1, dtype=np.int32),
            "Edges": drawn.edges.sum(1, dtype=np.int32),
        }
        if self._class_matcher is not None:
            infos[GAP] = np.abs(self._class_matcher.complementary_gap(drawn.detections, cap=MAX_GAP))
        return Samples(drawn.detections, drawn.observables, drawn.edges), infos


class NearFailureSampler(ShotSampler):
    """Shots that plain matching is least sure of: its two logical classes differ by less than `gap` nats.

    Figures: the gap, and whether plain matching failed.
    """

    def __init__(self, problem: Problem, batch_size: int, seed: int, *, gap: float, eval_shots: int = 0) -> None:
        super().__init__(problem, batch_size, seed, eval_shots=eval_shots)
        self.gap = gap
        self._class_matcher = LogicalClassMatcher(problem)
        self._draws = self._empty_draws = 0

    def _draw(self) -> tuple[Samples, TrajInfos]:
        shots = sampling.sample(self.problem, NEAR_FAILURE_SHOTS_PER_DRAW, self.train_seed(self._draws))
        self._draws += 1
        detections = sampling.unpack(shots.detection_events, self.problem.n_detectors)
        gap = self._class_matcher.complementary_gap(detections, cap=self.gap + 0.5)
        near = np.abs(gap) < self.gap
        self._empty_draws = 0 if near.any() else self._empty_draws + 1
        if self._empty_draws == MAX_EMPTY_DRAWS:
            raise RoundError(
                "train_error",
                f"none of {MAX_EMPTY_DRAWS * NEAR_FAILURE_SHOTS_PER_DRAW} shots lies within {self.gap} "
                "nats of the other logical class",
                location="training.finetune_gap",
                hint="raise `training.finetune_gap`, or set `training.finetune_share: 0`",
            )
        kept, truth = Samples(detections[near], shots.observables[near]), shots.observables[near, 0]
        return kept, {GAP: np.abs(gap[near]), "PlainFail": (gap[near] < 0) != truth}
