"""Samplers draw batches of shots; those whose figures need it decode them too.

A shot is a trajectory of one step. Every seed comes from inside the env's train band; offline evaluation
takes its shots from the val band.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from autoqec.errors import RoundFailed
from autoqec.qec import sampling
from autoqec.qec.classes import TwoClassMatcher
from autoqec.qec.problem import Problem
from autoqec.runner.agents import PredecoderAgent
from autoqec.runner.evaluate import VAL_KEY, decode_both

DRAW = 32_768  # shots drawn at once, fewer where their labels would fill more than LABEL_BYTES
LABEL_BYTES = 2**25
BARREN_DRAWS = 64  # draws in a row without one shot near failure: there is nothing to learn from

TrajInfos = dict[str, np.ndarray]  # one value a trajectory, under each name


@dataclass(frozen=True, eq=False)
class Samples:
    """detections uint8 [n, n_detectors], observables bool [n, n_observables], edges uint8 [n, n_edges] or None."""

    detections: np.ndarray
    observables: np.ndarray
    edges: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.detections)

    def __getitem__(self, part: slice | np.ndarray) -> Samples:
        edges = None if self.edges is None else self.edges[part]
        return Samples(self.detections[part], self.observables[part], edges)


class ShotSampler(ABC):
    """What loops ask of a sampler. `batch_size` is the shots of one batch, on one rank."""

    def __init__(self, problem: Problem, batch_size: int, seed: int, *, eval_shots: int = 0) -> None:
        self.problem, self.batch_size, self.seed, self.eval_shots = problem, batch_size, seed, eval_shots
        self._stock: Samples | None = None
        self._stock_infos: TrajInfos = {}
        self._position = 0

    def initialize(self, agent: PredecoderAgent, *, rank: int = 0, world_size: int = 1) -> None:
        """Called once, before the agent moves to its device. Ranks draw from different seeds of the train band."""
        self.agent = agent
        self.rank = rank

    def train_seed(self, *key: str | int) -> int:
        band = self.problem.env.seed_policy.train
        return sampling.band_seed(band, type(self).__name__, self.seed, self.rank, *key)

    def obtain_samples(self, itr: int) -> tuple[Samples, TrajInfos]:
        """The next batch, and the online figures of its shots."""
        while self._stock is None or self._position + self.batch_size > len(self._stock):
            self._restock()
        part = slice(self._position, self._position + self.batch_size)
        self._position = part.stop
        return self._stock[part], {name: values[part] for name, values in self._stock_infos.items()}

    def evaluate_agent(self, itr: int) -> TrajInfos:
        """Offline figures: the same `eval_shots` shots of the val band every time, decoded with and without."""
        seed = sampling.band_seed(self.problem.env.seed_policy.val, VAL_KEY)
        shots = sampling.sample(self.problem, self.eval_shots, seed)
        plain, candidate = decode_both(self.problem, self.agent, shots)
        return {"PlainFail": plain, "PredecoderFail": candidate}

    def shutdown(self) -> None:
        """Let go of what was drawn."""
        self._stock = None

    @abstractmethod
    def _draw(self) -> tuple[Samples, TrajInfos]:
        """More shots, any number of them, and a figure of each."""

    def _restock(self) -> None:
        fresh, infos = self._draw()
        if self._stock is None or self._position == len(self._stock):
            self._stock, self._stock_infos = fresh, infos
        else:
            rest = self._stock[slice(self._position, None)]
            self._stock_infos = {
                name: np.concatenate([self._stock_infos[name][self._position :], values])
                for name, values in infos.items()
            }
            self._stock = Samples(
                np.concatenate([rest.detections, fresh.detections]),
                np.concatenate([rest.observables, fresh.observables]),
                None if rest.edges is None or fresh.edges is None else np.concatenate([rest.edges, fresh.edges]),
            )
        self._position = 0


class EdgeLabelSampler(ShotSampler):
    """Shots labelled with the edges their mechanisms ran over; for an agent that flips, with the mechanisms themselves.

    Figures: detection events and flipped edges a shot.
    """

    def initialize(self, agent: PredecoderAgent, *, rank: int = 0, world_size: int = 1) -> None:
        super().initialize(agent, rank=rank, world_size=world_size)
        self._source = sampling.LabelledSampler(self.problem, self.train_seed(), agent.output_mode)
        most = min(DRAW, LABEL_BYTES // self.problem.variables(agent.output_mode).n_edges)
        self._draw_size = max(most - most % self.batch_size, self.batch_size)

    def _draw(self) -> tuple[Samples, TrajInfos]:
        drawn = self._source.draw(self._draw_size)
        infos = {
            "Detections": drawn.detections.sum(1, dtype=np.int32),
            "Edges": drawn.edges.sum(1, dtype=np.int32),
        }
        return Samples(drawn.detections, drawn.observables, drawn.edges), infos


class NearFailureSampler(ShotSampler):
    """Shots that plain matching is least sure of: its two logical classes differ by less than `gap` nats.

    Figures: the gap, and whether plain matching failed.
    """

    def __init__(self, problem: Problem, batch_size: int, seed: int, *, gap: float, eval_shots: int = 0) -> None:
        super().__init__(problem, batch_size, seed, eval_shots=eval_shots)
        self.gap = gap
        self._classes = TwoClassMatcher(problem)
        self._draws = self._barren = 0

    def _draw(self) -> tuple[Samples, TrajInfos]:
        shots = sampling.sample(self.problem, DRAW, self.train_seed(self._draws))
        self._draws += 1
        detections = sampling.unpack(shots.detectors, self.problem.n_detectors)
        gap = self._classes.gap(detections, cap=self.gap + 0.5)
        near = np.abs(gap) < self.gap
        self._barren = 0 if near.any() else self._barren + 1
        if self._barren == BARREN_DRAWS:
            raise RoundFailed(
                "train_error",
                f"none of {BARREN_DRAWS * DRAW} shots lies within {self.gap} nats of the other logical class",
                where="training.finetune_gap",
                mend="raise `training.finetune_gap`, or set `training.finetune_share: 0`",
            )
        kept = Samples(detections[near], shots.observables[near])
        return kept, {"Gap": np.abs(gap[near]), "PlainFail": (gap[near] < 0) != kept.observables[:, 0]}
