"""Designing predecoders: drafts, observations, scoring routines, and the text environment."""

from __future__ import annotations

import json
import math
import pickle
import re
import threading

import matplotlib.pyplot as plt
import pytest
import torch

from autoqec.contracts.dsl import parse_dsl, value_at
from autoqec.contracts.env import Constraints
from autoqec.errors import ContractError, UsageError
from autoqec.extensions.continual.environments import HallOfFame, ParallelEnvironments, SerialEnvironments
from autoqec.extensions.continual.environments.datasets import build_dataset, parse_dataset_config
from autoqec.extensions.continual.environments.design import (
    ActionSpace,
    Assignment,
    DesignEnv,
    DesignStepper,
    EnvFeatures,
    ExplicitObserver,
    FlatTensorizer,
    PredecoderDraft,
    constant_keys,
    grid_values,
)
from autoqec.extensions.continual.environments.design_text import DesignTextEnv
from autoqec.extensions.continual.environments.routines import (
    ScreenRoutine,
    TabularRoutine,
    downsample,
    loss_of,
    score_of_loss,
)
from autoqec.ideators import space
from autoqec.store import files
from tests.suites import environment_suite
from tests.support.envs import surface

ENV = surface(3, 0.01)
FEATURES = EnvFeatures.of(ENV)
ACTION_SPACE = ActionSpace(
    [
        Assignment("type", "mlp"),
        Assignment("type", "gnn"),
        Assignment("mlp.hidden", 8),
        Assignment("mlp.hidden", 16),
        Assignment("gnn.layers", 2),
        Assignment("training.batch_size", 256),
    ]
)


def index(text):
    return [str(assignment) for assignment in ACTION_SPACE.assignments].index(text)


def draft(**choices):
    return PredecoderDraft(FEATURES, {key.replace("__", "."): value for key, value in choices.items()})


def row(hidden, fixed, broken, **more):
    config = parse_dsl({"type": "mlp", "mlp": {"hidden": hidden}, "training": {"batch_size": 256}}).config()
    counts = {"val_shots": 10_000, "val_errors_plain": 600, "val_errors_predecoder": 600 - fixed + broken}
    counts |= {"val_fixed": fixed, "val_broken": broken}
    return {"dsl_config": config, "status": "ok", "n_params": 1000, "flops_per_syndrome": 2000, **counts, **more}


def table(tmp_path, *rows):
    path = tmp_path / "table.jsonl"
    path.write_text("".join(json.dumps(entry) + "\n" for entry in rows or (row(8, 200, 100), row(16, 300, 100))))
    return path


def test_type_is_chosen_first_and_keys_of_other_families_are_absent():
    design, stepper = draft(), DesignStepper(ACTION_SPACE)
    assert [str(c) for c, ok in zip(ACTION_SPACE.assignments, ACTION_SPACE.valid(design), strict=True) if ok] == [
        "type = mlp",
        "type = gnn",
    ]
    stepper.step(design, index("type = mlp"))
    for text in ("gnn.layers = 2", "type = gnn"):
        with pytest.raises(UsageError, match="cannot come next"):
            stepper.step(design, index(text))
    stepper.step(design, index("mlp.hidden = 16"))
    with pytest.raises(UsageError, match=r"mlp\.hidden = 8"):
        stepper.step(design, index("mlp.hidden = 8"))
    with pytest.raises(UsageError, match="99"):
        stepper.step(design, 99)
    stepper.step(design, index("stop"))
    assert not any(ACTION_SPACE.valid(design)) and design.config()["mlp"]["hidden"] == 16


def test_signature_does_not_depend_on_the_order_of_choices():
    assert draft(type="mlp").signature == draft(type="mlp", mlp__hidden=256).signature
    assert draft(type="mlp", mlp__hidden=8).signature != draft(type="mlp").signature
    assert draft(type="gnn", mlp__hidden=8).signature == draft(type="gnn").signature
    assert draft().signature != draft(training__batch_size=256).signature
    with pytest.raises(ContractError, match="no `type`"):
        draft().config()


def test_every_choice_of_the_standard_library_builds():
    action_space = ActionSpace.standard(grid=2)
    for family in space.SEARCH_SPACE[0].choices:
        for assignment in action_space.assignments[:-1]:
            design = PredecoderDraft(FEATURES, {"type": family})
            if action_space.valid(design)[action_space.assignments.index(assignment)]:
                design.choices[assignment.key] = assignment.value
                assert value_at(design.config(), assignment.key) == assignment.value
    assert grid_values(space.DIMENSION_BY_KEY["mlp.hidden"], 2) == (64, 768)
    with pytest.raises(UsageError, match="twice"):
        ActionSpace([Assignment("type", "mlp"), Assignment("type", "mlp")])


def test_episode_ends_on_stop_on_budget_and_when_complete():
    stepper = DesignStepper(ACTION_SPACE)
    env = DesignEnv(draft(), max_assignments=2)
    start = env.reset()
    assert env.step(index("type = mlp"), stepper, raw_action=0.5) == (start, False)
    assert env.step(index("mlp.hidden = 8"), stepper) == (start, True)
    assert (env.get_action(0), env.get_raw_action(0), env.get_raw_action(1)) == (index("type = mlp"), 0.5, None)
    with pytest.raises(UsageError, match="finished"):
        env.step(index("stop"), stepper)
    assert env.reset().choices == {} and start.choices != {} and not env.done
    env.step(index("type = gnn"), stepper)
    assert env.step(index("stop"), stepper)[1]
    wide = DesignEnv(draft(), max_assignments=99)
    wide.reset()
    steps = [
        wide.step(index(text), stepper)[1] for text in ("type = gnn", "gnn.layers = 2", "training.batch_size = 256")
    ]
    assert steps == [False, False, True]
    with pytest.raises(UsageError, match="max_assignments"):
        DesignEnv(draft(), max_assignments=0)


def test_observations_contain_clauses_and_facts():
    env = DesignEnv(draft())
    env.reset()
    observer, tensorizer = ExplicitObserver(ACTION_SPACE), FlatTensorizer()
    empty = tensorizer.tensorize(observer.observe(env.state))
    env.step(index("type = mlp"), DesignStepper(ACTION_SPACE))
    after = tensorizer.tensorize(observer.observe(env.state))
    assert empty.dtype == torch.float32 and empty.shape == after.shape == (
        len(ACTION_SPACE) + 1 + len(FEATURES.vector()),
    )
    assert after[index("type = mlp")] == 1.0 and empty[index("type = mlp")] == 0.0
    other = EnvFeatures.of(surface(5, 0.01))
    assert other.vector() != FEATURES.vector() and other.n_detectors == 120


def test_environment_can_be_cloned_and_rendered():
    env = DesignEnv(draft(type="mlp"))
    env.state.last_task_info = {"curve": [3.0, 2.0]}
    copied = env.clone()
    copied.state.choices["mlp.hidden"] = 8
    assert env.state.choices == {"type": "mlp"}
    before = plt.get_fignums()
    figure = env.render({"task": "transients"})
    assert len(figure.axes) == 2 and plt.get_fignums() == before


def test_tabular_routine_returns_the_value_of_the_table(tmp_path):
    routine = TabularRoutine.read(table(tmp_path), ENV)
    template = PredecoderDraft(FEATURES, constant_keys(routine.configs))
    action_space = ActionSpace.of_configs(routine.configs)
    assert [str(assignment) for assignment in action_space.assignments] == [
        "type = mlp",
        "mlp.hidden = 16",
        "mlp.hidden = 8",
        "stop",
    ]
    found = {}
    for hidden in (8, 16, 32):
        design = PredecoderDraft(FEATURES, {**template.choices, "type": "mlp", "mlp.hidden": hidden})
        found[hidden], info = routine(design)
        assert design.last_task_info is info and info["fidelity"] == "tabular"
    assert found[16] < found[8] < 0 and found[32] == math.inf
    assert routine.best() == found[16]
    assert -found[16] < 200 / 600, "the lower bound lies below the measured gain"


def test_unusable_table_is_refused(tmp_path):
    with pytest.raises(UsageError, match="does not exist"):
        TabularRoutine.read(tmp_path / "none.jsonl")
    with pytest.raises(UsageError, match="no row"):
        TabularRoutine.read(table(tmp_path, {"dsl_config": {"type": "nope"}}, {"dsl_config": None}))


@pytest.mark.parametrize(
    ("info", "loss"),
    [
        ({"status": "ok", "relative_low": 0.2, "n_params": 10, "flops_per_syndrome": 10}, -0.2),
        ({"status": "ok", "relative_low": -0.1, "n_params": 10, "flops_per_syndrome": 10}, 0.1),
        ({"status": "ok", "relative_low": 0.2, "n_params": 1000, "flops_per_syndrome": 10}, 0.8),
        ({"status": "compile_error"}, math.inf),
        ({"status": "ok", "relative_low": None}, math.inf),
    ],
)
def test_losses_are_lower_bounds_with_penalties(info, loss):
    env = ENV.model_copy(update={"constraints": Constraints(max_params=100, max_flops_per_syndrome=100)})
    assert loss_of(info, env) == pytest.approx(loss)


def test_score_is_the_negative_loss():
    assert [score_of_loss(loss) for loss in (-0.3, 0.1, -2.0, math.inf, math.nan)] == [0.3, 0.0, 1.0, 0.0, 0.0]
    assert downsample([1.0, 3.0, 5.0], 2) == [2.0, 5.0]


SCREEN = {"train_shots": 2048, "finetune_shots": 0, "val_shots": 2000}


def screen(tmp_path=None, **changes):
    text = files.dump_config(ENV.dump())
    return ScreenRoutine(text, cache_dir=str(tmp_path) if tmp_path else None, **{**SCREEN, **changes})


def test_screening_trains_measures_and_caches(tmp_path, monkeypatch):
    routine = screen(tmp_path)
    design = draft(type="mlp", mlp__hidden=8, mlp__depth=1, training__batch_size=256)
    loss, info = routine(design)
    assert info["status"] == "ok" and 2048 <= info["train_shots"] < 4096 and info["val_shots"] == 2000
    assert loss == loss_of(info, ENV) and math.isfinite(loss) and design.last_task_info == info
    monkeypatch.setattr(
        "autoqec.extensions.continual.environments.routines._train_and_measure",
        lambda *args: pytest.fail("trained again"),
    )
    assert routine(draft(**{key.replace(".", "__"): value for key, value in design.choices.items()})) == (loss, info)
    with pytest.raises(pytest.fail.Exception):
        screen(tmp_path, seed=1)(design)


def test_failed_screening_has_a_reason():
    tight = ENV.model_copy(update={"name": "tight"})
    routine = ScreenRoutine(files.dump_config(tight.dump()), **SCREEN)
    info = routine.measure({"type": "mlp", "mlp": {"hidden": 8}, "training": {"init": "parent"}})
    assert info["status"] == "ok", "a screen starts afresh, whatever `init` says"


def test_trainings_are_serialized(monkeypatch):
    inside, most = [0], [0]

    def slow(*args):
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        threading.Event().wait(0.01)
        inside[0] -= 1
        return {"relative_low": 0.1, "n_params": 1, "flops_per_syndrome": 1}

    monkeypatch.setattr("autoqec.extensions.continual.environments.routines._train_and_measure", slow)
    threads = [threading.Thread(target=screen(), args=(draft(type="mlp"),)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most[0] == 1


def test_designs_in_batches_with_a_hall_of_fame(tmp_path):
    """Design a batch step by step and evaluate it; the hall of fame keeps each of the best designs once."""
    routine = TabularRoutine.read(table(tmp_path), ENV)
    action_space = ActionSpace.of_configs(routine.configs)
    stepper = DesignStepper(action_space)
    template = PredecoderDraft(FEATURES, constant_keys(routine.configs))
    envs = [DesignEnv(template, max_assignments=2) for _ in range(3)]
    batch = SerialEnvironments(envs, 5)
    batch.reset()
    batch.step([0, 0, 0], stepper)
    outputs = batch.step([1, 2, 1], stepper)
    assert [done for _, done in outputs] == [True] * 3
    losses = batch.get_reward(routine)
    assert losses[0] == losses[2] < losses[1]
    assert isinstance(batch.hall_of_fame, HallOfFame)
    assert [env.state.choices["mlp.hidden"] for env in batch.hall_of_fame] == [16, 8]
    assert batch.observe(ExplicitObserver(action_space), FlatTensorizer()).shape[0] == 3
    assert pickle.loads(pickle.dumps((routine, envs[0].state)))[1].signature == envs[0].signature
    with ParallelEnvironments(envs, 0, n_workers=2) as parallel:
        assert parallel.get_reward(routine) == losses


def text_env(tmp_path, n=3):
    routine = TabularRoutine.read(table(tmp_path), ENV)
    template = PredecoderDraft(FEATURES, constant_keys(routine.configs))
    action_space = ActionSpace.of_configs(routine.configs)
    return DesignTextEnv(template, action_space, routine, n_proposals=n, best=routine.best())


def test_text_environment_conforms(tmp_path):
    actions = ['I say {"type": "mlp", "mlp.hidden": 8}', "nothing", '{"type": "mlp", "mlp.hidden": 16}']
    environment_suite.check(lambda: text_env(tmp_path), actions)


def test_designing_takes_several_turns_and_each_is_scored(tmp_path):
    env = text_env(tmp_path)
    assert "- mlp.hidden: 16, 8" in env.reset()
    obs, feedback, done, info = env.step('{"type": "mlp", "mlp.hidden": 16}')
    assert feedback["correct"] and feedback["score"] == float(feedback["extra"]["relative_low"])
    assert feedback["target"] == f"{feedback['score']:.4f}" and not done
    assert '1. {"mlp.hidden": 16, "type": "mlp"}: relative gain +0.3333' in obs
    assert info["fidelity"] == "tabular"
    obs, second, done, _ = env.step('{"type": "mlp", "mlp.hidden": 8}')
    assert "2. {" in obs and not done and 0 < second["score"] < feedback["score"]
    obs, third, done, _ = env.step('{"type": "mlp", "mlp.hidden": 16}')
    assert (obs, third["score"], done) == (None, feedback["score"], True)


@pytest.mark.parametrize(
    ("action", "message"),
    [
        ("no object", "no JSON object"),
        ('{"type": "mlp", "mlp.hidden": 8', "no JSON object"),
        ('{"type": }', "not JSON"),
        ('{"type": "mlp", "mlp.hidden": 9}', r"one of \[16, 8\]"),
        ('{"type": "mlp", "mlp.hidden": true}', "not offered"),
        ('{"type": "mlp", "../../etc": 1}', "keys: type, mlp.hidden"),
        ('{"mlp.hidden": 8}', "no `type`"),
        ("{}", "no `type`"),
    ],
)
def test_invalid_proposal_affects_only_itself(tmp_path, action, message):
    env = text_env(tmp_path)
    env.reset()
    obs, feedback, done, _ = env.step(action)
    assert feedback["score"] == 0.0 and not feedback["correct"] and not done and obs
    assert re.search(message, feedback["message"])


def test_key_of_another_family_is_refused(tmp_path):
    env = DesignTextEnv(draft(), ACTION_SPACE, TabularRoutine.read(table(tmp_path), ENV))
    assert "does not apply to type 'mlp'" in env.evaluate('{"type": "mlp", "gnn.layers": 2}')["message"]


def test_dataset_resolves_paths_and_needs_tables(tmp_path):
    (tmp_path / "env.yaml").write_text(files.dump_config(ENV.dump()))
    table(tmp_path)
    data = {"kind": "design", "tasks": [{"env": "env.yaml", "table": "table.jsonl", "id": "one"}]}
    config = parse_dataset_config(data).resolved(tmp_path)
    (env,) = build_dataset(config).get_dataset()
    assert env.env_id == "one" and env.env_type == "design"
    with pytest.raises(UsageError, match="needs a `table`"):
        parse_dataset_config({"kind": "design", "tasks": [{"env": "env.yaml"}]})
    live = parse_dataset_config({"kind": "design", "routine": "screen", "tasks": [{"env": "env.yaml"}]})
    (env,) = build_dataset(live.resolved(tmp_path)).get_dataset()
    assert "- gnn.layers: " in env.reset()
