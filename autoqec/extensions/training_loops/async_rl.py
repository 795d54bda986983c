"""AsyncRl and AsyncRlEval: sampling and optimization in separate processes.

    sampler i ── double buffer i ── copier i ── replay buffer ── optimizer
        ╰────────────── published parameters ──────────────────────╯

Samplers draw at full speed, copiers fill a shared replay buffer, and this process optimizes, alone or as rank 0 of
several (`ranks`) that each draw their own batches from the replay buffer. It never exceeds the replay ratio, by counts.
If it is slower than the samplers, the achieved ratio is lower and is logged: once the last batch has arrived, it takes
only the updates that batches still in flight would have allowed. With `throttle: both` samplers wait for it, and it
takes all updates. Parameters are published after every update into memory that is separate from the weights being
optimized, with and without a GPU; samplers fetch them before each batch.
"""

from __future__ import annotations

import math
import os
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from autoqec.contracts.dsl import ReplayConfig, TrainingConfig
from autoqec.errors import UsageError
from autoqec.extensions.training_loops import replay_buffer as shared_replay
from autoqec.extensions.training_loops.process_group import Worker
from autoqec.extensions.training_loops.ranks import RankLoop
from autoqec.extensions.training_loops.replay_buffer import DoubleBuffer, ReplayBuffer, Throttle
from autoqec.extensions.training_loops.shared_memory import Mutex, SharedArray
from autoqec.runner.agents import Agent
from autoqec.runner.algorithms import OptInfo
from autoqec.runner.minibatch import TRAJ_WINDOW, BuildFn
from autoqec.runner.samples import Samples, TrajInfos

POLL_S = 0.001
VERSION_FIGURE = "ParameterVersion"
LAST_UPDATE = -1  # announced to the other ranks instead of the number of an update


class ParameterServer:
    """The published copy of an agent's weights and buffers.

    Attributes:
        version: How often parameters were published.
    """

    def __init__(self, agent: Agent) -> None:
        self._values = {
            name: SharedArray(tuple(value.shape), value.numpy().dtype) for name, value in agent.state_dict().items()
        }
        self._version = SharedArray((1,), np.int64)
        self.lock = Mutex()

    @property
    def version(self) -> int:
        """How often parameters were published."""
        return int(self._version.array[0])

    def publish(self, agent: Agent) -> None:
        """Copy the agent's parameters and increment the version."""
        state = agent.state_dict()
        with self.lock:
            for name, shared in self._values.items():
                shared.array[...] = state[name].numpy()
            self._version.array[0] += 1

    def fetch(self, agent: Agent, current_version: int) -> int:
        """Load newer parameters into `agent`, if there are any.

        Returns:
            The version that the agent has now.
        """
        if self.version == current_version:
            return current_version
        with self.lock:
            state = {name: torch.from_numpy(np.array(shared.array)) for name, shared in self._values.items()}
            version = self.version
        agent.load_state_dict(state)
        return version


@dataclass(frozen=True)
class SamplerTask:
    """What one sampler process draws.

    Attributes:
        number: The sampler's number, from 0.
        samplers: How many samplers there are; this one draws every `samplers`-th batch.
        n_batches: Batches of all samplers together.
        cpus: CPUs of the process; empty: unrestricted.
        throttle: Limits how far the sampler runs ahead of the optimizer; None: not at all.
    """

    number: int
    samplers: int
    n_batches: int
    cpus: tuple[int, ...]
    throttle: Throttle | None


class AsyncRl(RankLoop):
    """Measure performance on online samples: those that arrived since the last row.

    Args:
        args: See `MinibatchRl`; `n_steps` counts samples drawn, over all samplers.
        replay: Ratio, size, number of samplers and throttle.
        replay_buffer: The buffer that a spawned rank draws from.
        settings: Keyword arguments of `RankLoop`. Ranks and `device` are the optimizer's; samplers are on the CPU.
    """

    def __init__(
        self, *args: Any, replay: ReplayConfig, replay_buffer: ReplayBuffer | None = None, **settings: Any
    ) -> None:
        super().__init__(*args, **settings)
        self.settings = replay
        if replay_buffer is not None:
            self.replay = replay_buffer
        self._waited = 0.0

    @classmethod
    def options(cls, training: TrainingConfig, build: BuildFn) -> dict[str, Any]:
        """Return the keyword arguments of this loop that a config sets: device or ranks, and replay."""
        return super().options(training, build) | {"replay": training.replay}

    def startup(self) -> int:
        """Start up as every loop does, then allocate the buffers and start the processes."""
        shared_replay.check_buffer_size(self.sampler.batch_size, self.settings.shots)
        self.throttle = Throttle(self.settings.ratio, self.sampler.batch_size, self.world_size)
        n_itr = super().startup()
        self.log_interval_itrs = max(1, round(self.log_interval_itrs * self.settings.ratio))
        self._rng = np.random.default_rng(self.sampler.train_seed("replay"))
        self.launch()
        self.start_clocks()
        return n_itr

    def planned_updates(self) -> int:
        """Return the number of updates that the replay ratio allows.

        Raises:
            UsageError: It allows none.
        """
        self.n_batches = max(1, self.n_steps // self.sampler.batch_size)  # of all samplers; an update may take several
        drawn = self.n_batches * self.sampler.batch_size
        planned = self.throttle.most(drawn)
        if not planned:
            raise UsageError(
                f"a replay ratio of {self.settings.ratio:g} allows no update on {drawn} shots",
                location="training.replay.ratio",
                hint="raise it, or lower `training.batch_size`",
            )
        return planned

    def launch(self) -> None:
        """Allocate the buffers, then start ranks, samplers and copiers; later changes of this object do not reach them.

        Ranks come first: samplers do not wait for a rank that is still starting.
        """
        samples, figures = self.sampler.obtain_samples(0)
        if any(len(values) != len(samples) for values in figures.values()):
            raise UsageError(
                f"{type(self.sampler).__name__} has trajectories of several steps, and this loop needs one per sample",
                location="sampler",
                hint="use MinibatchRl or SyncRl",
            )
        fields, known = samples.fields(), figure_arrays(figures, 0, len(samples))
        if self.settings.near_failure:
            shared_replay.require_gap_figure(tuple(known))
        self.selection = self.algo.sampler_to_buffer
        self._widths = {name: fields[name].shape[1] for name in self.selection.bits}
        if self.rank:
            self.start_ranks()
            return
        self.replay = ReplayBuffer(self.settings.shots, self.selection(fields), known)
        self.start_ranks(replay=self.settings, replay_buffer=self.replay)
        self.parameter_server, self._updates = ParameterServer(self.agent), SharedArray((1,), np.int64)
        self.parameter_server.publish(self.agent)
        for number in range(self.settings.samplers):
            self._start_sampler(number, DoubleBuffer(self.sampler.batch_size, fields, known))
        self.replay.lock.on_wait = self.parameter_server.lock.on_wait = self.workers.check
        self.workers.await_ready()

    def _start_sampler(self, number: int, double_buffer: DoubleBuffer) -> None:
        copier = (double_buffer, self.replay, self.selection)
        self.workers.start(f"copier {number}", shared_replay.run_copier, *copier)
        task = SamplerTask(
            number=number,
            samplers=self.settings.samplers,
            n_batches=self.n_batches,
            cpus=self.affinity.worker(self.world_size - 1 + number),
            throttle=self.throttle if self.settings.throttle == "both" else None,
        )
        shared = (double_buffer, self.parameter_server, self._updates)
        self.workers.start(f"sampler {number}", run_sampler, self.build, task, *shared)

    def run(self) -> None:
        """Optimize until the samplers have finished; ranks from 1 follow rank 0."""
        try:
            n_itr = self.startup()
            if self.rank:
                self._follow()
                return
            if self.evaluates_offline:
                self.log_diagnostics(0, n_itr)
            self.optimize(n_itr)
            self._announce(LAST_UPDATE)
            self.workers.join()
            if self.replay.appended != self.counter.steps or self.counter.new_updates:
                self.log_diagnostics(self.counter.updates, n_itr)
        finally:
            self.sampler.shutdown()

    def _follow(self) -> None:
        """Take part in the updates that rank 0 announces."""
        while (itr := self._announce(LAST_UPDATE)) != LAST_UPDATE:
            self._step(itr)

    def _announce(self, itr: int) -> int:
        """Send rank 0's `itr` to all ranks; returns it on each of them."""
        if self.world_size == 1:
            return itr
        announced = torch.tensor([itr], device=self.agent.device)
        dist.broadcast(announced, src=0)
        return int(announced)

    def optimize(self, n_itr: int) -> None:
        """Take the updates that the throttle allows until the samplers have finished; at least one."""
        count, total, last = self.counter, self.n_batches * self.sampler.batch_size, n_itr
        while count.updates < last:
            drawn = self.replay.appended
            if drawn == total and last == n_itr and self.settings.throttle == "optimizer":
                pending_updates = math.ceil(2 * self.settings.samplers * self.settings.ratio / self.world_size)
                last = min(n_itr, count.updates + pending_updates)
            if not self.throttle.allows_update(count.updates, drawn):
                self.workers.check()
                time.sleep(POLL_S)
                self._waited += POLL_S
                continue
            self.update(max(count.updates, min(n_itr - 1, n_itr * drawn // total - 1)))
            if count.updates % self.log_interval_itrs == 0 and count.updates < last:
                self.log_diagnostics(count.updates, n_itr)

    def update(self, itr: int) -> None:
        """Take one optimizer step on stored samples and publish the parameters.

        Args:
            itr: Position in the learning-rate schedule: by updates, or by samples drawn if that is further.
        """
        self._announce(itr)
        self.store_update(self._step(itr))
        self._updates.array[0] = self.counter.updates
        self.parameter_server.publish(self.agent)
        self.workers.check()

    def _step(self, itr: int) -> OptInfo:
        """Take this rank's part of an optimizer step."""
        rows = self.replay.draw(self.sampler.batch_size, self._rng, near_failure=self.settings.near_failure)
        self.agent.train_mode(itr)
        return self.algo.optimize_agent(itr, Samples(**self.selection.restore(rows, self._widths)))

    def traj_figures(self, itr: int) -> dict[str, Any]:
        """Count the samples that have arrived, and return statistics of those since the last row, or evaluate."""
        figures = self.offline_figures(itr) if self.evaluates_offline else {}
        arrived = self.replay.appended - self.counter.steps
        self.counter.add_samples(arrived, arrived)
        if self.evaluates_offline:
            return figures
        since = self.counter.steps - self.counter.new_steps
        self._window = deque([self.replay.figures(since, TRAJ_WINDOW * self.sampler.batch_size)])
        return self.online_figures()

    def replay_figures(self) -> dict[str, Any]:
        """Return the achieved replay ratios and how long the optimizer waited."""
        count = self.counter
        return {
            "ReplayRatio": self.throttle.achieved_ratio(count.new_updates, count.new_steps),
            "CumReplayRatio": self.throttle.achieved_ratio(count.updates, count.steps),
            "ReplayRatioSet": self.settings.ratio,
            "OptimizerWaited": round(self._waited, 3),
            "ParametersPublished": self.parameter_server.version,
            **(self.rank_figures() if self.world_size > 1 else {}),
        }

    def get_itr_snapshot(self, itr: int) -> dict[str, Any]:
        """Return the state after update `itr`; `cum_steps` counts samples drawn."""
        return super().get_itr_snapshot(itr) | {"cum_steps": self.counter.steps}


class AsyncRlEval(AsyncRl):
    """Measure performance on offline samples, which the optimizer's process decodes while samplers continue."""

    evaluates_offline = True


def figure_arrays(figures: TrajInfos, version: int, n: int) -> dict[str, np.ndarray]:
    """Return the statistics as float32 [n] each, with the version of the parameters that drew the samples."""
    return {
        **{name: values.astype(np.float32) for name, values in figures.items()},
        VERSION_FIGURE: np.full(n, version, np.float32),
    }


def run_sampler(
    worker: Worker,
    build: BuildFn,
    task: SamplerTask,
    double_buffer: DoubleBuffer,
    parameter_server: ParameterServer,
    updates: SharedArray,
) -> None:
    """Draw this sampler's batches in its own process."""
    if task.cpus:
        os.sched_setaffinity(0, task.cpus)
    agent, sampler, _ = build()
    sampler.initialize(agent, rank=task.number, world_size=task.samplers)
    worker.ready()
    version = 0
    for batch in range(task.number, task.n_batches, task.samplers):
        throttle = task.throttle
        while throttle is not None and throttle.sampler_must_wait(batch, int(updates.array[0]), task.samplers):
            time.sleep(POLL_S)
        version = parameter_server.fetch(agent, version)
        agent.sample_mode(batch)
        samples, figures = sampler.obtain_samples(batch)
        double_buffer.fill(samples.fields(), figure_arrays(figures, version, len(samples)))
    double_buffer.end()
