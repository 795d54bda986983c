"""The training loop, validation, scores, trials."""

from __future__ import annotations

import io
import json
import logging
import random
import threading
import time
from datetime import datetime

import pytest

from autoqec.errors import UsageError
from autoqec.extensions.continual.agents.base import (
    HistoryAgent,
    HistoryAgentConfig,
    MemoryAgent,
    MemoryAgentConfig,
    ReflexionAgent,
    ReflexionAgentConfig,
)
from autoqec.extensions.continual.environments.qa import MCQEnv, QAEnv
from autoqec.extensions.continual.runtime import RunTime, RunTimeConfig
from autoqec.extensions.continual.runtime.episode import score_of
from autoqec.extensions.continual.runtime.scores import aggregate
from tests.support.models import FunctionModel, replies
from tests.support.text_envs import ListDataset, SpyAgent, SpyEnv, meeting

RIGHT = {"correct": True, "target": "t", "message": ""}
WRONG = {"correct": False, "target": "t", "message": ""}


def runtime(envs, agent=None, val=None, results_dir=None, logger=None, console=None, **config):
    return RunTime(
        RunTimeConfig(**{"verbose": False, **config}),
        ListDataset(envs),
        agent or SpyAgent(),
        validation_dataset=ListDataset(val) if val is not None else None,
        results_dir=results_dir,
        logger=logger,
        console=console,
    )


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_environments_run_sequentially_in_order():
    log = []
    runtime([SpyEnv(name, steps=2, log=log) for name in "abc"]).run()
    assert [entry[1] for entry in log] == ["a"] * 3 + ["b"] * 3 + ["c"] * 3


def test_order_of_calls_in_an_episode():
    log = []
    runtime([SpyEnv("e", steps=2, log=log)], SpyAgent(log)).run()
    assert log == [
        ("env.reset", "e"),
        ("agent.reset",),
        ("agent.act", "e:0"),
        ("env.step", "e", "a"),
        ("agent.observe", "e:1", False),
        ("agent.act", "e:1"),
        ("env.step", "e", "a"),
        ("agent.observe", None, True),
        ("agent.end_episode",),
    ]


def test_max_steps_ends_an_endless_episode():
    agent = SpyAgent()
    metrics = runtime([SpyEnv("e", steps=None)], agent, max_steps_per_episode=3).run()
    assert metrics["train_steps"] == 3
    assert agent.log.count(("agent.end_episode",)) == 1
    assert metrics["episodes"][0][-1]["done"] is False


@pytest.mark.parametrize(("limit", "episodes"), [(None, 4), (2, 2), (9, 4), (0, 0)])
def test_max_envs_to_visit_limits_training(limit, episodes):
    assert runtime([SpyEnv(n) for n in "abcd"], max_envs_to_visit=limit).run()["train_episodes"] == episodes


def test_zero_envs_to_visit_only_validates(tmp_path):
    config = {"max_envs_to_visit": 0, "run_validation_at_start": True, "scores_path": "scores.jsonl"}
    runtime([SpyEnv("t")], val=[SpyEnv("v")], results_dir=tmp_path, **config).run()
    found = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert found == ["metrics.json", "scores/val/0_seen_episodes_scores.jsonl"]


def test_verbose_false_prints_nothing(capfd):
    runtime([SpyEnv("e")], val=[SpyEnv("v")], validation_freq=1).run()
    assert capfd.readouterr() == ("", "")
    console = io.StringIO()
    runtime([SpyEnv("e")], verbose=True, console=console).run()
    assert "train" in console.getvalue() and capfd.readouterr() == ("", "")


def test_episodes_count_from_one_and_steps_restart_per_episode(tmp_path):
    runtime([SpyEnv("a", steps=2), SpyEnv("b", steps=3)], results_dir=tmp_path, scores_path="scores.jsonl").run()
    found = [(r["episode_index"], r["step_index"]) for r in lines(tmp_path / "scores/train/scores.jsonl")]
    assert found == [(1, 1), (1, 2), (2, 1), (2, 2), (2, 3)]


@pytest.mark.parametrize(("freq", "seen"), [(None, []), (2, [2, 4]), (1, [1, 2, 3, 4, 5]), (9, [])])
def test_validation_every_n_episodes(freq, seen, tmp_path):
    config = {"validation_freq": freq, "scores_path": "scores.jsonl"}
    runtime([SpyEnv(n) for n in "abcde"], val=[SpyEnv("v")], results_dir=tmp_path, **config).run()
    found = sorted(int(path.name.partition("_")[0]) for path in (tmp_path / "scores/val").glob("*"))
    assert found == seen


@pytest.mark.parametrize("config", [{"validation_num_workers": 8}, {"num_parallel_episodes": 8}, {}])
def test_validation_workers_run_concurrently(config):
    together = meeting(8)
    val = [SpyEnv(str(n), before=together) for n in range(8)]
    metrics = runtime([SpyEnv("t")], val=val, validation_freq=1, **config).run()
    assert "errors" not in metrics


def test_validation_num_workers_takes_precedence():
    assert RunTimeConfig(num_parallel_episodes=3).workers == 3
    assert RunTimeConfig(num_parallel_episodes=3, validation_num_workers=5).workers == 5
    inside, most, lock = [0], [0], threading.Lock()

    def enter():
        with lock:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
        time.sleep(0.01)
        with lock:
            inside[0] -= 1

    val = [SpyEnv(str(n), before=enter) for n in range(12)]
    runtime([SpyEnv("t")], val=val, validation_freq=1, validation_num_workers=2).run()
    assert most[0] == 2


def test_validation_at_start_comes_before_the_first_training_step(tmp_path):
    config = {"run_validation_at_start": True, "scores_path": "scores.jsonl"}
    runtime([SpyEnv("t")], val=[SpyEnv("v")], results_dir=tmp_path, **config).run()
    val = lines(tmp_path / "scores/val/0_seen_episodes_scores.jsonl")
    train = lines(tmp_path / "scores/train/scores.jsonl")
    assert val[-1]["timestamp"] < train[0]["step_start"]
    assert RunTimeConfig().run_validation_at_start is False


def test_validation_without_a_dataset_is_skipped_with_a_warning(caplog):
    with caplog.at_level(logging.WARNING):
        logger = logging.getLogger("tests.c10")
        runtime([SpyEnv("t")], validation_freq=1, run_validation_at_start=True, logger=logger).run()
    assert [record.message for record in caplog.records].count(
        "validation skipped: there is no validation_dataset"
    ) == 2


def test_validation_of_a_hundred_workers_changes_nothing():
    together = meeting(100)
    lm = FunctionModel(lambda system, user: together() or "4")
    agent = HistoryAgent(HistoryAgentConfig(), replies("4"))
    train = [QAEnv("2+2?", "4")]
    run = runtime(train, agent, val=[QAEnv(f"q{n}", "4") for n in range(100)], validation_num_workers=100)
    run.run()
    before = agent.memory.snapshot()
    agent.lm = lm
    assert run._validate()
    assert len(lm.calls) == 100
    assert agent.memory.snapshot() == before and agent.training
    assert run._val_score == 1.0


def test_training_mode_is_restored_after_an_exception():
    agent = HistoryAgent(HistoryAgentConfig(), replies("4"))
    metrics = runtime([QAEnv("q", "4"), QAEnv("r", "4")], agent, val=[SpyEnv("v", raise_at=1)], validation_freq=1).run()
    assert agent.training and len(metrics["errors"]) == 2
    assert len(agent.memory.recall()) == 6


def test_frozen_memory_rejects_writes_during_validation():
    acted = []

    class Rogue(MemoryAgent):
        def act(self, obs):
            acted.append((self is agent, self.memory is agent.memory, self.lm is agent.lm))
            return super().act(obs)

        def update_memory_with_entry(self, entry):
            self.memory.update(entry)

    agent = Rogue(MemoryAgentConfig(), replies("4"))
    metrics = runtime([QAEnv("q", "4")], agent, val=[QAEnv("v", "4")], validation_freq=1).run()
    assert "frozen" in metrics["errors"][0]
    assert acted == [(True, True, True), (False, True, True)]
    assert [entry.obs for entry in agent.memory.recall()] == ["q"]


def test_reflexion_learns_nothing_from_validation():
    lm = replies("x")
    agent = ReflexionAgent(ReflexionAgentConfig(), lm)
    runtime([QAEnv("q", "x")], agent, val=[QAEnv(str(n), "x") for n in range(5)], validation_freq=1).run()
    assert len(lm.calls) == 2 + 5
    assert [entry.type for entry in agent.memory.recall()] == ["experience", "reflection"]


def test_validation_lines_are_sorted(tmp_path):
    draw = random.Random(1)
    for repeat in range(20):
        val = [SpyEnv(str(n), steps=2, before=lambda: time.sleep(draw.random() / 200)) for n in range(8)]
        runtime([], val=val, results_dir=tmp_path, run_validation_at_start=True, scores_path=f"{repeat}.jsonl").run()
        found = [
            (r["episode_index"], r["step_index"], r["env_id"])
            for r in lines(tmp_path / f"{repeat}/val/0_seen_episodes_scores.jsonl")
        ]
        assert found == [(n + 1, step, str(n)) for n in range(8) for step in (1, 2)]


def test_validation_score_is_the_mean_over_steps(tmp_path):
    val = [SpyEnv("v", steps=3, feedbacks=[RIGHT, WRONG, WRONG]), SpyEnv("w", feedbacks=[{"score": 0.6}])]
    run = runtime(
        [SpyEnv("t")],
        val=val,
        results_dir=tmp_path,
        validation_freq=1,
        checkpoint_dir="checkpoints",
        checkpoint_strategy="top_k_val",
    )
    run.run()
    state = json.loads((tmp_path / "checkpoints/ep_000001/runtime.json").read_text())
    assert state["val_score"] == pytest.approx(1.6 / 4)


def test_failing_validation_environment_affects_no_other(tmp_path):
    val = [SpyEnv("a"), SpyEnv("b", steps=5, raise_at=3), SpyEnv("c")]
    config = {"validation_freq": 1, "scores_path": "scores.jsonl"}
    metrics = runtime([SpyEnv("t")], val=val, results_dir=tmp_path, **config).run()
    assert metrics["errors"] == ["after 1 episodes: validation of b: RuntimeError: the environment broke"]
    found = [r["env_id"] for r in lines(tmp_path / "scores/val/1_seen_episodes_scores.jsonl")]
    assert found == ["a", "b", "b", "c"]


def test_failing_training_environment_affects_no_other():
    agent = SpyAgent()
    metrics = runtime([SpyEnv("a"), SpyEnv("b", steps=5, raise_at=3), SpyEnv("c")], agent).run()
    assert metrics["errors"] == ["episode 2 (b): RuntimeError: the environment broke"]
    assert metrics["train_episodes"] == 2 and [len(episode) for episode in metrics["episodes"]] == [1, 2, 1]
    assert agent.log.count(("agent.end_episode",)) == 2


def test_model_timeout_is_recorded_and_the_run_continues():
    def answer(system, user):
        if "q1" in user.splitlines()[-1]:
            raise TimeoutError("no answer in 30 s")
        return "4"

    agent = MemoryAgent(MemoryAgentConfig(), FunctionModel(answer))
    metrics = runtime([QAEnv(f"q{n}", "4", {"id": n}) for n in range(3)], agent).run()
    assert metrics["errors"] == ["episode 2 (1): TimeoutError: no answer in 30 s"]
    assert metrics["train_episodes"] == 2 and metrics["mean_score"] == 1.0


def test_score_files_are_written_during_the_run(tmp_path):
    seen = []
    path = tmp_path / "scores/train/scores.jsonl"
    watched = SpyEnv("b", before=lambda: seen.append(len(lines(path))))
    runtime([SpyEnv("a", steps=2), watched], results_dir=tmp_path, scores_path="scores.jsonl").run()
    assert seen == [2]


def test_without_scores_path_there_are_no_score_files(tmp_path):
    runtime([SpyEnv("a")], val=[SpyEnv("v")], validation_freq=1, results_dir=tmp_path).run()
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.json"]
    with pytest.raises(UsageError, match="results directory"):
        runtime([SpyEnv("a")], scores_path="scores.jsonl")


CORE = {
    "timestamp",
    "mode",
    "episode_index",
    "step_index",
    "score",
    "episode_cum_score",
    "env_id",
    "env_type",
}
VERBOSE = CORE | {
    "observation",
    "action",
    "feedback",
    "info",
    "lm_model",
    "agent_type",
    "step_start",
    "step_end",
    "duration_ms",
}


def test_verbose_record_is_flat_and_complete(tmp_path):
    env = SpyEnv("e", steps=3, feedbacks=[{"score": 0.25}, RIGHT, WRONG], before=lambda: time.sleep(0.01))
    agent = HistoryAgent(HistoryAgentConfig(), replies("4"))
    runtime([env], agent, results_dir=tmp_path, scores_path="scores.jsonl").run()
    records = lines(tmp_path / "scores/train/scores.jsonl")
    assert all(set(record) == VERBOSE for record in records)
    assert [record["episode_cum_score"] for record in records] == [0.25, 1.25, 1.25]
    record = records[0]
    assert (record["mode"], record["env_id"], record["env_type"]) == ("train", "e", "spy")
    assert (record["lm_model"], record["agent_type"]) == ("function", "HistoryAgent")
    assert (record["observation"], record["action"], record["feedback"], record["info"]) == (
        "e:0",
        "4",
        {"score": 0.25},
        {"at": 1},
    )
    for record in records:
        assert 0.0 <= record["score"] <= 1.0
        moments = [record[key] for key in ("step_start", "step_end", "timestamp")]
        assert all(moment.endswith("Z") for moment in moments)
        start, end = (datetime.fromisoformat(moment) for moment in moments[:2])
        assert 10 <= record["duration_ms"] == pytest.approx(1000 * (end - start).total_seconds(), abs=500)


def test_minimal_record_has_only_the_required_keys(tmp_path):
    config = {"scores_path": "scores.jsonl", "verbose_score_logging": False, "validation_freq": 1}
    runtime([SpyEnv("e")], val=[SpyEnv("v")], results_dir=tmp_path, **config).run()
    for name in ("train/scores.jsonl", "val/1_seen_episodes_scores.jsonl"):
        assert set(lines(tmp_path / "scores" / name)[0]) == CORE


@pytest.mark.parametrize(
    ("feedback", "score"),
    [
        ({"score": 0.3, "correct": True}, 0.3),
        ({"correct": True}, 1.0),
        ({"correct": False}, 0.0),
        ({}, 0.0),
        ({"score": None, "correct": True}, 1.0),
        ({"score": 7}, 1.0),
        ({"score": -1}, 0.0),
        ({"score": float("nan")}, 0.0),
        ({"score": "much"}, 0.0),
    ],
)
def test_score_is_taken_from_feedback_or_reward(feedback, score):
    assert score_of(feedback) == score


def test_run_returns_its_summary():
    env = SpyEnv("b", steps=2, feedbacks=[WRONG, RIGHT])
    assert runtime([SpyEnv("a"), env, SpyEnv("c", feedbacks=[WRONG])]).run() == {
        "mean_score": 0.5,
        "train_steps": 4,
        "train_episodes": 3,
        "episodes": [
            [{"obs": None, "action": "a", "feedback": RIGHT, "done": True}],
            [
                {"obs": "b:1", "action": "a", "feedback": WRONG, "done": False},
                {"obs": None, "action": "a", "feedback": RIGHT, "done": True},
            ],
            [{"obs": None, "action": "a", "feedback": WRONG, "done": True}],
        ],
    }
    assert runtime([]).run() == {"mean_score": 0.0, "train_steps": 0, "train_episodes": 0, "episodes": []}


def test_metrics_json_equals_the_returned_summary(tmp_path):
    metrics = runtime([SpyEnv("a"), SpyEnv("b", steps=3, raise_at=2)], results_dir=tmp_path).run()
    assert json.loads((tmp_path / "metrics.json").read_text()) == metrics


def test_confusion_matrix_is_computed_from_extra():
    envs = [MCQEnv("q", target, choices=["x", "y", "z"], env_id=str(n)) for n, target in enumerate("AABC")]
    agent = MemoryAgent(MemoryAgentConfig(history_k=0), replies("A", "B", "B", "no idea"))
    metrics = runtime([*envs, QAEnv("q", "no idea")], agent).run()
    assert metrics["tasks"]["mcq"] == {
        "steps": 4,
        "mean_score": 0.5,
        "accuracy": 0.5,
        "confusion": {"A": {"A": 1, "B": 1}, "B": {"B": 1}, "C": {"none": 1}},
    }
    assert metrics["tasks"]["qa"] == {"steps": 1, "mean_score": 1.0, "accuracy": 1.0}
    assert "tasks" not in aggregate([], [])


def trial_run(carry, mode="empty", early=False, feedbacks=(WRONG,), trials=3):
    agent = MemoryAgent(MemoryAgentConfig(), FunctionModel(lambda system, user: str(user.count("Q:") - 1)))
    run = runtime(
        [SpyEnv("a", feedbacks=feedbacks), SpyEnv("b", feedbacks=feedbacks)],
        agent,
        num_trials=trials,
        carry_memory_across_trials=carry,
        memory_between_trials=mode,
        early_stop_on_success=early,
    )
    metrics = run.run()
    return [episode[0]["action"] for episode in metrics["episodes"]]  # number of memory entries in each trial


def test_trials_keep_or_reset_the_memory():
    assert trial_run(carry=True) == ["0", "1", "2", "3", "4", "5"]
    assert trial_run(carry=False) == ["0", "0", "0", "1", "0", "0"]
    assert trial_run(carry=False, mode="env_start") == ["0", "0", "0", "1", "1", "1"]
    assert trial_run(carry=True, trials=None) == ["0", "1"]


def test_trials_stop_early_on_success():
    assert len(trial_run(carry=True, early=True, feedbacks=[RIGHT])) == 2
    assert len(trial_run(carry=True, early=True, feedbacks=[WRONG])) == 6
    assert len(trial_run(carry=True, early=False, feedbacks=[RIGHT])) == 6
    assert len(trial_run(carry=True, early=True, feedbacks=[{"score": 1.0}])) == 2


def test_trials_count_as_episodes_and_end_each(tmp_path):
    agent = SpyAgent()
    runtime([SpyEnv("a")], agent, num_trials=3, results_dir=tmp_path, scores_path="s.jsonl").run()
    assert agent.log.count(("agent.end_episode",)) == 3
    assert [r["episode_index"] for r in lines(tmp_path / "s/train/s.jsonl")] == [1, 2, 3]


def test_run_episode_returns_the_recorded_steps():
    steps = runtime([]).run_episode(SpyEnv("e", steps=2))
    assert [(step.obs, step.done) for step in steps] == [("e:1", False), (None, True)]


def test_feedback_that_is_not_json_serializable_is_recorded():
    env = SpyEnv(
        "e",
        feedbacks=[
            {
                "correct": True,
                "extra": {
                    "loss": float("inf"),
                    "what": {
                        1,
                    },
                },
            }
        ],
    )
    metrics = runtime([env]).run()
    assert metrics["episodes"][0][0]["feedback"]["extra"] == {"loss": None, "what": "{1}"}
