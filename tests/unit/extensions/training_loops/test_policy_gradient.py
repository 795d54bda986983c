"""Policy gradient for predecoders that flip detection events: rewards, gradients, and learning."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from autoqec.contracts.dsl import PolicyConfig, ReplayConfig, SyncConfig, parse_dsl
from autoqec.contracts.env import EnvSpec
from autoqec.contracts.profiles import PROFILES
from autoqec.errors import ContractError
from autoqec.extensions.training_loops.policy_gradient import PolicyGradient, PolicySampler, flip_log_prob
from autoqec.extensions.training_loops.replay_buffer import ReplayBuffer
from autoqec.qec import backends, sampling
from autoqec.qec.problem import Problem
from autoqec.runner import AsyncRl, MinibatchRl, SyncRl
from autoqec.runner.logger import TrainLogger
from autoqec.runner.samplers import partition_seed_range
from autoqec.runner.samples import Samples
from autoqec.runner.training import TrainingBudget, phases
from autoqec.store.layout import RoundLayout
from tests.support.loops import FLIPS
from tests.unit.runner.conftest import make_agent

REWARD = {"flip_cost": 0.01, "temperature": 0.5}


def acting(problem: Problem, **more: Any) -> PolicySampler:
    return PolicySampler(problem, 256, 3, **{"gap": 6.0, **REWARD, **more})


def started(problem: Problem, **more: Any) -> PolicySampler:
    sampler = acting(problem, **more)
    agent = make_agent(problem, config=FLIPS)
    agent.model.prior += 2.0  # an eager policy
    sampler.initialize(agent)
    agent.sample_mode(0)
    return sampler


def test_reward_is_success_with_flips_minus_success_without(problem: Problem) -> None:
    sampler = started(problem)
    sampler.batch_size = sampler.shots.batch_size = 1024
    samples, infos = sampler.obtain_samples(0)
    assert samples.flips is not None and samples.rewards is not None and samples.log_probs is not None
    assert set(np.unique(samples.rewards)) == {-1.0, 0.0, 1.0}, "frequent flips break some shots and fix others"
    assert (samples.rewards == infos["PlainFail"].astype(int) - infos["PredecoderFail"]).all()
    assert infos["Return"] == pytest.approx(samples.rewards - 0.01 * samples.flips.sum(1))
    # Decoded again through the soft interface: ±1 stands for the same flips.
    flipper = backends.make_soft_backend(problem, "hard_flip")
    assert isinstance(flipper, backends.HardFlipBackend)
    packed = sampling.pack(samples.detections)
    cleaned, _ = flipper.apply(packed, samples.flips.astype(bool))
    assert (infos["Residual"] == sampling.unpack(cleaned, problem.n_detectors).sum(1)).all()
    answers = flipper.decode_soft(packed, samples.flips.astype(np.float32) * 2 - 1)
    gap = np.abs(infos["Gap"])
    assert gap.max() < 6.0, "shots near failure"
    plain_answers = flipper.decode(packed)
    disagree = (answers != plain_answers).any(axis=1)
    assert (disagree == (samples.rewards != 0)).all(), "one observable: another answer is a gain or a loss"


def test_without_flips_every_reward_is_zero(problem: Problem) -> None:
    sampler = started(problem)
    sampler.agent.model.prior -= 100.0
    samples, infos = sampler.obtain_samples(0)
    assert not samples.rewards.any() and not infos["Flips"].any() and not infos["Return"].any()
    assert (infos["Residual"] == infos["Detections"]).all()


def test_actions_come_from_the_policy_at_its_temperature(problem: Problem) -> None:
    for temperature in (0.5, 2.0):
        sampler = started(problem, temperature=temperature)
        samples, infos = sampler.obtain_samples(0)
        logits = torch.from_numpy(sampler.agent.infer(samples.detections)) / temperature
        chance = torch.sigmoid(logits)
        assert infos["Flips"].mean() == pytest.approx(float(chance.sum(1).mean()), rel=0.1)
        by_hand = torch.log(torch.where(torch.from_numpy(samples.flips) > 0, chance, 1 - chance)).sum(1)
        assert samples.log_probs == pytest.approx(by_hand.numpy(), rel=1e-3)


def gradient(problem: Problem, samples: Samples, **more: Any) -> tuple[torch.Tensor, dict[str, float]]:
    """Return d loss / d log-odds, summed over shots, and the logged figures."""
    agent, algo = make_agent(problem, config=FLIPS), PolicyGradient(learning_rate=1e-3, **{**REWARD, **more})
    algo.agent = agent
    agent.model.prior.requires_grad_(True)
    loss, figures = algo.loss(samples, len(samples))
    loss.backward()
    assert agent.model.prior.grad is not None
    return agent.model.prior.grad, figures


def test_gradient_is_the_score_times_the_reward_and_the_exact_cost(problem: Problem) -> None:
    n, faults = 4, problem.n_mechanisms
    detections = np.zeros((n, problem.n_detectors), np.uint8)
    agent = make_agent(problem, config=FLIPS)
    logits = torch.from_numpy(agent.infer(detections)) / 0.5
    flips = np.zeros((n, faults), np.uint8)
    flips[0, 5] = flips[1, 6] = 1
    rewards = np.array([1, -1, 0, 0], np.float32)
    old = flip_log_prob(logits, torch.from_numpy(flips)).numpy()
    chance = torch.sigmoid(logits)
    score = (torch.from_numpy(flips) - chance) / 0.5
    expected = -(torch.from_numpy(rewards)[:, None] * score).sum(0) / n
    found, figures = gradient(problem, Samples(detections, flips=flips, rewards=rewards, log_probs=old), flip_cost=0.0)
    assert torch.allclose(found, expected, atol=1e-6) and figures["weight"] == pytest.approx(1.0, rel=1e-4)
    assert found[5] < 0 < found[6], "what was rewarded becomes likelier, what was punished less likely"
    nothing = Samples(detections, flips=flips, rewards=0 * rewards, log_probs=old)
    paid, _ = gradient(problem, nothing, flip_cost=0.3)
    assert torch.allclose(paid, 0.3 * (chance * (1 - chance)).sum(0) / 0.5 / n, atol=1e-6)
    stale = Samples(detections, flips=flips, rewards=rewards, log_probs=old - 5)
    assert gradient(problem, stale)[1]["weight"] == pytest.approx(2.0), "a stale action counts twice at most"


def test_policy_unlearns_wrong_flips(problem: Problem, layout: RoundLayout) -> None:
    agent = make_agent(problem, config=FLIPS)
    bad = int(np.nonzero(np.asarray(problem.L.todense())[0])[0][0])
    agent.model.prior[bad] = 1.0
    algo = PolicyGradient(learning_rate=0.02, flip_cost=0.0, temperature=0.5)
    before = agent.infer(np.zeros((1, problem.n_detectors), np.uint8))[0, bad]
    sampler = acting(problem, flip_cost=0.0)
    MinibatchRl(
        algo=algo, agent=agent, sampler=sampler, logger=TrainLogger(layout), n_steps=256 * 25, log_interval_steps=256
    ).train()
    after = agent.infer(np.zeros((1, problem.n_detectors), np.uint8))[0, bad]
    assert before == pytest.approx(1.0) and after < 0
    table = layout.progress.read_text().splitlines()
    column = table[0].split(",").index("ReturnAverage")
    returns = [float(line.split(",")[column]) for line in table[1:]]
    assert returns[-1] > returns[0] + 0.02


def test_codes_without_two_classes_use_unselected_shots(env: EnvSpec) -> None:
    problem = Problem.from_env(env.model_copy(update={"backend": "bposd", "baselines": ("bposd0",)}))
    sampler = acting(problem)
    sampler.initialize(make_agent(problem, config={**FLIPS, "mlp": {"hidden": 8, "inputs": "all"}}))
    _, infos = sampler.obtain_samples(0)
    assert "Gap" not in infos and len(infos["Return"]) == 256


def test_ranks_draw_from_disjoint_seeds_of_the_band_and_actions_too(problem: Problem) -> None:
    band = (1000, 1102)
    for world in (1, 2, 7, 103):
        lanes = [partition_seed_range(band, rank, world) for rank in range(world)]
        assert lanes[0][0] == 1000 and lanes[-1][1] == 1102
        assert all(high + 1 == low for (_, high), (low, _) in zip(lanes, lanes[1:], strict=False))
    with pytest.raises(Exception, match="fewer seeds than 104 samplers need"):
        partition_seed_range(band, 0, 104)
    seeds = []
    for rank in range(3):
        sampler = acting(problem)
        sampler.initialize(make_agent(problem, config=FLIPS), rank=rank, world_size=3)
        seeds.append({sampler.train_seed("actions"), sampler.shots.train_seed(0)})
        low, high = partition_seed_range(problem.env.seed_policy.train, rank, 3)
        assert all(low <= seed <= high for seed in seeds[-1])
    assert len(set.union(*seeds)) == 6


def config(**training: Any) -> dict[str, Any]:
    return {**FLIPS, "training": training}


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (config(loop="async", replay={"ratio": 0}), "training.replay.ratio"),
        (config(loop="async", replay={"ratio": -2}), "greater than 0"),
        (config(loop="async", replay={"shots": 64}, batch_size=128), "batch_size 128 is larger than the replay buffer"),
        (config(loop="async"), "the block `replay` belongs to the loops async and async_eval"),
        (config(loop="sync"), "the block `sync` belongs to the loops sync and sync_eval"),
        (config(sync={}), "the loop is minibatch"),
        (config(replay={}), "the loop is minibatch"),
        ({**FLIPS, "output_mode": "soft_priors", "training": {"policy_gradient": {}}}, "set `output_mode: hard_flip`"),
    ],
)
def test_contradictory_config_is_refused(bad: dict[str, Any], message: str) -> None:
    with pytest.raises(ContractError) as refusal:
        parse_dsl(bad)
    assert message in str(refusal.value) and "\n" not in str(refusal.value)


def test_absent_blocks_do_not_change_the_config_hash() -> None:
    """Tables of measured configs are keyed by it."""
    assert set(parse_dsl(FLIPS).config()["training"]) == {
        "loop", "init", "loss", "learning_rate", "batch_size", "weight_decay",
        "finetune_learning_rate", "finetune_share", "finetune_gap",
    }  # fmt: skip


def test_every_option_of_the_loops_reaches_its_parameter(problem: Problem) -> None:
    """The effect of each option is tested with replay, throttle, ranks and policy."""
    assert set(SyncConfig.model_fields) == {"ranks", "backend"}
    assert set(ReplayConfig.model_fields) == {"ratio", "shots", "samplers", "throttle", "near_failure"}
    assert set(PolicyConfig.model_fields) == {"flip_cost", "temperature"}
    ranks = parse_dsl(config(loop="sync", sync={"ranks": 3}))
    plan = phases(problem, ranks, PROFILES["smoke"], TrainingBudget(512, 512), 0)
    options = SyncRl.options(ranks.training, plan[0].build)
    assert (options["world_size"], options["backend"], options["build"].phase) == (3, "gloo", "training")
    apart = parse_dsl(config(loop="async", replay={"near_failure": 0.5}, policy_gradient=REWARD))
    labels, reward = phases(problem, apart, PROFILES["smoke"], TrainingBudget(512, 512), 0)
    assert AsyncRl.options(apart.training, labels.build)["replay"] is apart.training.replay
    assert isinstance(reward.sampler, PolicySampler) and isinstance(reward.algo, PolicyGradient)
    for part in (reward.sampler, reward.algo):
        assert {name: getattr(part, name) for name in REWARD} == REWARD
    agent, sampler, algo = reward.build()
    assert isinstance(sampler, PolicySampler) and isinstance(algo, PolicyGradient)
    labels.sampler.initialize(agent)
    assert "Gap" in labels.sampler.obtain_samples(0)[1], "replay can only prefer what it knows the gap of"
    assert ReplayBuffer(apart.training.replay.shots, {}, {}).size == 32_768
    assert agent.output_mode == "hard_flip"
