"""Small samplers and builders for spawned processes of the loop tests: importable by name, failing on request."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from autoqec.contracts.env import EnvSpec
from autoqec.extensions.training_loops.policy_gradient import PolicyGradient, PolicySampler
from autoqec.qec.problem import Problem
from autoqec.runner.agents import PredecoderAgent
from autoqec.runner.algorithms import GradientAlgo, MatchingFinetune, SupervisedEdges
from autoqec.runner.samplers import EdgeLabelSampler, NearFailureSampler, ShotSampler
from autoqec.runner.samples import Samples, TrajInfos
from autoqec.store import files
from tests.unit.runner.conftest import SMALL, SMOKE, make_agent

FLIPS = {**SMALL, "output_mode": "hard_flip"}


class Descent(SupervisedEdges):
    """Gradient descent at a constant rate, for which sums of gradients are sums of steps."""

    def make_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.agent.parameters(), lr=self.learning_rate)

    def schedule(self, itr: int) -> float:
        return 1.0


class FixedShots(EdgeLabelSampler):
    """The same shots for all ranks; rank r of w takes the r-th of every w parts."""

    def obtain_samples(self, itr: int) -> tuple[Samples, TrajInfos]:
        if self._buffer is None:
            self.rank, self._band = 0, self.problem.env.seed_policy.train
            drawn = EdgeLabelSampler(self.problem, 1024, 1)
            drawn.initialize(self.agent)
            self._buffer, self._buffer_infos = drawn.obtain_samples(0)
        start = (itr * self.world + self.mine) * self.batch_size
        part = slice(start, start + self.batch_size)
        return self._buffer[part], {name: values[part] for name, values in self._buffer_infos.items()}

    def initialize(self, agent: PredecoderAgent, *, rank: int = 0, world_size: int = 1) -> None:
        super().initialize(agent, rank=rank, world_size=world_size)
        self.mine, self.world = rank, world_size


class Troubled(EdgeLabelSampler):
    """Draws shots until batch `at`, then does `trouble`, except in the process in which it was created."""

    trouble, at, leader, pause = "", 3, -1, 0.0

    def obtain_samples(self, itr: int) -> tuple[Samples, TrajInfos]:
        if os.getpid() != self.leader:
            time.sleep(self.pause)
            if itr >= self.at and self.trouble == "raise":
                raise ValueError("this sampler has had enough")
            if itr >= self.at and self.trouble == "die":
                os.kill(os.getpid(), signal.SIGKILL)
        return super().obtain_samples(itr)

    def evaluate_agent(self, itr: int) -> TrajInfos:
        if os.getpid() != self.leader:
            raise AssertionError("only the leader evaluates")
        return super().evaluate_agent(itr)


@dataclass
class Make:
    """A picklable builder (see `runner.sync`). kind: what is learnt. settings: attributes of the sampler."""

    kind: str = "edges"
    batch_size: int = 32
    settings: dict[str, Any] = field(default_factory=dict)
    env_changes: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.leader = os.getpid()

    def env(self) -> EnvSpec:
        return files.load_env(SMOKE)[0].model_copy(update=self.env_changes)

    def __call__(self) -> tuple[PredecoderAgent, ShotSampler, GradientAlgo]:
        torch.set_num_threads(1)
        problem = Problem.from_env(self.env())
        sampler, algo = self.parts(problem)
        for name, value in {"leader": self.leader, **self.settings}.items():
            setattr(sampler, name, value)
        return make_agent(problem, config=FLIPS if self.kind == "policy" else SMALL), sampler, algo

    def parts(self, problem: Problem) -> tuple[ShotSampler, GradientAlgo]:
        supervised = SupervisedEdges(learning_rate=3e-3, weight_decay=1e-4)
        if self.kind == "fixed":
            return FixedShots(problem, self.batch_size, 5), Descent(learning_rate=0.05, weight_decay=0.0)
        if self.kind == "near":
            near_failure = NearFailureSampler(problem, self.batch_size, 5, gap=6.0, eval_shots=100)
            return near_failure, MatchingFinetune(problem, learning_rate=1e-3)
        if self.kind == "policy":
            reward = {"flip_cost": 1e-3, "temperature": 0.5}
            acting = PolicySampler(problem, self.batch_size, 5, gap=6.0, eval_shots=100, **reward)
            return acting, PolicyGradient(learning_rate=1e-3, **reward)
        gaps = self.kind == "gaps"
        return Troubled(problem, self.batch_size, 5, gaps=gaps, eval_shots=100), supervised


def difference(one: dict[str, Any], other: dict[str, Any]) -> float:
    return max(float(np.abs(one[name].double().numpy() - other[name].double().numpy()).max()) for name in one)
