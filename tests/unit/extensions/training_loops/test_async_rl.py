"""Asynchronous training: samplers, copiers and optimizer as real processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from autoqec.contracts.dsl import ReplayConfig
from autoqec.errors import RoundError, UsageError
from autoqec.extensions.training_loops.async_rl import ParameterServer, figure_arrays
from autoqec.extensions.training_loops.replay_buffer import Throttle, run_copier
from autoqec.runner import AsyncRl, AsyncRlEval, MinibatchRl
from autoqec.runner.algorithms import OptInfo
from autoqec.runner.logger import TrainLogger
from autoqec.runner.minibatch import SampleCounter
from autoqec.runner.samples import FieldSelection
from autoqec.store.layout import RoundLayout
from tests.support.loops import Make, difference
from tests.support.progress import progress_rows

from .test_process_group import alive, wait_until_ended

ROOT = Path(__file__).parents[4]
BATCH = 32


def loop_of(kind: type, make: Make, layout: RoundLayout, replay: dict[str, Any], **more: Any) -> Any:
    agent, sampler, algo = make()
    settings: dict[str, Any] = {"n_steps": 40 * BATCH, "log_interval_steps": 10 * BATCH, **more}
    return kind(
        agent=agent,
        sampler=sampler,
        algo=algo,
        build=make,
        replay=ReplayConfig(**{"shots": 4096, **replay}),
        logger=settings.pop("logger", None) or TrainLogger(layout, snapshot_mode="last"),
        **settings,
    )


class Watched(AsyncRl):
    """Records the processes and parameters that it sees."""

    def launch(self) -> None:
        super().launch()
        self.pids = dict(self.workers.pids)
        # The copiers have their own selection by now; with this one they would have nothing to copy.
        self.algo.samples_to_buffer = FieldSelection(())
        while self.replay.appended < 4 * BATCH:
            self.workers.check()
            time.sleep(0.01)
        self.before_the_first_update = self.replay.appended
        self.counted: list[tuple[int, int]] = []

    def update(self, itr: int) -> None:
        drawn = self.replay.appended
        super().update(itr)
        self.counted.append((self.counter.updates, drawn))


def test_samplers_copiers_and_optimizer_are_separate_processes_and_no_batch_is_lost(layout: RoundLayout) -> None:
    loop = loop_of(
        Watched, Make("gaps"), layout, {"samplers": 2, "throttle": "both", "near_failure": 0.25, "ratio": 2.0}
    )
    start = loop.agent.state_dict()
    loop.train()
    assert set(loop.pids) == {"sampler 0", "sampler 1", "copier 0", "copier 1"}
    assert len({os.getpid(), *loop.pids.values()}) == 5
    assert loop.before_the_first_update >= 4 * BATCH, "they drew and copied while the optimizer did nothing"
    assert loop.replay.appended == loop.counter.steps == 40 * BATCH, "the last batches arrived too"
    assert all(updates * BATCH <= 2.0 * drawn for updates, drawn in loop.counted), (
        "never above, from the first update on"
    )
    assert len(loop.logger.losses) == loop.counter.updates == 80, "samplers that wait let it reach the ratio"
    assert difference(start, loop.agent.state_dict()) > 1e-3
    table = progress_rows(layout)
    for row in table:
        updates, drawn = int(row["CumUpdates"]), int(row["CumSteps"])
        assert float(row["CumReplayRatio"]) == pytest.approx(updates * BATCH / drawn) and drawn <= 40 * BATCH
    assert float(table[-1]["CumReplayRatio"]) == 2.0 and table[-1]["CumCompletedTrajs"] == str(40 * BATCH)
    assert max(float(row["ParameterVersionMax"] or 0) for row in table) > 10, "what was learnt reached the samplers"
    assert "GapAverage" in table[0] and "DetectionsAverage" in table[0]
    assert (layout.train_dir / "training_last.pt").exists()
    assert not any(map(alive, loop.pids.values())) and not multiprocessing.active_children()


def test_copiers_get_the_selection_of_sampler_to_buffer(layout: RoundLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stop(Exception):
        pass

    def stop(self: Any, name: str, target: Any, *args: Any) -> None:
        started.append((name, target, args))
        raise Stop

    started: list[tuple[str, Any, Any]] = []
    chosen = FieldSelection(("edges",), bits=("edges",))
    loop = loop_of(AsyncRl, Make("edges"), layout, {})
    monkeypatch.setattr(type(loop.algo), "sampler_to_buffer", chosen)
    monkeypatch.setattr("autoqec.extensions.training_loops.process_group.WorkerGroup.start", stop)
    with pytest.raises(Stop):
        loop.train()
    ((name, target, (double_buffer, replay, selection)),) = started
    assert name == "copier 0" and target is run_copier and selection == chosen
    samples, figures = loop.sampler.obtain_samples(1)
    double_buffer.fill(samples.fields(), figure_arrays(figures, 0, BATCH))
    double_buffer.end()
    double_buffer.drain(replay, selection)
    stored = replay.draw(8, np.random.default_rng(0))
    assert set(stored) == {"edges"} and stored["edges"].shape[1] == -(-samples.fields()["edges"].shape[1] // 8)


def test_optimizer_waits_for_slow_samplers(layout: RoundLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch arrives each time the optimizer waits; no processes run."""
    counted: list[tuple[int, int]] = []
    loop = loop_of(AsyncRl, Make("edges"), layout, {"ratio": 2.0})
    buffer = SimpleNamespace(appended=0)

    def arrive() -> None:
        buffer.appended += BATCH

    def update(itr: int) -> None:
        loop.counter.add_update()
        counted.append((loop.counter.updates, buffer.appended // BATCH))

    parts = {"replay": buffer, "workers": SimpleNamespace(check=arrive), "update": update}
    counts = {"n_batches": 4, "throttle": Throttle(2.0, BATCH), "counter": SampleCounter(), "log_interval_itrs": 100}
    for name, value in (parts | counts).items():
        monkeypatch.setattr(loop, name, value, raising=False)
    loop.optimize(8)
    assert counted == [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3), (6, 3), (7, 4), (8, 4)] and loop._waited > 0


class Slow(AsyncRlEval):
    def update(self, itr: int) -> None:
        while self.replay.appended < min(40, 10 * (1 + self.counter.updates)) * BATCH:
            self.workers.check()
            time.sleep(0.005)
        super().update(itr)


def test_slow_optimizer_logs_the_lower_ratio_and_evaluates_offline(layout: RoundLayout) -> None:
    loop = loop_of(Slow, Make("policy"), layout, {"throttle": "optimizer"})
    loop.train()
    table = progress_rows(layout)
    assert loop.counter.steps == 40 * BATCH and 1 <= loop.counter.updates < 40
    assert float(table[-1]["CumReplayRatio"]) == pytest.approx(loop.counter.updates / 40)
    assert table[0]["Iteration"] == "0" and table[0]["PlainFailAverage"] == table[0]["PredecoderFailAverage"]
    assert all(row["TrajsInEval"] == "100" for row in table) and "ReturnAverage" not in table[0]


@pytest.mark.parametrize(
    ("who", "words"),
    [("", "sampler 0: ValueError: this sampler has had enough"), ("copier 0", r"copier 0 \(process \d+\) .* signal 9")],
)
def test_failed_process_ends_all_and_is_named(layout: RoundLayout, who: str, words: str) -> None:
    class Killer(AsyncRl):
        def launch(self) -> None:
            super().launch()
            self.pids = dict(self.workers.pids)
            if who:
                os.kill(self.pids[who], signal.SIGKILL)

    make = Make("edges", settings={"pause": 0.02} if who else {"trouble": "raise"})
    loop = loop_of(Killer, make, layout, {"throttle": "both"}, n_steps=4000 * BATCH)
    with pytest.raises(RoundError, match=words) as failure:
        loop.train()
    assert failure.value.status == "train_error"
    assert not any(map(alive, loop.pids.values())), "no process is left when the failure is raised"


class Fixed(AsyncRl):
    """Optimizes on the sampler's own shots instead of the replay buffer's: rank r of w takes the r-th of w parts."""

    def launch(self) -> None:
        self.steps = 0
        super().launch()
        self.pids = dict(self.workers.pids)

    def _step(self, itr: int) -> OptInfo:
        samples, _ = self.sampler.obtain_samples(self.steps)
        self.steps += 1
        return self.algo.optimize_agent(itr, samples)


def test_two_optimizing_ranks_equal_one_with_a_double_batch(layout: RoundLayout, tmp_path: Path) -> None:
    pair = loop_of(Fixed, Make("fixed"), layout, {"throttle": "both"}, n_steps=16 * BATCH, world_size=2)
    start = pair.agent.state_dict()
    pair.train()
    (tmp_path / "alone").mkdir()
    agent, sampler, algo = Make("fixed", batch_size=2 * BATCH)()
    alone = MinibatchRl(algo, agent, sampler, 16 * BATCH, logger=TrainLogger(RoundLayout(tmp_path / "alone", 1)))
    alone.train()
    assert difference(start, agent.state_dict()) > 1e-3, "something was learnt"
    assert difference(pair.agent.state_dict(), agent.state_dict()) < 1e-6
    assert pair.logger.losses == pytest.approx(alone.logger.losses, rel=1e-5) and len(alone.logger.losses) == 8
    last = progress_rows(layout)[-1]
    assert (last["Ranks"], last["EffectiveBatchSize"], last["Collectives"]) == ("2", str(2 * BATCH), "gloo")
    assert (last["CumSteps"], last["CumUpdates"], last["CumReplayRatio"]) == (str(16 * BATCH), "8", "1.0")
    assert set(pair.pids) == {"rank 1", "sampler 0", "copier 0"}
    assert not any(map(alive, pair.pids.values())) and not multiprocessing.active_children()


def test_ranks_draw_different_batches_of_the_replay_buffer(layout: RoundLayout) -> None:
    pair = loop_of(AsyncRlEval, Make("edges"), layout, {"throttle": "both", "ratio": 2.0}, world_size=2)
    pair.train()
    table = progress_rows(layout)
    assert pair.counter.updates == 40 and float(table[-1]["CumReplayRatio"]) == 2.0
    assert all(row["TrajsInEval"] == "100" for row in table), "rank 0 alone evaluates: see Troubled.evaluate_agent"
    agent, sampler, _ = Make("edges")()
    sampler.initialize(agent, rank=0, world_size=2)
    seeds = {sampler.train_seed("replay")}
    sampler.initialize(agent, rank=1, world_size=2)
    assert len(seeds | {sampler.train_seed("replay")}) == 2


class RankKiller(AsyncRl):
    """Kills rank 1 before the first update."""

    def optimize(self, n_itr: int) -> None:
        self.pids = dict(self.workers.pids)
        os.kill(self.pids["rank 1"], signal.SIGKILL)
        super().optimize(n_itr)


def test_killed_optimizing_rank_ends_all_and_is_named(layout: RoundLayout) -> None:
    loop = loop_of(RankKiller, Make("edges"), layout, {"throttle": "both"}, n_steps=4000 * BATCH, world_size=2)
    with pytest.raises(RoundError, match=r"rank 1 \(process \d+\) was ended by signal 9"):
        loop.train()
    assert not any(map(alive, loop.pids.values())), "no process is left when the failure is raised"


OPTIMIZER = """
import os, signal, sys
from pathlib import Path
from autoqec.runner import AsyncRl
from autoqec.store.layout import RoundLayout
from tests.support.loops import Make
from tests.unit.extensions.training_loops.test_async_rl import loop_of

class Doomed(AsyncRl):
    def launch(self):
        super().launch()
        print(*self.workers.pids.values(), flush=True)
    def update(self, itr):
        os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    make = Make("edges", settings={"pause": 0.02})
    loop_of(Doomed, make, RoundLayout(Path(sys.argv[1]), 1), {}, n_steps=10**6).train()
"""


@pytest.mark.long
def test_workers_exit_when_the_optimizer_is_killed(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", OPTIMIZER, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False
    )
    pids = [int(pid) for pid in ended.stdout.split()]
    assert ended.returncode == -signal.SIGKILL and len(pids) == 2 and wait_until_ended(pids)


def test_buffer_ratio_and_gaps_are_checked_at_startup(layout: RoundLayout) -> None:
    with pytest.raises(UsageError, match="batch of 128 shots is larger than the replay buffer of 64"):
        loop_of(AsyncRl, Make("edges", batch_size=128), layout, {"shots": 64}).train()
    with pytest.raises(UsageError, match="allows no update on 32 shots"):
        loop_of(AsyncRl, Make("edges"), layout, {"ratio": 0.5}, n_steps=BATCH).train()
    with pytest.raises(UsageError, match="near_failure: 0"):
        loop_of(AsyncRl, Make("edges"), layout, {"near_failure": 0.5}).train()


def test_published_parameters_are_separate_from_optimized_weights() -> None:
    """Without a GPU too: a copy that aliases the model would have no version and could be read half-updated."""
    (mine, _, _), (theirs, _, _) = Make("edges")(), Make("edges")()
    parameter_server = ParameterServer(mine)
    assert parameter_server.fetch(theirs, 0) == 0, "nothing published, nothing fetched"
    for parameter in mine.parameters():
        parameter.data += 1.0
    parameter_server.publish(mine)
    for parameter in mine.parameters():
        parameter.data += 1.0
    assert parameter_server.fetch(theirs, 0) == 1
    shift = [float((a - b).detach().mean()) for a, b in zip(mine.parameters(), theirs.parameters(), strict=True)]
    assert np.allclose(shift, 1.0), "as published, not as it is being changed"
