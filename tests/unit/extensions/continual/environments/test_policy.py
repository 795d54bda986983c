"""The policy over designs, the strategies it is compared with, and the ideator that uses it."""

from __future__ import annotations

import math
import statistics

import pytest
import torch

from autoqec.contracts.dsl import parse_dsl
from autoqec.extensions.continual.environments import HallOfFame, SerialEnvironments
from autoqec.extensions.continual.environments.design import (
    ActionSpace,
    Assignment,
    DesignEnv,
    EnvFeatures,
    PredecoderDraft,
)
from autoqec.extensions.continual.environments.design_search import STRATEGIES, compare, mean_with_interval, run_search
from autoqec.extensions.continual.environments.policy import PolicyLearner, input_size
from autoqec.extensions.continual.environments.policy_ideator import design_from_config, propose
from autoqec.ideators import space
from autoqec.ideators.search_state import with_expected_labels
from tests.support.envs import surface
from tests.support.role_views import ideator_view

ENV = surface(3, 0.01)
FEATURES = EnvFeatures.of(ENV)
ACTION_SPACE = ActionSpace(
    [
        Assignment("type", "mlp"),
        Assignment("type", "gnn"),
        *(Assignment("mlp.hidden", hidden) for hidden in (8, 16, 32, 64)),
        *(Assignment("mlp.depth", depth) for depth in (1, 2, 3)),
        *(Assignment("gnn.layers", layers) for layers in (2, 3)),
    ]
)


def reward(draft):
    """Return a reward with one best design: mlp, hidden 32, depth 3."""
    choices = draft.choices
    loss = 1.0 - 0.4 * (choices["type"] == "mlp")
    loss -= 0.3 * (choices.get("mlp.hidden") == 32) + 0.3 * (choices.get("mlp.depth") == 3)
    return loss, {}


def template():
    return DesignEnv(PredecoderDraft(FEATURES), max_assignments=4)


def learner(seed=0):
    return PolicyLearner(ACTION_SPACE, input_size(template(), ACTION_SPACE), seed=seed)


def batch(size=8, hall_of_fame=2):
    return SerialEnvironments([template() for _ in range(size)], hall_of_fame)


def test_designs_are_complete_and_valid():
    envs = [template() for _ in range(32)]
    learner().design(envs)
    assert all(env.done and env.state.config() for env in envs)
    assert {env.state.choices["type"] for env in envs} == {"mlp", "gnn"}


def test_policy_learns_the_best_design():
    policy, envs = learner(), batch()
    first = statistics.fmean(envs.get_reward(reward)) if policy.design(envs.envs) is None else 0.0
    policy.train(envs, reward, 60)
    last = statistics.fmean(envs.get_reward(reward))
    assert last < first - 0.3
    assert envs.hall_of_fame is not None and envs.hall_of_fame.losses[0] == pytest.approx(0.0)


def test_same_seed_gives_the_same_designs():
    def run(seed):
        policy, envs = learner(seed), batch()
        policy.train(envs, reward, 3)
        return [env.actions for env in envs.envs]

    torch.manual_seed(1)
    first = run(5)
    torch.manual_seed(2)
    assert run(5) == first != run(6)


def test_failed_designs_do_not_change_the_policy():
    policy, envs = learner(), [template() for _ in range(3)]
    policy.design(envs)
    before = [weight.clone() for weight in policy.net.parameters()]
    assert policy.learn(envs, [math.inf, math.nan, math.inf]) == math.inf
    assert all(torch.equal(old, new) for old, new in zip(before, policy.net.parameters(), strict=True))
    assert policy.learn(envs, [math.inf, 0.5, math.inf]) == 0.5
    assert all(weight.isfinite().all() for weight in policy.net.parameters())


def test_hall_of_fame_is_imitated():
    policy, envs, hall_of_fame = learner(), [template() for _ in range(4)], HallOfFame(1)
    policy.design(envs)
    hall_of_fame.add(envs[0], 0.0)
    before = policy.score(policy.read([envs[0]]))[0].item()
    for _ in range(20):
        policy.learn(envs[1:], [1.0, 1.0, 1.0], hall_of_fame)
    assert policy.score(policy.read([envs[0]]))[0].item() > before


def search(name, routine, budget, seed):
    strategy = STRATEGIES[name](ACTION_SPACE, template(), seed)
    return run_search(strategy, batch(min(strategy.batch_size, budget)), routine, budget)


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("budget", [1, 13, 30])
def test_strategies_spend_their_budget_exactly_and_repeatably(name, budget):
    count = [0]

    def counted(draft):
        count[0] += 1
        return reward(draft)

    losses = search(name, counted, budget, 3)
    assert len(losses) == budget == count[0]
    assert search(name, reward, budget, 3) == losses


def test_comparison_has_confidence_intervals():
    table = compare(ACTION_SPACE, template(), reward, budget=20, seeds=range(4))
    assert set(table) == {"random", "evolution", "policy"}
    assert all(row["low"] <= row["mean"] <= row["high"] and row["n"] == 4 for row in table.values())
    assert mean_with_interval([0.5]) == {"mean": 0.5, "n": 1}


def row(number, config, delta, status="ok"):
    empty = dict.fromkeys(("delta_vs_baseline_holdout", "compose_mode", "branch", "verify_verdict"))
    config = parse_dsl(config).config()
    return {
        **empty,
        "round": number,
        "status": status,
        "dsl_config": config,
        "delta_ler": delta,
        "fork_from": "baseline",
        "fork_from_canonical": "baseline",
        "forkable": False,
        "flops_per_syndrome": 1,
        "n_params": 1,
    }


def view(*rows, **more):
    return ideator_view(rows, env=ENV.dump(), baseline_config={"type": "mlp", "mlp": {}}, **more)


def test_ideator_is_a_function_of_the_view():
    template = with_expected_labels(space.TEMPLATES[0].config)
    assert propose(view()).proposal == template
    rows = [row(1, template, 0.01), row(2, {"type": "gnn", "gnn": {}}, None, "train_error")]
    proposal = propose(view(*rows))
    assert proposal == propose(view(*rows)) != propose(view(*rows, seed=2))
    assert space.digest(proposal.proposal) not in {space.digest(each["dsl_config"]) for each in rows}
    assert proposal.source == "policy 2"


def test_ideator_reads_all_detectors_of_a_code_with_one_sector():
    """For a code with one sector, networks read all detectors."""
    first = propose(view(inputs="all")).proposal
    second = propose(view(row(1, first, 0.01), inputs="all")).proposal
    assert first["mlp"]["inputs"] == second[second["type"]]["inputs"] == "all"


def test_ideator_prefers_designs_that_gained():
    """After thirty rounds in which only deep mlps gained, most proposals are deep mlps."""
    rows = [row(1, space.TEMPLATES[0].config, -0.01)]
    for number in range(2, 32):
        kind, deep = ("mlp", "gnn")[number % 2], number % 3 == 0
        block = {"hidden": 64 + number, "depth": 4 if deep else 1} if kind == "mlp" else {"hidden": 8 + number}
        gain = 0.02 if kind == "mlp" and deep else -0.02
        rows.append(row(number, {"type": kind, kind: block}, gain))
    found = [propose(view(*rows, seed=seed)).proposal for seed in range(4)]
    assert sum(config["type"] == "mlp" for config in found) >= 3


def test_designs_off_the_grid_are_read_as_the_nearest_choice():
    action_space = ActionSpace.standard()
    env = DesignEnv(PredecoderDraft(FEATURES), max_assignments=len(action_space))
    config = parse_dsl({"type": "mlp", "mlp": {"hidden": 70, "depth": 2}}).config()
    again = design_from_config(config, action_space, env)
    assert again.done and again.state.choices["mlp.hidden"] == 64
    assert again.state.choices["mlp.depth"] == 2 and "gnn.hidden" not in again.state.choices
