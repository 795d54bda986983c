"""Searches: proposals are valid and new, and depend only on seed and history."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from typing import Any

import optuna
import pytest

from autoqec.contracts.dsl import FAMILIES, flatten, parse_dsl, unflatten, value_at
from autoqec.contracts.env import Constraints, FileNoise, StimFileCode, StimGeneratorCode
from autoqec.contracts.messages import IdeatorResponse
from autoqec.contracts.round import canonical_fork
from autoqec.contracts.views import IdeatorView
from autoqec.decoders import flops
from autoqec.decoders.cost_limits import within_limits
from autoqec.decoders.dsl_compiler import compile_predecoder
from autoqec.ideators import evolve, moves, search_state, space, tpe
from autoqec.ideators import random as uniform
from autoqec.ideators.hybrid import Hybrid
from autoqec.ideators.search_state import SearchState, with_expected_labels
from autoqec.qec.problem import Problem
from autoqec.store.files import load_env
from tests.support.envs import surface
from tests.support.role_views import ideator_view

SURFACE_D7 = Path(__file__).parents[3] / "autoqec/envs/builtin/surface_d7_depol.yaml"
BASELINE = space.TEMPLATES[0].config
SEARCH_STRATEGIES = [pytest.param(tpe.propose, id="tpe"), pytest.param(uniform.propose, id="random")]


def view(history: list[dict[str, Any]], seed: int = 1, **more: Any) -> IdeatorView:
    return ideator_view(history, seed=seed, baseline_config=BASELINE, **more)


def row(number: int, config: dict[str, Any] | None, **more: Any) -> dict[str, Any]:
    base = {
        "round": number,
        "status": "ok",
        "fork_from": "baseline",
        "compose_mode": None,
        "branch": f"exp/r/{number:02d}-x",
        "forkable": True,
        "dsl_config": config,
        "delta_ler": 0.001 * number,
        "flops_per_syndrome": 1000 * number,
        "n_params": 100 * number,
        "verify_verdict": None,
        "delta_vs_baseline_holdout": None,
    }
    base |= more
    base["fork_from_canonical"] = canonical_fork(base["fork_from"])
    return base


def verified(number: int, config: dict[str, Any], delta: float, **more: Any) -> dict[str, Any]:
    return row(number, config, verify_verdict="VERIFIED", delta_vs_baseline_holdout=delta, **more)


def with_keys(config: dict[str, Any], **keys: Any) -> dict[str, Any]:
    flat = flatten(config) | {key.replace("__", "."): value for key, value in keys.items()}
    return space.normalise(unflatten(flat))


def as_row(number: int, reply: IdeatorResponse, **more: Any) -> dict[str, Any]:
    more = {"fork_from": reply.fork_from, "compose_mode": reply.compose_mode} | more
    return row(number, reply.proposal, **more)


@pytest.mark.parametrize("propose", SEARCH_STRATEGIES)
def test_round_one_is_the_template(propose: Any) -> None:
    reply = propose(view([]))
    assert reply.proposal == BASELINE
    assert reply.fork_from == "baseline"


@pytest.mark.parametrize("propose", SEARCH_STRATEGIES)
def test_every_proposal_is_valid_and_new(propose: Any) -> None:
    history: list[dict[str, Any]] = []
    seen = set()
    for number in range(1, 26):
        reply = propose(view(history))
        digest = parse_dsl(reply.proposal).sha256()
        assert digest not in seen
        seen.add(digest)
        verdict = {"verify_verdict": "VERIFIED", "delta_vs_baseline_holdout": 0.001} if number % 3 == 1 else {}
        history.append(as_row(number, reply, **verdict))


def test_configs_are_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each proposal reads the rows of the whole run."""
    parsed = list[Any]()
    monkeypatch.setattr(search_state, "parse_dsl", lambda config: parsed.append(config) or parse_dsl(config))
    rows = [row(1, BASELINE), row(2, with_keys(BASELINE, training__learning_rate=0.002))]
    first = SearchState.read(view(rows))
    parsed.clear()
    again = SearchState.read(view([*map(dict, rows)]))
    assert again.seen_digests == first.seen_digests and rows[1]["dsl_config"] not in parsed


@pytest.mark.parametrize("propose", SEARCH_STRATEGIES)
def test_same_seed_and_history_give_the_same_proposal(propose: Any) -> None:
    history = [verified(1, BASELINE, 0.002), row(2, with_keys(BASELINE, mlp__hidden=300))]
    copy = json.loads(json.dumps(history))
    assert propose(view(history)) == propose(view(copy))
    assert len({propose(view(history, seed=seed)).proposal.__repr__() for seed in range(6)}) > 1


def test_aborted_config_is_proposed_again_a_limited_number_of_times() -> None:
    history = [verified(1, BASELINE, 0.002)]
    wanted = tpe.propose(view(history))
    lost = [as_row(number, wanted, status="orphaned_branch", delta_ler=None) for number in (2, 3)]
    assert tpe.propose(view(history + lost[:1])) == wanted
    assert tpe.propose(view(history + lost)).proposal != wanted.proposal


def test_pending_configs_are_not_proposed_again() -> None:
    history = [row(1, BASELINE)]
    first = tpe.propose(view(history))
    pending = as_row(2, first, status=None)
    assert tpe.propose(view(history, pending=(pending,))).proposal != first.proposal


@pytest.mark.parametrize("propose", [tpe.propose, uniform.propose, evolve.propose, Hybrid(lambda view: None)])
@pytest.mark.parametrize("measured", [0, 10], ids=["nothing measured", "10 measured"])
def test_concurrent_proposals_are_all_different(propose: Any, measured: int) -> None:
    """None of 8 rounds has a result: each proposal differs from all others and from what was measured."""
    rows: list[dict[str, Any]] = []
    for number in range(1, measured + 9):
        reply = propose(view(rows[:measured], pending=tuple(rows[measured:])))
        more: dict[str, Any] = {} if number <= measured else {"status": None, "delta_ler": None, "forkable": False}
        rows.append(as_row(number, reply, **more))
    assert len({space.digest(row["dsl_config"]) for row in rows}) == measured + 8


def test_tpe_treats_pending_rounds_as_running_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Constant liar: the estimator counts running trials among the bad ones, if they reach it as running."""
    studies, liars = [], []
    create, sampler = optuna.create_study, optuna.samplers.TPESampler
    monkeypatch.setattr(optuna, "create_study", lambda **named: studies.append(create(**named)) or studies[-1])
    monkeypatch.setattr(
        optuna.samplers, "TPESampler", lambda **named: liars.append(named["constant_liar"]) or sampler(**named)
    )
    pending = row(2, with_keys(BASELINE, mlp__hidden=200), status=None)
    next(tpe.suggestions(SearchState.read(view([row(1, BASELINE)], pending=(pending,)))))
    states = [trial.state.name for trial in studies[0].trials]
    assert states == ["COMPLETE", "RUNNING", "RUNNING"] and liars == [True]
    assert studies[0].trials[1].params["mlp.hidden"] == 200


def test_large_surface_codes_start_with_shared_weights() -> None:
    """Other codes, and those without another sector, start with the dense network."""
    env, _ = load_env(SURFACE_D7)
    assert isinstance(env.code, StimGeneratorCode)
    large = view([], env=env)
    assert tpe.propose(large).proposal == with_expected_labels(space.LOCAL_TEMPLATE.config)
    assert space.params_of(space.LOCAL_TEMPLATE.config) is not None
    second = moves.next_template(
        SearchState.read(view([row(1, with_expected_labels(space.LOCAL_TEMPLATE.config))], env=env))
    )
    assert second is not None and second.config == with_expected_labels(BASELINE)
    others: tuple[dict[str, Any], ...] = (
        {"code": env.code.model_copy(update={"distance": 5})},
        {"code": env.code.model_copy(update={"task": "color_code:memory_xyz"})},
        {"code": StimFileCode(path="circuit.stim"), "noise": FileNoise()},
    )
    for other in others:
        proposal = tpe.propose(view([], env=env.model_copy(update=other))).proposal
        assert proposal == with_expected_labels(BASELINE), other
    assert space.templates(env.model_copy(update={"backend": "bposd"}), "other_sector") == space.TEMPLATES
    assert space.templates(env, "all") == space.TEMPLATES
    family, _ = load_env(SURFACE_D7.with_name("surface_family.yaml"))
    assert space.templates(family, "other_sector") == (space.LOCAL_TEMPLATE,)


@pytest.mark.parametrize("propose", [tpe.propose, uniform.propose, evolve.propose, Hybrid(lambda view: None)])
def test_proposals_have_expected_labels_where_a_network_reads_the_other_sector(propose: Any) -> None:
    env, _ = load_env(SURFACE_D7)
    tried = [verified(number, with_keys(BASELINE, mlp__hidden=90 + number), 0.002) for number in (1, 2)]

    def labels(history: list[dict[str, Any]], **more: Any) -> str | None:
        return propose(view(history, **{"env": env, **more})).proposal["training"].get("labels")

    for history in ([], tried):
        assert labels(history) == "expected"
        assert labels(history, inputs="all") is None, "one sector: nothing to average over"
        assert labels(history, env=None) is None, "a table of configs that were measured without"
        assert labels(history, pins={"training.labels": "sampled"}) is None


def test_local_networks_read_both_sectors_where_they_are_fine_tuned() -> None:
    env, _ = load_env(SURFACE_D7)
    local = {"type": "local", "training.finetune_share": 1.0}
    both = {"local.inputs": "all_in_finetuning", "training.finetune_ratio": space.LOCAL_FINETUNE_RATIO}
    one = {"local.inputs": "other_sector", "training.finetune_ratio": None}
    cases: tuple[tuple[dict[str, Any], dict[str, Any], dict[str, Any]], ...] = (
        ({}, {}, both),
        ({"training.finetune_share": 0.0}, {}, one),
        ({}, {"pins": {"output_mode": "hard_flip"}}, one),
        ({}, {"env": env.model_copy(update={"backend": "bposd", "baselines": ("bposd0",)})}, one),
        ({}, {"gate_available": False}, one),
        ({}, {"pins": {"type": "local", "local.inputs": "other_sector"}}, both | {"local.inputs": "other_sector"}),
        ({}, {"pins": {"training.finetune_ratio": 2.0}}, both | {"training.finetune_ratio": 2.0}),
        ({}, {"inputs": "all"}, {"local.inputs": "all", "training.finetune_ratio": None}),
    )
    for params, about, expected in cases:
        config = SearchState.read(view([], **({"env": env} | about))).build(local | params)
        assert config is not None
        flat = flatten(config)
        assert {key: flat.get(key) for key in expected} == expected, (params, about)


def test_equivalent_config_is_not_new() -> None:
    """A learning rate of fine-tuning has no effect when fine-tuning is off."""
    tried = with_keys(BASELINE, training__finetune_share=0.0)
    same = with_keys(tried, training__finetune_learning_rate=1e-3, training__loop="minibatch_eval")
    for state in (
        SearchState.read(view([row(1, tried)])),
        SearchState.read(view([], pending=(row(1, tried),))),
    ):
        assert not state.is_new(tried) and not state.is_new(same)
        assert state.is_new(with_keys(same, training__finetune_share=0.5))
    conv = space.normalise({"type": "conv", "conv": {"layers": 1}})
    known = SearchState.read(view([row(1, conv)]))
    assert not known.is_new(with_keys(conv, conv__residual=False)) and known.is_new(with_keys(conv, conv__kernel=5))


def test_failed_rows_and_rows_outside_the_space_are_accepted() -> None:
    history = [
        row(1, BASELINE, status="compile_error", delta_ler=None, flops_per_syndrome=None, n_params=None),
        row(2, None, status="compile_error", delta_ler=None),
        row(3, with_keys(BASELINE, mlp__inputs="all")),
        row(4, with_keys(BASELINE, mlp__hidden=4)),
    ]
    history += [row(number, space.build(next(moves.draw(_state(number))))) for number in range(5, 14)]
    assert parse_dsl(tpe.propose(view(history)).proposal)


def _state(seed: int) -> SearchState:
    return SearchState.read(view([], seed=seed))


def test_tpe_finds_small_learning_rates() -> None:
    """Only small learning rates gain, so small ones are proposed."""
    history = []
    for number, params in enumerate(itertools.islice(moves.draw(_state(3)), 60), start=1):
        gain = -params["training.learning_rate"]
        history.append(row(number, space.build(params), delta_ler=gain, flops_per_syndrome=1, n_params=1))
    rates = [
        next(tpe.suggestions(SearchState.read(view(history, seed=s))))["training.learning_rate"] for s in range(12)
    ]
    assert sorted(rates)[len(rates) // 2] < 1.5e-3  # the middle of uniform draws is 2.2e-3


def test_extension_changes_one_or_two_keys_of_a_verified_branch() -> None:
    for seed in range(40):
        state = SearchState.read(view([verified(1, BASELINE, 0.002)], seed=seed))
        move = moves.extend(state)
        assert move is not None and move.fork_from == "exp/r/01-x"
        keys = set(space.changed_keys(move.config, BASELINE)) - {"training.init"}
        assert 1 <= len(keys) <= 2
        if move.config["training"]["init"] == "parent":
            same_network = all(key == "gate" or key.startswith("training.") for key in keys)
            assert same_network, "weights fit only where the architecture stays"


def test_only_existing_verified_branches_are_extended() -> None:
    gone = verified(1, BASELINE, 0.002, forkable=False)
    assert moves.extend(SearchState.read(view([gone, row(2, with_keys(BASELINE, mlp__hidden=300))]))) is None


def test_composition_merges_children_that_changed_different_keys() -> None:
    parent = verified(1, BASELINE, 0.001)
    left = verified(2, with_keys(BASELINE, mlp__hidden=384), 0.002, fork_from="exp/r/01-x")
    right = verified(3, with_keys(BASELINE, training__loss="focal"), 0.003, fork_from="exp/r/01-x")
    move = moves.compose(SearchState.read(view([parent, left, right])))
    assert move is not None and move.compose_mode == "pure"
    assert move.fork_from == ("exp/r/03-x", "exp/r/02-x"), "the better one leads"
    assert move.config == with_keys(BASELINE, mlp__hidden=384, training__loss="focal")
    rival = verified(3, with_keys(BASELINE, mlp__hidden=512), 0.003, fork_from="exp/r/01-x")
    assert moves.compose(SearchState.read(view([parent, left, rival]))) is None
    stranger = verified(3, right["dsl_config"], 0.003)
    assert moves.compose(SearchState.read(view([parent, left, stranger]))) is None, "children of different parents"


def test_parent_set_is_composed_once_in_any_order() -> None:
    parent = verified(1, BASELINE, 0.001)
    left = verified(2, with_keys(BASELINE, mlp__hidden=384), 0.002, fork_from="exp/r/01-x")
    right = verified(3, with_keys(BASELINE, training__loss="focal"), 0.003, fork_from="exp/r/01-x")
    tried = row(4, None, fork_from=("exp/r/02-x", "exp/r/03-x"), compose_mode="pure", status="compose_conflict")
    assert moves.compose(SearchState.read(view([parent, left, right, tried]))) is None


def test_tpe_extends_and_composes() -> None:
    parent = verified(1, BASELINE, 0.001)
    left = verified(2, with_keys(BASELINE, mlp__hidden=384), 0.002, fork_from="exp/r/01-x")
    right = verified(3, with_keys(BASELINE, training__loss="focal"), 0.003, fork_from="exp/r/01-x")
    forks = {type(tpe.propose(view([parent, left, right], seed=seed)).fork_from) for seed in range(12)}
    sources = {tpe.propose(view([parent, left, right], seed=seed)).fork_from for seed in range(12)}
    assert tuple in forks and "baseline" in sources and len(sources) > 2


@pytest.mark.parametrize("dimension", space.SEARCH_SPACE, ids=lambda dimension: dimension.key)
def test_every_dimension_names_a_config_key_with_valid_values(dimension: space.Dimension) -> None:
    rng = random.Random(0)
    for _ in range(20):
        params = {"type": dimension.families[0] if dimension.families else "mlp"}
        params |= {
            dimension.key: dimension.draw(rng)
            for dimension in space.active_dimensions(params["type"])
            if dimension.key != "type"
        }
        config = space.build(params)
        assert space.params_of(config) == params
        step = dimension.step(value_at(config, dimension.key), rng)
        assert step is not None and step != value_at(config, dimension.key) and dimension.contains(step)


def test_slug_accepts_any_text() -> None:
    for text in ("", "修正", "--", "A" * 99, "r1-finetune_share-batch_size-and-more-words-here"):
        assert IdeatorResponse.model_validate({"hypothesis": "x", "slug": moves.slug(text), "proposal": {}}), text


@pytest.mark.parametrize("propose", SEARCH_STRATEGIES)
def test_inputs_are_all_for_a_code_with_one_sector(propose: Any) -> None:
    first = propose(view([], inputs="all"))
    second = propose(view([as_row(1, first)], inputs="all"))
    assert {reply.proposal[reply.proposal["type"]]["inputs"] for reply in (first, second)} == {"all"}


@pytest.mark.parametrize("propose", SEARCH_STRATEGIES)
def test_gate_is_searched_only_where_the_env_has_a_gap(propose: Any) -> None:
    for available in (True, False):
        history: list[dict[str, Any]] = []
        for number in range(1, 13):
            reply = propose(view(history, gate_available=available))
            history.append(as_row(number, reply, verify_verdict="VERIFIED", delta_vs_baseline_holdout=0.001 * number))
        gates = {row["dsl_config"].get("gate") for row in history}
        assert len(gates) > 2 if available else gates == {None}


def test_gates_that_lose_the_gain_are_not_searched() -> None:
    """At d=7 a gate of 3 nats loses half of the gain, one of 2 nats all of it."""
    gate = space.DIMENSION_BY_KEY["gate"]
    drawn = [gate.draw(random.Random(seed)) for seed in range(300)]
    stepped = [gate.step(value, random.Random(seed)) for seed, value in enumerate(drawn)]
    assert min(drawn) >= 4 and max(drawn) > 8 and min(value for value in stepped if value is not None) >= 4
    assert all(gate.contains(template.config["gate"]) for template in (*space.TEMPLATES, space.LOCAL_TEMPLATE))


def test_rounds_without_a_gate_inform_the_search_for_one() -> None:
    ungated = {key: value for key, value in BASELINE.items() if key != "gate"}
    params = SearchState.read(view([row(1, ungated)])).params_of(ungated)
    assert params is not None and "gate" not in params
    assert "gate" in next(tpe.suggestions(SearchState.read(view([row(1, ungated)]))))


@pytest.mark.parametrize("family", FAMILIES)
def test_full_shot_has_the_cost_that_a_round_is_refused_for(family: str) -> None:
    problem = Problem.from_env(surface(3))
    model = compile_predecoder(parse_dsl({"type": family, family: {}}), problem, seed=0)
    assert flops.count(model, problem.n_detectors, full_shot_only=True) == flops.count(model, problem.n_detectors)


def test_network_is_counted_once_whatever_its_training_and_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    counted, count = list[object](), flops.count

    def counting(model: Any, *arguments: Any, **named: Any) -> Any:
        counted.append(model)
        return count(model, *arguments, **named)

    monkeypatch.setattr(flops, "count", counting)
    env = surface(3).model_copy(update={"constraints": Constraints(max_params=20_001)})
    faster = {**BASELINE["training"], "lr": 0.0123}
    wider = {**BASELINE[BASELINE["type"]], "hidden": 7}
    for config in (BASELINE, BASELINE | {"training": faster}, BASELINE | {"gate": 7.5}):
        within_limits(config, env)
    assert len(counted) == 1
    within_limits(BASELINE | {BASELINE["type"]: wider}, env)
    assert len(counted) == 2


@pytest.mark.parametrize("propose", [*SEARCH_STRATEGIES, pytest.param(evolve.propose, id="evolve")])
def test_searches_propose_only_networks_within_the_limits_of_the_env(propose: Any) -> None:
    """Limits that the templates exceed, and most draws do too."""
    env = surface(3).model_copy(update={"constraints": Constraints(max_params=20_000, max_flops_per_syndrome=40_000)})
    assert not within_limits(BASELINE, env) and within_limits(BASELINE, surface(3)) and within_limits(BASELINE, None)
    history: list[dict[str, Any]] = []
    for number in range(1, 4):
        answer = propose(view(history, env=env))
        assert within_limits(dict(answer.proposal), env)
        history.append(as_row(number, answer))
