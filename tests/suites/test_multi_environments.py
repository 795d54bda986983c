"""Shared and differing behaviour of SerialEnvironments and ParallelEnvironments."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
import torch

from autoqec.errors import UsageError
from autoqec.extensions.continual.environments import ParallelEnvironments, SerialEnvironments
from autoqec.extensions.continual.environments.multi import AbstractMultiEnvironments
from autoqec.extensions.continual.environments.rendering import plot_states, top_k
from tests.support import batch_envs as toy
from tests.support.batch_envs import FakeLogger, ToyEnv

BOTH = pytest.mark.parametrize("kind", [SerialEnvironments, ParallelEnvironments])
NUMBERS = (3.0, 1.0, 2.0)


@pytest.fixture
def make(request):
    """Return a builder of batches; workers are ended after the test."""
    built = []

    def build(kind, numbers=NUMBERS, size=0, logger=None, **kwargs):
        if kind is ParallelEnvironments:
            kwargs.setdefault("n_workers", 2)
        batch = kind([ToyEnv(number) for number in numbers], size, logger, **kwargs)
        built.append(batch)
        return batch

    yield build
    for batch in built:
        if isinstance(batch, ParallelEnvironments):
            batch.close()


def test_serial_evaluates_sequentially_in_this_process(make):
    assert issubclass(SerialEnvironments, AbstractMultiEnvironments)
    batch = make(SerialEnvironments)
    batch.get_reward(toy.process_of)
    began = [info["began"] for info in batch.task_infos]
    assert {info["pid"] for info in batch.task_infos} == {os.getpid()}
    assert all(later - earlier >= 0.05 for earlier, later in zip(began, began[1:], strict=False))


def test_parallel_evaluates_in_persistent_worker_processes(make):
    batch = make(ParallelEnvironments, numbers=(1, 2, 3, 4, 5, 6))
    batch.get_reward(toy.process_of)
    first = {info["pid"] for info in batch.task_infos}
    batch.get_reward(toy.process_of)
    assert os.getpid() not in first and len(first) == 2
    assert {info["pid"] for info in batch.task_infos} == first


@BOTH
def test_hall_of_fame_size_zero_disables_it(make, kind):
    assert make(kind, size=0).hall_of_fame is None
    assert make(kind, size=2).hall_of_fame.capacity == 2
    with pytest.raises(UsageError, match="hall_of_fame_size"):
        make(kind, size=-1)


@BOTH
def test_rewards_are_one_per_environment_in_order(make, kind):
    assert make(kind).get_reward(toy.square) == [9.0, 1.0, 4.0]


def test_only_parallel_writes_the_task_info_into_the_state(make):
    serial, parallel = make(SerialEnvironments), make(ParallelEnvironments)
    assert serial.get_reward(toy.square) == parallel.get_reward(toy.square)
    assert [state.last_task_info for state in serial.gather()] == [None] * 3
    assert [state.last_task_info["number"] for state in parallel.gather()] == list(NUMBERS)
    serial.get_reward(toy.square_stored)
    assert [state.last_task_info["number"] for state in serial.gather()] == list(NUMBERS)


@pytest.mark.parametrize(
    ("kind", "name"), [(SerialEnvironments, "Reward Time"), (ParallelEnvironments, "Timing: Rewards")]
)
def test_time_is_logged_to_the_logger(make, kind, name):
    logger = FakeLogger()
    make(kind, logger=logger).get_reward(toy.square)
    assert logger.events == [("metric", name)]
    make(kind).get_reward(toy.square)


@BOTH
def test_metric_is_logged_before_the_hall_of_fame_is_updated(make, kind):
    logger = FakeLogger()
    batch = make(kind, size=2, logger=logger)
    add_all = batch.hall_of_fame.add_all
    batch.hall_of_fame.add_all = lambda *args: (logger.events.append(("hall", "added")), add_all(*args))
    batch.get_reward(toy.square)
    assert [event for event, _ in logger.events] == ["metric", "hall"]
    assert batch.hall_of_fame.losses == [1.0, 4.0]


@BOTH
def test_reset_returns_initial_states(make, kind):
    batch = make(kind)
    batch.step([1.0] * 3, toy.add)
    assert [state.number for state in batch.reset()] == list(NUMBERS)


@BOTH
def test_gather_returns_the_state_objects(make, kind):
    batch = make(kind)
    assert all(state is env.state for state, env in zip(batch.gather(), batch.envs, strict=True))
    batch.get_reward(toy.square)
    assert all(state is env.state for state, env in zip(batch.gather(), batch.envs, strict=True))


@BOTH
def test_step_with_and_without_raw_actions(make, kind):
    logger = FakeLogger()
    batch = make(kind, logger=logger)
    outputs = batch.step([1.0, 2.0, 3.0], toy.add)
    assert [(state.number, done) for state, done in outputs] == [(4.0, False), (3.0, False), (5.0, False)]
    assert [env.raw for env in batch.envs] == [[{}]] * 3
    batch.step([0.0] * 3, toy.add, raw_actions=["a", "b", "c"])
    assert [env.raw[-1] for env in batch.envs] == [{"raw_action": "a"}, {"raw_action": "b"}, {"raw_action": "c"}]
    assert logger.events == [("metric", "Timing: Step")] * 2


@BOTH
def test_lengths_must_agree(make, kind):
    batch = make(kind)
    for actions, raw in (([1.0] * 2, None), ([1.0] * 4, None), ([1.0] * 3, [1.0])):
        with pytest.raises(UsageError, match="3 environments"):
            batch.step(actions, toy.add, raw)
    assert [env.state.path for env in batch.envs] == [[]] * 3


@BOTH
def test_observations_are_stacked_as_floats_in_order(make, kind):
    batch = make(kind)
    tensor = batch.observe(toy.Observer(), toy.Tensorizer())
    assert tensor.shape == (3, 2) and tensor.dtype == torch.float32
    assert tensor[:, 0].tolist() == list(NUMBERS)


@pytest.mark.parametrize(
    ("n", "p", "k"), [(10, 0.9, 1), (10, 0.7, 3), (100, 0.9, 10), (3, 0.9, 0), (10, 0.0, 10), (10, 1.0, 0), (0, 0.5, 0)]
)
def test_top_k_is_exact(n, p, k):
    assert top_k(n, p) == k


def test_top_k_refuses_invalid_fractions():
    for p in (-0.1, 1.1):
        with pytest.raises(UsageError, match="disregarded"):
            top_k(10, p)


def test_best_are_rendered_and_every_figure_is_closed(make):
    logger = FakeLogger()
    batch = make(SerialEnvironments, numbers=range(10), logger=logger)
    losses = batch.get_reward(toy.square_stored)
    before = plt.get_fignums()
    assert batch.render(losses, n_best=2, disregarded_percentage=0.7) is None
    assert plt.get_fignums() == before
    assert [len(env.renders) for env in batch.envs] == [1, 1] + [0] * 8
    assert batch.envs[0].renders == [{"style": "logger", "task": "transients", "format": "figure"}]
    figures = [name for event, name in logger.events if event == "figure"]
    assert figures == ["transients: best 1", "transients: best 2", "transients: top 3"]
    assert batch.rendering_iteration == 1


def test_nan_losses_rank_last_and_small_batches_have_no_joint_figure(make):
    logger = FakeLogger()
    batch = make(SerialEnvironments, numbers=(5, 1, 2), logger=logger)
    losses = batch.get_reward(toy.not_a_number)
    assert math.isnan(losses[1])
    batch.render(losses)
    assert [len(env.renders) for env in batch.envs] == [0, 0, 1]
    assert [name for event, name in logger.events if event == "figure"] == ["transients: best 1"]
    batch.render(losses, n_best=9, disregarded_percentage=0.0)
    assert [len(env.renders) for env in batch.envs] == [1, 1, 2]


def test_mode_is_not_shared_between_calls(make):
    batch = make(SerialEnvironments, logger=FakeLogger())
    mode = {"format": "image"}
    batch.render([1.0, 2.0, 3.0], mode=mode)
    assert mode == {"format": "image"}
    assert ("image", "transients: best 1") in batch.logger.events
    batch.render([1.0, 2.0, 3.0])
    assert batch.envs[0].renders[-1]["format"] == "figure"
    with pytest.raises(UsageError, match="style"):
        batch.render([1.0, 2.0, 3.0], mode={"style": "telepathy"})
    with pytest.raises(UsageError, match="unknown task 'nothing'.*transients, gain, cost"):
        batch.render([1.0, 2.0, 3.0], mode={"task": "nothing"})
    with pytest.raises(UsageError, match="rewards"):
        batch.render([1.0])


@pytest.mark.parametrize(
    ("task", "label"), [("transients", "loss while training"), ("gain", "relative gain"), ("cost", "FLOPs")]
)
def test_drawn_figures_depend_on_the_task(task, label):
    states = [toy.ToyState(1.0), toy.ToyState(2.0)]
    for number, state in enumerate(states, start=1):
        state.last_task_info = {
            "curve": [2.0, 1.0], "relative": 0.1 / number, "relative_low": 0.05 / number,
            "relative_high": 0.2 / number, "flops_per_syndrome": 1000 * number,
        }  # fmt: skip
    axes = plot_states(states, [-0.1, -0.05], task).axes[0]
    assert axes.get_title() == task and label in axes.get_xlabel() + axes.get_ylabel()
    drawn = {line.get_xydata().shape[0] for line in axes.get_lines()}
    assert drawn == ({2} if task == "transients" else {1, 2} if task == "gain" else {1})


def test_routine_that_workers_cannot_import_is_refused(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "from autoqec.extensions.continual.environments import ParallelEnvironments\n"
        "from tests.support.batch_envs import ToyEnv\n"
        "def routine(state):\n    return 0.0, {}\n"
        "with ParallelEnvironments([ToyEnv(1.0)], 0, n_workers=1) as batch:\n    batch.get_reward(routine)\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, [Path(__file__).parents[2], *sys.path]))}
    done = subprocess.run([sys.executable, str(script)], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode != 0 and "a worker process cannot load the routine" in done.stderr
    assert "define routine, states and their classes in a module" in done.stderr


def test_without_a_logger_only_the_counter_changes(make, tmp_path):
    batch = make(SerialEnvironments)
    batch.render([1.0, 2.0, 3.0])
    assert batch.rendering_iteration == 1
    batch.render([1.0, 2.0, 3.0], disregarded_percentage=0.0, mode={"style": "file", "path": str(tmp_path / "figures")})
    names = sorted(path.name for path in (tmp_path / "figures").iterdir())
    assert names == ["000001-transients--best-1.png", "000001-transients--top-3.png"]


def test_metrics_and_images_go_to_the_logger(make):
    logger = FakeLogger()
    batch = make(SerialEnvironments, logger=logger)
    batch.render([math.inf, 2.0, 3.0], disregarded_percentage=0.0, mode={"format": "image"})
    assert ("image", "transients: top 3") in logger.events
    assert [name for event, name in logger.events if event == "metric"] == ["Top Loss: Best", "Top Loss: Mean"]


@BOTH
def test_empty_batch_gives_empty_results(make, kind):
    batch = make(kind, numbers=(), size=3)
    assert batch.reset() == batch.gather() == batch.get_reward(toy.square) == []
    assert batch.step([], toy.add) == []
    assert batch.observe(toy.Observer(), toy.Tensorizer()).shape == (0,)
    batch.render([])
    assert len(batch.hall_of_fame) == 0


@BOTH
def test_exception_affects_one_reward_and_is_reported(make, kind, caplog):
    batch = make(kind, numbers=(4.0, 0.0, 2.0), size=3)
    with pytest.warns(RuntimeWarning, match="failed for 1 of 3 environments; first: ZeroDivisionError"):
        assert batch.get_reward(toy.reciprocal) == [0.25, math.inf, 0.5]
    info = batch.task_infos[1]
    assert info["error"] == "ZeroDivisionError: float division by zero"
    assert "in reciprocal" in info["traceback"] and info["traceback"] in caplog.text
    assert batch.envs[1].state.last_task_info == batch.task_infos[1]
    assert batch.hall_of_fame.losses == [0.25, 0.5]


@BOTH
def test_raise_errors_raises_the_exception(make, kind):
    with pytest.raises(ZeroDivisionError):
        make(kind, numbers=(4.0, 0.0), raise_errors=True).get_reward(toy.reciprocal)


def test_killed_worker_affects_one_reward(make):
    batch = make(ParallelEnvironments, numbers=(1.0, 2.0, 3.0, 4.0, 5.0), n_workers=1)
    with pytest.warns(RuntimeWarning, match="worker died"):
        assert batch.get_reward(toy.suicidal) == [1.0, math.inf, 3.0, 4.0, 5.0]
    assert "worker died" in batch.task_infos[1]["error"]


def test_routines_in_workers_can_print(make, capfd):
    batch = make(ParallelEnvironments)
    assert batch.get_reward(toy.noisy) == list(NUMBERS)
    assert capfd.readouterr().out == ""
