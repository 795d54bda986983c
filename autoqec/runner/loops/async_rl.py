"""Asynchronous training: samplers draw at full speed, copiers fill a shared replay buffer, this process optimizes.

    sampler i ── double buffer i ── copier i ── replay buffer ── optimizer
        ╰────────────── published parameters ──────────────────────╯

The optimizer holds itself to the replay ratio by counts. Where it is the slower one, the ratio achieved is lower and
logged: when the last batch has come it only takes the updates that batches on their way would have given, then ends.
With `throttle: both` samplers wait for it, and it takes them all. Parameters are published after every update into
memory apart from the weights that are being optimized, also without a GPU; samplers take them before a batch.
"""

from __future__ import annotations

import math
import time
from collections import deque
from typing import Any

import numpy as np
import torch

from autoqec.contracts.dsl import ReplayConfig
from autoqec.errors import UsageError
from autoqec.runner import replay_buffer as shared_replay
from autoqec.runner.agents import PredecoderAgent
from autoqec.runner.algorithms import OptInfo
from autoqec.runner.loops.minibatch import TRAJ_WINDOW, MinibatchRl, MinibatchRlBase, MinibatchRlEval
from autoqec.runner.loops.sync import BuildFn
from autoqec.runner.process_group import Worker, WorkerGroup
from autoqec.runner.replay_buffer import DoubleBuffer, ReplayBuffer, Throttle
from autoqec.runner.samplers import Samples, TrajInfos
from autoqec.runner.shared_memory import Mutex, SharedArray

POLL_S = 0.001
VERSION_FIGURE = "ParameterVersion"


class ParameterServer:
    """The published copy of an agent's weights and buffers. version: how many were published."""

    def __init__(self, agent: PredecoderAgent) -> None:
        self._values = {
            name: SharedArray(tuple(value.shape), value.numpy().dtype) for name, value in agent.state_dict().items()
        }
        self._version = SharedArray((1,), np.int64)
        self.lock = Mutex()

    @property
    def version(self) -> int:
        return int(self._version.array[0])

    def publish(self, agent: PredecoderAgent) -> None:
        state = agent.state_dict()
        with self.lock:
            for name, shared in self._values.items():
                shared.array[...] = state[name].numpy()
            self._version.array[0] += 1

    def fetch(self, agent: PredecoderAgent, current_version: int) -> int:
        """Give `agent` what was published after version `have`; returns the version it has now."""
        if self.version == current_version:
            return current_version
        with self.lock:
            state = {name: torch.from_numpy(np.array(shared.array)) for name, shared in self._values.items()}
            version = self.version
        agent.load_state_dict(state)
        return version


class _AsyncLoop(MinibatchRlBase):
    """What both asynchronous loops add. n_steps: shots drawn, over all samplers. build: see `sync`."""

    def __init__(self, *, build: BuildFn, replay: ReplayConfig, **settings: Any) -> None:
        super().__init__(**settings)
        self.build, self.settings, self.workers = build, replay, WorkerGroup()

    def startup(self) -> int:
        shared_replay.check_buffer_size(self.sampler.batch_size, self.settings.shots)
        self.throttle = Throttle(self.settings.ratio, self.sampler.batch_size)
        n_itr = super().startup()
        self.log_interval_itrs = max(1, round(self.log_interval_itrs * self.settings.ratio))
        self.launch()
        self.start_clocks()
        return n_itr

    def planned_updates(self) -> int:
        drawn = self.n_batches * self.itr_batch_size
        planned = self.throttle.most(drawn)
        if not planned:
            raise UsageError(
                f"a replay ratio of {self.settings.ratio:g} allows no update on {drawn} shots",
                location="training.replay.ratio",
                hint="raise it, or lower `training.batch_size`",
            )
        return planned

    def launch(self) -> None:
        """Buffers, then processes; everything they are started with is as it is now."""
        samples, figures = self.sampler.obtain_samples(0)
        fields, known = samples.fields(), figure_arrays(figures, 0, len(samples))
        if self.settings.near_failure:
            shared_replay.require_gap_figure(tuple(known))
        self.selection = self.algo.samples_to_buffer
        self._widths = {name: fields[name].shape[1] for name in self.selection.bits}
        self.replay = ReplayBuffer(self.settings.shots, self.selection(fields), known)
        self.parameter_server, self._updates = ParameterServer(self.agent), SharedArray((1,), np.int64)
        self.parameter_server.publish(self.agent)
        self._rng = np.random.default_rng(self.sampler.train_seed("replay"))
        n = self.settings.samplers
        throttle = self.throttle if self.settings.throttle == "both" else None
        for number in range(n):
            double_buffer = DoubleBuffer(self.sampler.batch_size, fields, known)
            self.workers.start(f"copier {number}", shared_replay.run_copier, double_buffer, self.replay, self.selection)
            assignment = (number, n, self.n_batches)
            self.workers.start(
                f"sampler {number}",
                draw,
                self.build,
                assignment,
                double_buffer,
                self.parameter_server,
                self._updates,
                throttle,
            )
        self.replay.lock.on_wait = self.parameter_server.lock.on_wait = self.workers.check
        self.workers.await_ready()

    def train(self) -> None:
        """Optimize until the samplers are through. RoundError, naming it, where a process fails or dies."""
        try:
            n_itr = self.startup()
            self.before_training(n_itr)
            self.optimize(n_itr)
            self.workers.join()
            if self.replay.appended != self.cum_steps or self._cum_updates != self._last_updates:
                self.log_diagnostics(self._cum_updates, n_itr, self.traj_figures(self._cum_updates - 1))
        except Exception as error:
            cause = self.workers.find_cause(error)
            if cause is error:
                raise
            raise cause from error
        finally:
            self.sampler.shutdown()
            self.workers.close()

    def optimize(self, n_itr: int) -> None:
        """As many updates as the throttle lets through before the samplers are through; at least one."""
        total, last, self._waited = self.n_batches * self.itr_batch_size, n_itr, 0.0
        while self._cum_updates < last:
            drawn = self.replay.appended
            if drawn == total and last == n_itr and self.settings.throttle == "optimizer":
                pending_updates = math.ceil(2 * self.settings.samplers * self.settings.ratio)
                last = min(n_itr, self._cum_updates + pending_updates)
            if not self.throttle.allows_update(self._cum_updates, drawn):
                self.workers.check()
                time.sleep(POLL_S)
                self._waited += POLL_S
                continue
            self.update(max(self._cum_updates, min(n_itr - 1, n_itr * drawn // total - 1)))
            done = self._cum_updates
            if done % self.log_interval_itrs == 0 and done < last:
                self.log_diagnostics(done, n_itr, self.traj_figures(done - 1))

    def update(self, itr: int) -> None:
        """One step on stored shots, published. itr: how far the schedule is, by updates or by shots drawn."""
        rows = self.replay.draw(self.sampler.batch_size, self._rng, near_failure=self.settings.near_failure)
        self.agent.train_mode(itr)
        samples = Samples(**self.selection.restore(rows, self._widths))
        opt_info = self.algo.optimize_agent(itr, samples)
        self.store_diagnostics({}, 0, opt_info)
        self._updates.array[0] = self._cum_updates
        self.parameter_server.publish(self.agent)
        self.workers.check()

    def store_diagnostics(self, traj_infos: TrajInfos, n: int, opt_info: OptInfo) -> None:
        before = self.cum_steps
        MinibatchRlBase.store_diagnostics(self, traj_infos, n, opt_info)
        self.cum_steps = before

    def count(self) -> None:
        """Shots as they have arrived by now; a line of diagnostics speaks of one moment."""
        self.cum_steps = self._cum_trajs = self.replay.appended
        self._new_trajs = self.cum_steps - self._last_steps

    def replay_figures(self, updates: int) -> dict[str, Any]:
        new = self.cum_steps - self._last_steps
        return {
            "ReplayRatio": self.throttle.achieved_ratio(updates, new),
            "CumReplayRatio": self.throttle.achieved_ratio(self._cum_updates, self.cum_steps),
            "ReplayRatioSet": self.settings.ratio,
            "OptimizerWaited": round(getattr(self, "_waited", 0.0), 3),
            "ParametersPublished": self.parameter_server.version,
        }

    def get_itr_snapshot(self, itr: int) -> dict[str, Any]:
        return super().get_itr_snapshot(itr) | {"cum_steps": self.cum_steps}


class AsyncRl(_AsyncLoop, MinibatchRl):
    """Performance from online samples: those that arrived since the last line."""

    def traj_figures(self, itr: int) -> dict[str, Any]:
        self.count()
        figures = self.replay.figures(self._last_steps, TRAJ_WINDOW * self.sampler.batch_size)
        self._window = deque([figures])
        return super().traj_figures(itr)


class AsyncRlEval(_AsyncLoop, MinibatchRlEval):
    """Performance from offline samples, decoded by the optimizer's process; samplers go on meanwhile."""

    def traj_figures(self, itr: int) -> dict[str, Any]:
        figures = super().traj_figures(itr)
        self.count()
        return figures


def figure_arrays(figures: TrajInfos, version: int, n: int) -> dict[str, np.ndarray]:
    """float32 [n] each, and the version of the parameters that the shots were drawn under."""
    return {
        **{name: values.astype(np.float32) for name, values in figures.items()},
        VERSION_FIGURE: np.full(n, version, np.float32),
    }


def draw(
    worker: Worker,
    build: BuildFn,
    assignment: tuple[int, int, int],
    double_buffer: DoubleBuffer,
    parameter_server: ParameterServer,
    updates: SharedArray,
    throttle: Throttle | None,
) -> None:
    """The body of a sampler process. lot: its number, how many samplers there are, and batches of all of them."""
    number, samplers, n_batches = assignment
    agent, sampler, _ = build()
    sampler.initialize(agent, rank=number, world_size=samplers)
    worker.ready()
    version = 0
    for batch in range(number, n_batches, samplers):
        while throttle is not None and throttle.sampler_must_wait(batch, int(updates.array[0]), samplers):
            time.sleep(POLL_S)
        version = parameter_server.fetch(agent, version)
        agent.sample_mode(batch)
        samples, figures = sampler.obtain_samples(batch)
        double_buffer.fill(samples.fields(), figure_arrays(figures, version, len(samples)))
    double_buffer.end()
