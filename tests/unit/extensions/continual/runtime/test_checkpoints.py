"""Checkpoints and resumes."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
from pathlib import Path

import numpy as np
import pytest

from autoqec.errors import ContractError, UsageError
from autoqec.extensions.continual.agents.base import (
    MemoryAgent,
    MemoryAgentConfig,
    MemorylessAgent,
    MemorylessAgentConfig,
    ReflexionAgent,
    ReflexionAgentConfig,
)
from autoqec.extensions.continual.agents.cheatsheet import DynamicCheatsheetAgent, DynamicCheatsheetAgentConfig
from autoqec.extensions.continual.environments.qa import QAEnv
from autoqec.extensions.continual.memory.modules import HistoryListConfig
from autoqec.extensions.continual.runtime import RunTime, RunTimeConfig, checkpoints
from autoqec.extensions.continual.runtime.checkpoints import CheckpointManager, RetentionPolicy, RuntimeState
from tests.support.models import FunctionModel
from tests.support.text_envs import ListDataset, SpyEnv


def state(episodes, val_score=None):
    return RuntimeState(
        episodes_seen=episodes,
        next_env=episodes,
        val_score=val_score,
        episodes=(),
        errors=(),
        results_dir="../..",
        rng={},
        sha256={},
    )


def answer(system, user):
    """A model whose answers depend on the full prompt, so that any difference in memory changes them."""
    digest = hashlib.sha256((system + user).encode()).hexdigest()[:8]
    return f"<cheatsheet>{digest}</cheatsheet>" if "curate" in system else digest


def agent():
    return ReflexionAgent(ReflexionAgentConfig(memory_config=HistoryListConfig(max_length=7)), FunctionModel(answer))


class DrawingEnv(QAEnv):
    """Draws from the global random generators, as a user's environment may."""

    def evaluate(self, action):
        return {"score": random.random() / 2 + float(np.random.random()) / 2, "correct": False}


def envs(n=10):
    return [DrawingEnv(f"q{i}", "a", {"id": i}) for i in range(n)]


def go(results, *, agent=agent, n=10, **config):
    """Run in a separate directory, with everything enabled that a resume must restore."""
    results.mkdir()
    random.seed(1)
    np.random.seed(1)
    settings = {
        "verbose": False,
        "scores_path": "scores.jsonl",
        "verbose_score_logging": False,
        "checkpoint_dir": "checkpoints",
        "checkpoint_every_episodes": 2,
        "validation_freq": 5,
        **config,
    }
    made = agent()
    run = RunTime(
        RunTimeConfig(**settings),
        ListDataset(envs(n)),
        made,
        validation_dataset=ListDataset([QAEnv(f"v{i}", "a") for i in range(3)]),
        results_dir=results,
    )
    return run.run(), made


def saved(directory):
    return sorted(int(path.name[3:]) for path in directory.glob("ep_*"))


def tree_hash(directory: Path) -> str:
    rows = [
        (str(path.relative_to(directory)), os.readlink(path) if path.is_symlink() else path.read_bytes())
        for path in sorted(directory.rglob("*"))
        if path.is_file() or path.is_symlink()
    ]
    return hashlib.sha256(repr(rows).encode()).hexdigest()


def test_checkpoint_holds_three_files(tmp_path):
    go(tmp_path / "run", n=2)
    directory = tmp_path / "run/checkpoints"
    assert sorted(path.name for path in (directory / "ep_000002").iterdir()) == [
        "agent.json",
        "memory_2.jsonl",
        "runtime.json",
    ]
    assert os.readlink(directory / "latest") == "ep_000002"
    assert json.loads((directory / "latest.json").read_text()) == {"checkpoint": "ep_000002"}


def test_last_n_keeps_the_most_recent(tmp_path):
    manager = CheckpointManager(tmp_path, RetentionPolicy("last_n", 5))
    for episodes in range(50, 351, 50):
        manager.save(state(episodes), agent())
    assert saved(tmp_path) == [150, 200, 250, 300, 350]


@pytest.mark.parametrize("keep", [None, 0])
def test_none_and_zero_keep_all(tmp_path, keep):
    manager = CheckpointManager(tmp_path, RetentionPolicy("last_n", keep))
    for episodes in range(1, 9):
        manager.save(state(episodes), agent())
    assert saved(tmp_path) == list(range(1, 9))


def test_top_k_val_keeps_the_best(tmp_path):
    manager = CheckpointManager(tmp_path, RetentionPolicy("top_k_val", 3))
    for episodes, score in zip(range(50, 251, 50), (0.45, 0.52, 0.48, 0.55, 0.53), strict=True):
        manager.save(state(episodes, score), agent())
    assert saved(tmp_path) == [100, 200, 250]


def test_of_equal_scores_the_most_recent_is_kept(tmp_path):
    manager = CheckpointManager(tmp_path, RetentionPolicy("top_k_val", 2))
    for episodes in (1, 2, 3):
        manager.save(state(episodes, 0.5), agent())
    assert saved(tmp_path) == [2, 3]


def test_top_k_val_saves_at_each_validation_and_before_training(tmp_path):
    go(tmp_path / "a", checkpoint_strategy="top_k_val", checkpoint_keep_last=None)
    assert saved(tmp_path / "a/checkpoints") == [5, 10]
    go(tmp_path / "b", checkpoint_on_start=True, n=1)
    assert saved(tmp_path / "b/checkpoints") == [0]
    go(tmp_path / "c", run_validation_at_start=True, checkpoint_strategy="top_k_val")
    assert saved(tmp_path / "c/checkpoints") == [0, 5, 10]


def test_latest_always_resolves(tmp_path):
    manager = CheckpointManager(tmp_path, RetentionPolicy("top_k_val", 2))
    for episodes, score in enumerate((0.9, 0.8, 0.1, 0.7, 0.95, 0.2), start=1):
        manager.save(state(episodes, score), agent())
        target = (tmp_path / "latest").resolve()
        assert target.is_dir() and int(target.name[3:]) == max(saved(tmp_path))
        assert checkpoints.load(tmp_path / "latest").directory == target
    assert saved(tmp_path) == [1, 5]


def test_latest_json_replaces_a_missing_symlink(tmp_path, monkeypatch):
    def refused(*args, **kwargs):
        raise OSError("no links here")

    monkeypatch.setattr(os, "symlink", refused)
    CheckpointManager(tmp_path, RetentionPolicy("last_n", 1)).save(state(3), agent())
    assert not (tmp_path / "latest").exists()
    assert checkpoints.load(tmp_path / "latest").state.episodes_seen == 3


def test_incomplete_checkpoint_is_never_selected(tmp_path):
    """If a write is killed, the draft has another name and `latest` names the previous checkpoint."""
    manager = CheckpointManager(tmp_path, RetentionPolicy("last_n", None))
    manager.save(state(1), agent())
    for retained in range(3):
        draft = tmp_path / ".saving-ep_000002"
        shutil.copytree(tmp_path / "ep_000001", draft)
        for path in sorted(draft.iterdir())[retained:]:
            path.unlink()
        assert checkpoints.load(tmp_path / "latest").state.episodes_seen == 1
        assert saved(tmp_path) == [1]
        shutil.rmtree(draft)


@pytest.mark.parametrize("name", ["agent.json", "memory_2.jsonl", "runtime.json"])
@pytest.mark.parametrize("harm", ["missing", "cut", "changed"])
def test_damaged_checkpoint_raises(tmp_path, name, harm):
    go(tmp_path / "run", n=2)
    path = tmp_path / "run/checkpoints/ep_000002" / name
    data = path.read_bytes()
    if harm == "missing":
        path.unlink()
    else:
        path.write_bytes(data[:-20] if harm == "cut" else data.replace(b'"', b"'", 1))
    with pytest.raises(ContractError, match="ep_000002"):
        go(tmp_path / "again", resume_from=str(tmp_path / "run/checkpoints/latest"))


@pytest.mark.parametrize("name", ["ep_000099", "latest", ""])
def test_missing_checkpoint_raises(tmp_path, name):
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(UsageError, match="checkpoint"):
        go(tmp_path / "again", resume_from=str(tmp_path / "checkpoints" / name))


def test_checkpoint_of_another_agent_raises(tmp_path):
    go(tmp_path / "run", n=2)

    def other():
        return MemoryAgent(MemoryAgentConfig(), FunctionModel(answer))

    with pytest.raises(UsageError, match=r"ReflexionAgent.*MemoryAgent"):
        go(tmp_path / "again", agent=other, resume_from=str(tmp_path / "run/checkpoints/ep_000002"))


def sheet_agent():
    return DynamicCheatsheetAgent(DynamicCheatsheetAgentConfig(), FunctionModel(answer))


def without_memory():
    return MemorylessAgent(MemorylessAgentConfig(), FunctionModel(answer))


def untimed(path):
    return [{key: value for key, value in json.loads(line).items() if key != "timestamp"} for line in path.open()]


@pytest.mark.parametrize("kind", [agent, sheet_agent, without_memory])
@pytest.mark.parametrize("episode", [2, 6, 8])
def test_resumed_equals_uninterrupted(tmp_path, kind, episode):
    uninterrupted, learned = go(tmp_path / "whole", agent=kind)
    before = tree_hash(tmp_path / "whole")
    resumed, again = go(
        tmp_path / "resumed", agent=kind, resume_from=str(tmp_path / f"whole/checkpoints/ep_{episode:06d}")
    )
    assert resumed == uninterrupted
    assert tree_hash(tmp_path / "whole") == before, "the old directory is untouched"
    if kind is not without_memory:
        assert again.memory.snapshot() == learned.memory.snapshot()
        assert again.memory.config == learned.memory.config
        last = "checkpoints/ep_000010/memory_10.jsonl"
        assert (tmp_path / "resumed" / last).read_bytes() == (tmp_path / "whole" / last).read_bytes()
    assert (tmp_path / "resumed/metrics.json").read_bytes() == (tmp_path / "whole/metrics.json").read_bytes()
    for name in ("train/scores.jsonl", "val/5_seen_episodes_scores.jsonl", "val/10_seen_episodes_scores.jsonl"):
        assert untimed(tmp_path / "resumed/scores" / name) == untimed(tmp_path / "whole/scores" / name)
    state = [checkpoints.load(tmp_path / name / "checkpoints/latest").state.dump() for name in ("whole", "resumed")]
    assert state[0] == state[1]


def test_resume_visits_only_remaining_environments(tmp_path):
    go(tmp_path / "whole")
    _, made = go(tmp_path / "resumed", resume_from=str(tmp_path / "whole/checkpoints/ep_000006"))
    questions = [user.splitlines()[-1] for _, user in made.lm.calls if user.splitlines()[-1].startswith("Q: q")]
    assert questions == ["Q: q6", "Q: q7", "Q: q8", "Q: q9"]


def test_start_episode_index_skips_and_counts(tmp_path):
    (tmp_path / "run").mkdir()
    run = RunTime(
        RunTimeConfig(verbose=False, start_episode_index=2, scores_path="s.jsonl"),
        ListDataset([SpyEnv(name) for name in "abcd"]),
        MemoryAgent(MemoryAgentConfig(), FunctionModel(answer)),
        results_dir=tmp_path / "run",
    )
    assert run.run()["train_episodes"] == 2
    assert [row["episode_index"] for row in untimed(tmp_path / "run/s/train/s.jsonl")] == [3, 4]


def test_trials_resume_at_the_next_environment(tmp_path):
    config = {"num_trials": 3, "checkpoint_every_episodes": 2, "validation_freq": None}
    uninterrupted, _ = go(tmp_path / "whole", n=4, **config)
    assert saved(tmp_path / "whole/checkpoints") == [3, 6, 9, 12]
    resumed, _ = go(tmp_path / "resumed", n=4, resume_from=str(tmp_path / "whole/checkpoints/ep_000006"), **config)
    assert resumed == uninterrupted


CALLS = ("fsync", "replace", "rename", "symlink", "mkdir", "write", "unlink")


def killed_at(results: Path, number: int) -> bool:
    """Run in a forked child that dies at its n-th disk-changing call; return whether it died."""
    pid = os.fork()
    if pid == 0:
        left = [number]

        def fatal(function):
            def call(*args, **kwargs):
                left[0] -= 1
                if left[0] == 0:
                    os._exit(137)
                return function(*args, **kwargs)

            return call

        status = 1
        try:
            for name in CALLS:
                setattr(os, name, fatal(getattr(os, name)))
            go(results, checkpoint_keep_last=2)
            status = 0
        finally:
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status in (0, 137)
    return status == 137


def test_resume_after_any_of_fifty_kills_equals_the_uninterrupted_run(tmp_path):
    uninterrupted, learned = go(tmp_path / "whole", checkpoint_keep_last=2)
    total = 1
    while killed_at(tmp_path / f"probe{total}", total):
        total *= 2
    low, high = total // 2, total  # the number of calls lies between
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if killed_at(tmp_path / f"search{middle}", middle) else (low, middle)
    call_numbers = sorted({1 + round(i * (low - 1) / 49) for i in range(50)})
    assert len(call_numbers) == 50
    for call_number in call_numbers:
        killed = tmp_path / f"dead{call_number}"
        assert killed_at(killed, call_number)
        latest = killed / "checkpoints/latest"
        for path in sorted((killed / "checkpoints").glob("ep_*")):
            checkpoints.load(path)  # every directory with the name of a checkpoint is complete
        named = (killed / "checkpoints/latest.json").exists()
        config = {"resume_from": str(latest)} if named else {}
        resumed, again = go(tmp_path / f"resumed{call_number}", checkpoint_keep_last=2, **config)
        assert resumed == uninterrupted, call_number
        assert again.memory.snapshot() == learned.memory.snapshot(), call_number
        name = "scores/train/scores.jsonl"
        assert untimed(tmp_path / f"resumed{call_number}" / name) == untimed(tmp_path / "whole" / name), call_number
