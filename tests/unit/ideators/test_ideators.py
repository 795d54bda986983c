"""Evolution, hybrid and replay ideators."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from autoqec.contracts.dsl import parse_dsl
from autoqec.contracts.messages import IdeatorResponse
from autoqec.contracts.round import canonical_fork
from autoqec.contracts.views import IdeatorView
from autoqec.errors import UsageError
from autoqec.ideators import evolve, space, tpe
from autoqec.ideators.hybrid import Hybrid
from autoqec.ideators.replay import ReplayIdeator
from autoqec.ideators.search_state import SearchState
from tests.support import rounds
from tests.support.role_views import ideator_view

BASELINE = space.TEMPLATES[0].config


def view(history: list[dict[str, Any]], seed: int = 1, **more: Any) -> IdeatorView:
    return ideator_view(history, seed=seed, baseline_config=BASELINE, **more)


def measured(number: int, reply: IdeatorResponse, gain: float | None, **more: Any) -> dict[str, Any]:
    base = {
        "round": number,
        "status": "ok" if gain is not None else "train_error",
        "fork_from": reply.fork_from,
        "fork_from_canonical": canonical_fork(reply.fork_from),
        "compose_mode": reply.compose_mode,
        "branch": f"exp/r/{number:02d}-x",
        "forkable": gain is not None,
        "dsl_config": reply.proposal,
        "delta_ler": gain,
        "flops_per_syndrome": 1000,
        "n_params": 100,
        "verify_verdict": None,
        "delta_vs_baseline_holdout": None,
    }
    return base | more


def searched(propose: Any, rounds: int, gain: Any, seed: int = 1) -> list[dict[str, Any]]:
    history: list[dict[str, Any]] = []
    for number in range(1, rounds + 1):
        reply = propose(view(history, seed))
        history.append(measured(number, reply, gain(reply.proposal)))
    return history


def small_rates_pay(config: dict[str, Any]) -> float:
    return -float(config["training"]["learning_rate"])


def test_evolution_depends_on_history_alone_and_repeats_no_config() -> None:
    history = searched(evolve.propose, 40, small_rates_pay)
    digests = [parse_dsl(row["dsl_config"]).sha256() for row in history]
    assert len(set(digests)) == 40 and history[0]["dsl_config"] == BASELINE
    copy = json.loads(json.dumps(history[:30]))
    assert evolve.propose(view(copy)).proposal == history[30]["dsl_config"]


def test_children_fork_their_parent_and_differ_in_one_or_two_keys() -> None:
    history = searched(evolve.propose, 30, small_rates_pay)
    by_branch = {row["branch"]: row for row in history}
    children = [row for row in history if row["fork_from"] != "baseline"]
    assert len(children) > 15
    for child in children:
        parent = by_branch[child["fork_from"]]["dsl_config"]
        if child["dsl_config"]["type"] == parent["type"]:
            assert 1 <= len(space.changed_keys(child["dsl_config"], parent)) <= 2


def test_evolution_finds_the_better_family() -> None:
    late = [
        row["dsl_config"]["training"]["learning_rate"]
        for seed in range(3)
        for row in searched(evolve.propose, 60, small_rates_pay, seed)[-15:]
    ]
    assert sorted(late)[len(late) // 2] < 1.5e-3  # the middle of uniform draws is 2.2e-3


def test_evolution_draws_uniformly_without_measured_parents() -> None:
    history = searched(evolve.propose, 15, lambda config: None)
    assert all(row["fork_from"] == "baseline" for row in history)


def test_parent_is_not_dominated_in_its_sample() -> None:
    reply = tpe.propose(view([]))
    cheap = measured(1, reply, 0.001, flops_per_syndrome=10)
    good = measured(2, reply, 0.004)
    beaten = measured(3, reply, 0.002)
    assert evolve.best_ranked([beaten, cheap, good]) is good
    assert evolve.best_ranked([beaten, cheap, measured(4, reply, 0.0, flops_per_syndrome=9000)]) is beaten


def test_mutation_to_a_new_family_keeps_training_keys() -> None:
    params = space.params_of(BASELINE)
    assert params is not None
    for seed in range(200):
        child = evolve.mutate(params, random.Random(seed))
        if child["type"] != "mlp":
            assert set(child) == {dimension.key for dimension in space.active_dimensions(child["type"])}
            assert sum(child[key] != params[key] for key in params if key.startswith("training.")) <= 1
            break
    else:
        pytest.fail("no mutant changed its family")


def useless(view: dict[str, Any]) -> None:
    return None


def test_hybrid_without_an_answer_equals_its_search() -> None:
    hybrid = Hybrid(useless)
    history = searched(hybrid, 15, small_rates_pay)
    assert [row["dsl_config"] for row in history] == [
        row["dsl_config"] for row in searched(tpe.propose, 15, small_rates_pay)
    ]


def test_hybrid_asks_the_model_on_a_fixed_share_of_rounds() -> None:
    reply = tpe.propose(view([]))
    uses_model = []
    for seed in range(10):
        history: list[dict[str, Any]] = []
        for number in range(1, 41):
            uses_model.append(Hybrid(useless).uses_model(SearchState.read(view(history, seed))))
            history.append(measured(number, reply, 0.0))
    assert 0.22 < sum(uses_model) / len(uses_model) < 0.38
    assert not any(uses_model[::40]), "round 1 is the template"
    assert len({tuple(uses_model[at : at + 40]) for at in range(0, 400, 40)}) == 10


def test_hybrid_shows_the_state_of_the_search_to_the_model() -> None:
    seen: list[IdeatorView] = []

    def model(view: IdeatorView) -> IdeatorResponse:
        seen.append(view)
        return tpe.propose(view)

    hybrid = Hybrid(model, share=1.0)
    history = searched(hybrid, 12, small_rates_pay)
    state = seen[-1].sampler
    best_ranked = max(history[:-1], key=lambda row: row["delta_ler"])
    assert state["measured"] == 11 and best_ranked["round"] in state["good rounds"]
    assert state["its own next proposal"] and "training.learning_rate" in state["their ranges"]
    assert hybrid(view(history)).source.startswith("hybrid tpe")
    json.dumps(state)


def older() -> list[Any]:
    wide = {**BASELINE, "mlp": {**BASELINE["mlp"], "hidden": 99}}
    tuned = {**wide, "training": {**wide["training"], "init": "parent", "learning_rate": 0.002}}
    return [
        rounds.row(1, dsl_config=BASELINE),
        rounds.row(2, status="orphaned_branch", status_reason="lost", verify_verdict=None),
        rounds.row(3, dsl_config=wide, branch=rounds.branch(3, "wide"), fork_from=rounds.branch(1),
                   fork_from_canonical=rounds.branch(1)),
        rounds.row(4, dsl_config=tuned, fork_from=rounds.branch(3, "wide"),
                   fork_from_canonical=rounds.branch(3, "wide")),
    ]  # fmt: skip


def test_replay_keeps_order_and_maps_parents_to_new_branches() -> None:
    replay, history = ReplayIdeator(older()), []
    for number in (1, 2, 3):
        history.append(measured(number, replay(view(history)), 0.001))
    assert [row["dsl_config"] for row in history] == [row.dsl_config for row in older() if row.status == "ok"]
    assert [row["fork_from"] for row in history] == ["baseline", "exp/r/01-x", "exp/r/02-x"]
    with pytest.raises(UsageError, match="3 proposals"):
        replay(view(history))


def test_replay_starts_from_the_baseline_without_the_parents_branch() -> None:
    replay, history = ReplayIdeator(older()), []
    history.append(measured(1, replay(view(history)), 0.001))
    history.append(measured(2, replay(view(history)), None))
    reply = replay(view(history))
    assert reply.fork_from == "baseline" and reply.proposal["training"]["init"] == "fresh"
    lost = measured(3, reply, None, status="orphaned_branch")
    assert replay(view([*history, lost])).proposal == reply.proposal, "a lost round is asked for again"


def test_replay_keeps_slugs() -> None:
    replay = ReplayIdeator(older())
    first = replay(view([]))
    assert first.slug == "try" and replay(view([measured(1, first, 0.0)])).slug == "wide"


def test_children_keep_the_inputs_of_the_env() -> None:
    history = searched(evolve.propose, 20, small_rates_pay)
    child = evolve.propose(view(history, inputs="all")).proposal
    assert child[child["type"]]["inputs"] == "all"
