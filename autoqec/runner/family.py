"""Training of one set of weights on a family of circuits, which take turns batch by batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from autoqec.contracts.dsl import PredecoderDSL
from autoqec.decoders import flops
from autoqec.decoders.base import Predecoder
from autoqec.decoders.family import compile_members
from autoqec.qec.problem import Problem
from autoqec.runner.agents import Agent, PredecoderAgent
from autoqec.runner.algorithms import GradientAlgo, OptInfo
from autoqec.runner.samplers import Sampler
from autoqec.runner.samples import Samples, TrajInfos


def member_problems(problem: Problem) -> tuple[Problem, ...]:
    """Return the problem and, of a family, those of its other circuits at the target p."""
    return problem, *map(Problem.from_env, problem.env.other_members)


def build_agent(model: Predecoder, dsl: PredecoderDSL, problem: Problem) -> PredecoderAgent:
    """Return the agent of a predecoder; of a family, with agents of the other circuits that share its parameters.

    Raises:
        ContractError: The weights of this config do not fit every circuit of the family.
    """
    problems = member_problems(problem)
    models = (model, *compile_members(dsl, model, problem.env, problems[1:]))
    agents = [
        PredecoderAgent(each, flops.count(each, of.n_detectors).flops_per_syndrome)
        for each, of in zip(models, problems, strict=True)
    ]
    agents[0].members = tuple(agents[1:])
    return agents[0]


class FamilySampler(Sampler):
    """Takes the batches of several samplers in turn, one per circuit; the target's is the first, and evaluates."""

    def __init__(self, samplers: Sequence[Sampler]) -> None:
        self.samplers, self.batch_size = samplers, samplers[0].batch_size

    def initialize(self, agent: PredecoderAgent, *, rank: int = 0, world_size: int = 1) -> None:
        """Set up every circuit's sampler with its agent."""
        self.agents = (agent, *agent.members)
        for sampler, member in zip(self.samplers, self.agents, strict=True):
            sampler.initialize(member, rank=rank, world_size=world_size)

    def obtain_samples(self, itr: int) -> tuple[Samples, TrajInfos]:
        """Return the next batch of the circuit whose turn it is."""
        turn = itr % len(self.samplers)
        self.agents[turn].sample_mode(itr)
        return self.samplers[turn].obtain_samples(itr)

    def evaluate_agent(self, itr: int) -> TrajInfos:
        """Evaluate on the target's validation shots."""
        return self.samplers[0].evaluate_agent(itr)

    def train_seed(self, *key: str | int) -> int:
        """Return a seed of this rank, derived from `key`."""
        return self.samplers[0].train_seed(*key)

    def shutdown(self) -> None:
        """Release what was drawn ahead."""
        for sampler in self.samplers:
            sampler.shutdown()


class FamilyAlgo(GradientAlgo):
    """Takes the steps of several algorithms in turn, one per circuit, with one optimizer over the shared parameters."""

    def __init__(self, algos: Sequence[GradientAlgo]) -> None:
        super().__init__(learning_rate=algos[0].learning_rate)
        self.algos = algos

    def initialize(self, agent: Agent, *, n_itr: int, batch_size: int) -> None:
        """Create the optimizer; every circuit's agent moves to the device of the target's."""
        assert isinstance(agent, PredecoderAgent)
        self.agent, self.agents = agent, (agent, *agent.members)
        for algo, member in zip(self.algos, self.agents, strict=True):
            member.is_data_parallel = agent.is_data_parallel
            member.to_device(str(agent.device))
            algo.initialize(member, n_itr=n_itr, batch_size=batch_size)
            algo.share_optimizer(self.algos[0])
        self.optimizer = self.algos[0].optimizer

    def optimize_agent(self, itr: int, samples: Any) -> OptInfo:
        """Take a step on a batch of the circuit whose turn it is."""
        turn = itr % len(self.algos)
        self.agents[turn].train_mode(itr)
        return self.algos[turn].optimize_agent(itr, samples)

    def make_optimizer(self) -> torch.optim.Optimizer:
        """Return the target's optimizer."""
        return self.algos[0].make_optimizer()

    def loss(self, samples: Any, n: int) -> tuple[Tensor, OptInfo]:
        """Return the loss of the target's samples."""
        return self.algos[0].loss(samples, n)

    def optim_state_dict(self) -> dict[str, Any]:
        """Return a copy of the shared optimizer's state on the CPU."""
        return self.algos[0].optim_state_dict()

    def load_optim_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state that `optim_state_dict` returned."""
        self.algos[0].load_optim_state_dict(state)
