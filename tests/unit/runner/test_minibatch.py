"""Sampler, agent, algorithm and runner, and the minibatch loops over them."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

from autoqec.errors import RoundError
from autoqec.qec.problem import Problem
from autoqec.runner import MinibatchRl, MinibatchRlEval
from autoqec.runner.agents import PredecoderAgent
from autoqec.runner.algorithms import MatchingFinetune, SupervisedEdges
from autoqec.runner.logger import TrainLogger
from autoqec.runner.samplers import EdgeLabelSampler, NearFailureSampler
from autoqec.store.layout import RoundLayout
from tests.support.progress import progress_rows
from tests.unit.runner.conftest import make_agent


def supervised() -> SupervisedEdges:
    return SupervisedEdges(learning_rate=3e-3, weight_decay=1e-4)


def loop_over(
    problem: Problem, layout: RoundLayout, kind: type = MinibatchRl, logger: TrainLogger | None = None, **more: Any
) -> Any:
    settings: dict[str, Any] = {"n_steps": 1024, "log_interval_steps": 256, **more}
    return kind(
        algo=settings.pop("algo", None) or supervised(),
        agent=settings.pop("agent", None) or make_agent(problem),
        sampler=settings.pop("sampler", None) or EdgeLabelSampler(problem, 64, seed=5, eval_shots=200),
        logger=logger or TrainLogger(layout),
        **settings,
    )


def test_startup_order(problem: Problem, layout: RoundLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def spy(owner: type, name: str, *, through: bool = True) -> None:
        original = getattr(owner, name)

        def called(self: Any, *args: Any, **kwargs: Any) -> Any:
            calls.append(name if name != "initialize" else f"{owner.__name__}.initialize")
            return original(self, *args, **kwargs) if through else None

        monkeypatch.setattr(owner, name, called)

    spy(EdgeLabelSampler, "initialize")
    spy(PredecoderAgent, "to_device")
    spy(PredecoderAgent, "data_parallel", through=False)
    spy(SupervisedEdges, "initialize")
    spy(MinibatchRl, "initialize_logging")
    order = ["EdgeLabelSampler.initialize", "to_device", "SupervisedEdges.initialize", "initialize_logging"]
    loop_over(problem, layout).startup()
    assert calls == order
    calls.clear()
    alone = loop_over(problem, layout, world_size=2)
    alone.startup()
    assert calls == [*order[:2], "data_parallel", *order[2:]]
    assert alone.itr_batch_size == 128 and alone.sampler.batch_size == 64, "batches are never adjusted, only counted"


def test_budget_counts_shots_and_every_batch_logs_a_loss(problem: Problem, layout: RoundLayout) -> None:
    logger = TrainLogger(layout)
    loop_over(problem, layout, logger=logger, n_steps=1000, log_interval_steps=300).train()
    assert len(logger.losses) == 1000 // 64
    lines = layout.train_log.read_text().splitlines()
    assert [int(line.split("\t")[0]) for line in lines] == list(range(15))
    assert [float(line.split("\t")[1]) for line in lines] == pytest.approx(logger.losses, rel=1e-8)
    assert [row["CumSteps"] for row in progress_rows(layout)] == ["256", "512", "768", "960"]
    assert progress_rows(layout)[-1]["CumUpdates"] == progress_rows(layout)[-1]["Iteration"] == "15"


def test_minibatch_reports_training_shots_and_never_evaluates(
    problem: Problem, layout: RoundLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(self: Any, itr: int) -> None:
        raise AssertionError("an online loop evaluated")

    monkeypatch.setattr(EdgeLabelSampler, "evaluate_agent", never)
    drawn: list[np.ndarray] = []
    original = EdgeLabelSampler.obtain_samples

    def keep(self: Any, itr: int) -> Any:
        samples, infos = original(self, itr)
        drawn.append(samples.detections.sum(1))
        return samples, infos

    monkeypatch.setattr(EdgeLabelSampler, "obtain_samples", keep)
    loop_over(problem, layout).train()
    last = progress_rows(layout)[-1]
    assert float(last["DetectionsAverage"]) == pytest.approx(np.concatenate(drawn).mean())
    assert float(last["DetectionsMax"]) == np.concatenate(drawn).max()
    assert (last["StepsInTrajWindow"], last["NewCompletedTrajs"], last["CumCompletedTrajs"]) == ("1024", "256", "1024")
    assert "PredecoderFailAverage" not in last


def test_minibatch_eval_evaluates_before_training_and_at_every_interval(
    problem: Problem, layout: RoundLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[bool, int]] = []
    original = EdgeLabelSampler.evaluate_agent
    loop = loop_over(problem, layout, MinibatchRlEval)

    def watch(self: Any, itr: int) -> Any:
        seen.append((loop.agent.model.training, len(loop.logger.losses)))
        return original(self, itr)

    monkeypatch.setattr(EdgeLabelSampler, "evaluate_agent", watch)
    loop.train()
    assert seen == [(False, 0), (False, 4), (False, 8), (False, 12), (False, 16)]
    table = progress_rows(layout)
    assert [row["Iteration"] for row in table] == ["0", "4", "8", "12", "16"]
    assert table[0]["PlainFailAverage"] == table[0]["PredecoderFailAverage"], "an untrained net decodes as its backend"
    assert all(row["StepsInEval"] == "200" for row in table) and "StepsInTrajWindow" not in table[0]


def test_evaluation_does_not_change_training(
    problem: Problem, layout: RoundLayout, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = EdgeLabelSampler.evaluate_agent

    def careless(self: Any, itr: int) -> Any:
        torch.rand(5)
        return original(self, itr)

    monkeypatch.setattr(EdgeLabelSampler, "evaluate_agent", careless)
    losses, streams = [], []
    for kind in (MinibatchRl, MinibatchRlEval):
        logger = TrainLogger(RoundLayout(tmp_path / kind.__name__, 1))
        (tmp_path / kind.__name__).mkdir()
        loop_over(problem, layout, kind, logger=logger).train()
        losses.append(logger.losses)
        streams.append(torch.rand(3))
    assert losses[0] == losses[1]
    assert torch.equal(*streams)


def test_snapshot_reproduces_the_next_loss_exactly(problem: Problem, layout: RoundLayout) -> None:
    for algo, other, sampler in (
        (supervised(), supervised(), EdgeLabelSampler(problem, 64, 5)),
        (
            MatchingFinetune(problem, learning_rate=1e-3),
            MatchingFinetune(problem, learning_rate=1e-3),
            NearFailureSampler(problem, 16, 5, gap=6.0),
        ),
    ):
        loop = loop_over(problem, layout, algo=algo, sampler=sampler, n_steps=64 * 8)
        loop.startup()
        for itr in range(3):
            algo.optimize_agent(itr, sampler.obtain_samples(itr)[0])
        snapshot = loop.get_itr_snapshot(2)
        assert set(snapshot) == {"itr", "cum_steps", "agent_state_dict", "optimizer_state_dict"}
        assert (snapshot["itr"], snapshot["cum_steps"]) == (2, 3 * sampler.batch_size)
        batches = [sampler.obtain_samples(itr)[0] for itr in (3, 4)]
        expected = [algo.optimize_agent(itr, batch) for itr, batch in enumerate(batches, start=3)]
        fresh = make_agent(problem, seed=99)
        fresh.load_state_dict(snapshot["agent_state_dict"])
        other.initialize(fresh, n_itr=loop.algo.n_itr, batch_size=sampler.batch_size)
        other.load_optim_state_dict(snapshot["optimizer_state_dict"])
        assert [other.optimize_agent(itr, batch) for itr, batch in enumerate(batches, start=3)] == expected


@pytest.mark.parametrize(
    ("mode", "files"),
    [
        ("none", []),
        ("last", ["training_last.pt"]),
        ("all", [f"training_itr_{itr}.pt" for itr in (11, 15, 3, 7)]),
        ("gap", ["training_itr_15.pt", "training_itr_7.pt"]),
    ],
)
def test_snapshot_modes(problem: Problem, layout: RoundLayout, mode: Any, files: list[str]) -> None:
    loop = loop_over(problem, layout, logger=TrainLogger(layout, snapshot_mode=mode, snapshot_gap=8))
    loop.train()
    assert sorted(path.name for path in layout.train_dir.glob("*.pt")) == files
    if files:
        snapshot = torch.load(layout.train_dir / files[-1], weights_only=True)
        assert snapshot["itr"] == (7 if mode in ("all", "gap") else 15)
        assert set(snapshot["agent_state_dict"]) == set(loop.agent.state_dict())


def test_non_finite_loss_ends_the_round_and_names_the_step(
    problem: Problem, layout: RoundLayout, agent: PredecoderAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    poisoned = iter([False] * 5 + [True])
    original = PredecoderAgent.__call__
    monkeypatch.setattr(
        PredecoderAgent, "__call__", lambda self, x: original(self, x) * (float("nan") if next(poisoned) else 1.0)
    )
    with pytest.raises(RoundError, match="step 5") as stop:
        loop_over(problem, layout, agent=agent).train()
    assert stop.value.status == "killed_by_safety"
    assert layout.train_log.read_text().splitlines()[-1] == "5\tnan"
    assert all(torch.isfinite(value).all() for value in agent.state_dict().values()), "no step was taken on it"


def test_late_column_is_empty_in_earlier_rows(layout: RoundLayout) -> None:
    logger = TrainLogger(layout)
    logger.record_row({"a": 1})
    logger.begin("finetuning")
    logger.record_row({"a": 2, "b": 3})
    assert layout.progress.read_text() == "Phase,a,b\ntraining,1,\nfinetuning,2,3\n"


def test_importing_the_package_does_not_import_torch() -> None:
    code = "import sys, autoqec.runner as r; assert 'torch' not in sys.modules; print(r.MinibatchRl.__name__)"
    subprocess.run([sys.executable, "-c", code], check=True)
