"""Training over ranks: real processes and gloo, on one machine."""

from __future__ import annotations

import multiprocessing
from typing import Any

import pytest

from autoqec.errors import RoundError
from autoqec.runner import MinibatchRl, SyncRl, SyncRlEval
from autoqec.runner.logger import TrainLogger
from autoqec.store.layout import RoundLayout
from tests.support.loops import Make, difference
from tests.support.progress import progress_rows


def loop_of(kind: type, make: Make, layout: RoundLayout, **more: Any) -> Any:
    agent, sampler, algo = make()
    settings: dict[str, Any] = {"n_steps": 512, "log_interval_steps": 128, "logger": TrainLogger(layout), **more}
    if kind is not MinibatchRl:
        settings = {"build": make, "world_size": 2, **settings}
    return kind(agent=agent, sampler=sampler, algo=algo, **settings)


def test_two_ranks_equal_one_rank_with_a_double_batch(layout: RoundLayout, tmp_path: Any) -> None:
    pair = loop_of(SyncRl, Make("fixed", batch_size=32), layout)
    pair.train()
    (tmp_path / "alone").mkdir()
    alone_layout = RoundLayout(tmp_path / "alone", 1)
    alone = loop_of(MinibatchRl, Make("fixed", batch_size=64), alone_layout)
    start = alone.agent.state_dict()
    alone.train()
    assert difference(start, alone.agent.state_dict()) > 1e-3, "something was learnt"
    assert difference(pair.agent.state_dict(), alone.agent.state_dict()) < 1e-6
    assert pair.logger.losses == pytest.approx(alone.logger.losses, rel=1e-5), "the effective batch's loss"
    last, same = progress_rows(layout)[-1], progress_rows(alone_layout)[-1]
    assert pair.sampler.batch_size == 32 and last["EffectiveBatchSize"] == "64", "never adjusted, only counted"
    assert last["LearningRate"] == same["LearningRate"] == "0.05"
    assert (last["Ranks"], last["CumCompletedTrajs"], last["CumSteps"]) == ("2", "512", "512")
    assert last["Cores"].isdigit()
    for name in ("DetectionsAverage", "StepsInTrajWindow"):
        assert float(last[name]) == pytest.approx(float(same[name])), "both ranks' trajectories reach the diagnostics"
    assert not multiprocessing.active_children()


def test_only_rank_0_evaluates_and_ranks_may_exceed_cores(layout: RoundLayout) -> None:
    """The samplers of other ranks would raise if they evaluated: see Troubled.evaluate_agent."""
    make = Make("edges")
    trio = loop_of(SyncRlEval, make, layout, world_size=3, n_steps=96 * 3, log_interval_steps=96)
    trio.train()
    table = progress_rows(layout)
    assert [row["Iteration"] for row in table] == ["0", "1", "2", "3"]
    assert all(row["TrajsInEval"] == "100" and row["Ranks"] == "3" for row in table)
    assert table[-1]["CumCompletedTrajs"] == str(96 * 3) and table[-1]["EffectiveBatchSize"] == "96"


def test_killed_rank_ends_the_others_and_is_named(layout: RoundLayout) -> None:
    pair = loop_of(SyncRl, Make("edges", settings={"trouble": "die"}), layout)
    with pytest.raises(RoundError, match=r"rank 1 \(process \d+\) was ended by signal 9") as failure:
        pair.train()
    assert failure.value.status == "train_error" and not multiprocessing.active_children()
    assert 0 < len(pair.logger.losses) <= 4, "it fell at the fourth batch"


def test_startup_precedes_process_start(layout: RoundLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    class Stop(Exception):
        pass

    def stop(self: Any, name: str, *args: Any) -> None:
        calls.append(f"start {name}")
        raise Stop

    pair = loop_of(SyncRl, Make("edges"), layout)
    for owner, name in (
        (pair.sampler, "initialize"), (pair.agent, "to_device"), (pair.agent, "data_parallel"),
        (pair.algo, "initialize"),
    ):  # fmt: skip
        original = getattr(owner, name)

        def called(*args: Any, _do: Any = original, _name: str = f"{type(owner).__name__}.{name}", **named: Any) -> Any:
            calls.append(_name)
            return _do(*args, **named)

        monkeypatch.setattr(owner, name, called)
    monkeypatch.setattr("autoqec.extensions.training_loops.process_group.WorkerGroup.start", stop)
    with pytest.raises(Stop):
        pair.train()
    assert calls == [
        "Troubled.initialize", "PredecoderAgent.to_device", "PredecoderAgent.data_parallel",
        "SupervisedEdges.initialize", "start rank 1",
    ]  # fmt: skip
