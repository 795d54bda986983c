"""Trajectories of several steps: a hand-checked environment, and DesignEnv through the loops."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from autoqec.contracts.dsl import ReplayConfig
from autoqec.contracts.env import EnvSpec
from autoqec.errors import UsageError
from autoqec.extensions.continual.environments.design import (
    ActionSpace,
    Assignment,
    DesignEnv,
    DesignStepper,
    EnvFeatures,
    ExplicitObserver,
    FlatTensorizer,
    PredecoderDraft,
)
from autoqec.extensions.continual.environments.environment_sampler import (
    CategoricalAgent,
    EnvironmentInterface,
    EnvironmentSampler,
    EpisodeReinforce,
)
from autoqec.extensions.continual.environments.policy import PolicyNet
from autoqec.runner import AsyncRl, MinibatchRl, MinibatchRlEval, SyncRl
from autoqec.runner.logger import TrainLogger
from autoqec.store.layout import RoundLayout
from tests.support.progress import progress_rows


@dataclass
class Counter:
    """The sum of the actions so far; an episode has `length` steps. A sum of 0 fails."""

    length: int
    total: int = 0
    steps: int = 0

    @property
    def state(self) -> Counter:
        return self

    @property
    def done(self) -> bool:
        return self.steps >= self.length

    def reset(self) -> Counter:
        self.total = self.steps = 0
        return self

    def step(self, action: int, stepper: Any, raw_action: Any = None) -> None:
        assert not self.done
        self.total, self.steps = self.total + action, self.steps + 1

    def clone(self) -> Counter:
        return copy.copy(self)


COUNTING = EnvironmentInterface(
    stepper=None,
    observe=lambda env: torch.tensor([float(env.steps), float(env.total)]),
    valid_actions=lambda env: (True, True, env.steps > 0),
    loss=lambda env: -float(env.total) if env.total else math.inf,
)


def agent_of(n_inputs: int, n_actions: int) -> CategoricalAgent:
    torch.manual_seed(0)
    return CategoricalAgent(PolicyNet(n_inputs, n_actions, 64))


def counting_sampler(lengths: tuple[int, ...] = (2, 3), steps: int = 4, **more: Any) -> EnvironmentSampler:
    return EnvironmentSampler([Counter(length) for length in lengths], COUNTING, steps, 7, **more)


def test_episodes_continue_over_batches_and_returns_are_sums_to_their_end() -> None:
    sampler = counting_sampler(discount=0.5, failure_reward=-3.0)
    sampler.initialize(agent_of(2, 3))
    rewards, infos = [], []
    for itr in range(6):
        samples, statistics = sampler.obtain_samples(itr)
        assert len(samples) == 8 == sampler.batch_size
        shaped = {name: getattr(samples, name).view(4, 2) for name in ("rewards", "dones", "returns", "complete")}
        for env in range(2):
            dones = shaped["dones"][:, env].tolist()
            last = max((step for step in range(4) if dones[step]), default=-1)
            assert shaped["complete"][:, env].tolist() == [step <= last for step in range(4)]
            for step in range(last + 1):
                end = next(later for later in range(step, 4) if dones[later])
                expected = 0.5 ** (end - step) * float(shaped["rewards"][end, env])
                assert float(shaped["returns"][step, env]) == pytest.approx(expected)
        assert not samples.actions[~samples.valid[torch.arange(8), samples.actions]].numel(), "only valid actions"
        rewards.append(samples.rewards)
        infos.append(statistics)
    joined = {name: np.concatenate([info[name] for info in infos]) for name in infos[0]}
    assert sorted(set(joined["Length"])) == [2.0, 3.0] and (joined["Length"] == 2).sum() == 12
    assert joined["Return"].sum() == pytest.approx(float(torch.cat(rewards).sum()))
    assert (joined["Failed"] == (joined["Return"] == -3.0)).all() and 0 < joined["Failed"].sum() < len(joined["Failed"])
    assert (joined["NonzeroRewards"] == 1).all()
    discounted = joined["Return"] * 0.5 ** (joined["Length"] - 1)
    assert joined["DiscountedReturn"] == pytest.approx(discounted)


def test_ranks_draw_different_actions_and_a_seed_repeats_them() -> None:
    def actions(rank: int) -> list[int]:
        sampler = counting_sampler((50,), steps=40)
        sampler.initialize(agent_of(2, 3), rank=rank, world_size=2)
        taken: list[int] = sampler.obtain_samples(0)[0].actions.tolist()
        return taken

    assert actions(0) == actions(0) != actions(1)


def build_counting() -> tuple[CategoricalAgent, EnvironmentSampler, EpisodeReinforce]:
    sampler = EnvironmentSampler([Counter(3) for _ in range(8)], COUNTING, 6, 7)
    return agent_of(2, 3), sampler, EpisodeReinforce(learning_rate=0.02, entropy_weight=0.01)


def test_policy_learns_through_minibatch_rl_eval(layout: RoundLayout) -> None:
    """The best episode takes action 1 first, the only valid one, then action 2 twice: a return of 5."""
    agent, sampler, algo = build_counting()
    MinibatchRlEval(algo, agent, sampler, 48 * 80, 0, None, 48 * 20, logger=TrainLogger(layout)).train()
    table = progress_rows(layout)
    assert [row["TrajsInEval"] for row in table] == ["8"] * 5 and table[0]["StepsInEval"] == "24"
    assert float(table[-1]["ReturnAverage"]) == 5.0 > float(table[0]["ReturnAverage"])


def test_trajectories_of_all_ranks_are_counted(layout: RoundLayout) -> None:
    agent, sampler, algo = build_counting()
    SyncRl(algo, agent, sampler, 48 * 8, build=build_counting, world_size=2, logger=TrainLogger(layout)).train()
    last = progress_rows(layout)[-1]
    assert (last["CumSteps"], last["CumCompletedTrajs"], last["LengthAverage"]) == ("384", "128", "3.0")


def test_asynchronous_loops_refuse_trajectories_of_several_steps() -> None:
    agent, sampler, algo = build_counting()
    loop = AsyncRl(algo, agent, sampler, 480, build=build_counting, replay=ReplayConfig())
    with pytest.raises(UsageError, match="this loop needs one per sample.*hint: use MinibatchRl or SyncRl"):
        loop.train()


def test_design_environments_are_sampled_step_by_step(env: EnvSpec, layout: RoundLayout) -> None:
    keys = [("type", "mlp"), ("mlp.hidden", 16), ("mlp.hidden", 64), ("mlp.depth", 1), ("mlp.depth", 2)]
    space = ActionSpace(Assignment(key, value) for key, value in keys)
    observer, tensorizer = ExplicitObserver(space), FlatTensorizer()
    template = PredecoderDraft(EnvFeatures.of(env))
    interface = EnvironmentInterface(
        stepper=DesignStepper(space),
        observe=lambda draft: tensorizer.tensorize(observer.observe(draft)),
        valid_actions=space.valid,
        loss=lambda draft: 1.0 - (draft.choices.get("mlp.hidden") == 64),
    )
    sampler = EnvironmentSampler([DesignEnv(template) for _ in range(4)], interface, 5, 1)
    agent = agent_of(len(interface.observe(template)), len(space))
    MinibatchRl(EpisodeReinforce(learning_rate=0.02), agent, sampler, 20 * 10, logger=TrainLogger(layout)).train()
    (row,) = progress_rows(layout)
    assert 1 < float(row["LengthAverage"]) <= 4 and float(row["FailedAverage"]) == 0
    assert int(row["CumCompletedTrajs"]) > 40 and row["CumSteps"] == "200"
    assert {float(row["ReturnMin"]), float(row["ReturnMax"])} == {-1.0, 0.0}
