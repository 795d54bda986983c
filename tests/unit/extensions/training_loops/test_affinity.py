"""CPU affinity: validated, applied to every process of a training, and recorded."""

from __future__ import annotations

import os
from typing import Any

import pytest

from autoqec.errors import UsageError
from autoqec.qec.problem import Problem
from autoqec.runner import AsyncRl, MinibatchRl, SyncRl
from autoqec.runner.devices import Affinity, format_cpus
from autoqec.runner.logger import TrainLogger
from autoqec.store.layout import RoundLayout
from tests.support.loops import Make
from tests.support.progress import progress_rows


@pytest.fixture(autouse=True)
def restore() -> Any:
    cpus = os.sched_getaffinity(0)
    yield
    os.sched_setaffinity(0, cpus)


def test_cpus_are_shown_as_ranges() -> None:
    assert format_cpus({0, 1, 2, 5, 7, 8}) == "0-2 5 7-8" and format_cpus(()) == ""


def test_unknown_key_and_a_missing_cpu_are_refused() -> None:
    with pytest.raises(UsageError, match="unknown key 'gpus'.*master_cpus"):
        Affinity.of({"gpus": (0,)})
    with pytest.raises(UsageError, match="CPU 4095 is not available"):
        Affinity.of({"workers_cpus": ((0,), (4095,))})


def test_workers_are_assigned_cpus_round_robin() -> None:
    cpu = min(os.sched_getaffinity(0))
    affinity = Affinity.of({"workers_cpus": [cpu, (cpu,)]})
    assert [affinity.worker(number) for number in range(3)] == [(cpu,)] * 3
    assert Affinity.of(None).worker(0) == ()


def test_runner_parameters_are_positional_and_affinity_is_recorded(problem: Problem, layout: RoundLayout) -> None:
    cpu = max(os.sched_getaffinity(0))
    agent, sampler, algo = Make("edges")()
    MinibatchRl(algo, agent, sampler, 128, 3, {"master_cpus": (cpu,)}, 64, logger=TrainLogger(layout)).train()
    assert [(row["CumSteps"], row["Cpus"], row["Device"]) for row in progress_rows(layout)] == [
        ("64", str(cpu), "cpu"), ("128", str(cpu), "cpu"),
    ]  # fmt: skip
    assert os.sched_getaffinity(0) == {cpu}


def test_loop_without_logger_trains_and_writes_nothing(layout: RoundLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(layout.dir)
    agent, sampler, algo = Make("edges")()
    loop = MinibatchRl(algo, agent, sampler, 128)
    loop.train()
    assert len(loop.logger.losses) == 4 and not list(layout.dir.iterdir())


@pytest.mark.parametrize("kind", [SyncRl, AsyncRl])
def test_spawned_processes_get_the_workers_cpus(
    kind: Any, layout: RoundLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    from autoqec.contracts.dsl import ReplayConfig
    from autoqec.extensions.training_loops.process_group import WorkerGroup

    cpu = max(os.sched_getaffinity(0))
    seen: dict[str, set[int]] = {}
    ready = WorkerGroup.await_ready

    def await_ready(self: WorkerGroup) -> None:
        ready(self)
        seen.update({name: os.sched_getaffinity(pid) for name, pid in self.pids.items()})

    monkeypatch.setattr(WorkerGroup, "await_ready", await_ready)
    make = Make("edges", settings={"pause": 0.05})
    agent, sampler, algo = make()
    more = {"world_size": 2} if kind is SyncRl else {"replay": ReplayConfig(shots=4096)}
    kind(algo, agent, sampler, 512, 0, {"workers_cpus": (cpu,)}, build=make, **more).train()
    assert seen["rank 1" if kind is SyncRl else "sampler 0"] == {cpu}
