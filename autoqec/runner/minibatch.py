"""MinibatchRl and MinibatchRlEval: training loops in one process, over a sampler, an algorithm and an agent.

The interfaces follow the runners of rlpyt (https://github.com/astooke/rlpyt): sampler, algorithm and agent do not
know each other's internals, so loops over several processes subclass `MinibatchRl` and reuse the rest. Budgets count
samples, not seconds. `find_loop` also finds the loops of extensions (entry points `autoqec.training_loops`).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from autoqec import plugins
from autoqec.contracts.dsl import TrainingConfig
from autoqec.errors import UsageError
from autoqec.runner.agents import Agent
from autoqec.runner.algorithms import GradientAlgo, OptInfo
from autoqec.runner.devices import CORE_LOOPS, Affinity, current_cpus, resolve_device
from autoqec.runner.logger import NullLogger, TrainLogger
from autoqec.runner.samplers import Sampler
from autoqec.runner.samples import TrajInfos

BuildFn = Callable[[], tuple[Agent, Sampler, GradientAlgo]]
TRAJ_WINDOW = 100  # batches that online statistics cover


@dataclass
class SampleCounter:
    """Samples, completed trajectories and updates of a training, in all and (`new_`) since the last row."""

    steps: int = 0
    trajs: int = 0
    updates: int = 0
    new_steps: int = 0
    new_trajs: int = 0
    new_updates: int = 0

    def add_samples(self, steps: int, trajs: int) -> None:
        """Count samples and the trajectories that ended in them."""
        self.steps += steps
        self.new_steps += steps
        self.trajs += trajs
        self.new_trajs += trajs

    def add_update(self) -> None:
        """Count an optimizer step."""
        self.updates += 1
        self.new_updates += 1

    def start_row(self) -> None:
        """Begin a row of diagnostics."""
        self.new_steps = self.new_trajs = self.new_updates = 0


class MinibatchRl:
    """Train, and measure performance on online samples: the batches trained on, over a window of TRAJ_WINDOW batches.

    Args:
        algo: Computes the loss and takes the optimizer step.
        agent: The model that is trained.
        sampler: Draws batches and evaluates the agent.
        n_steps: Samples to train on, over all ranks; rounded down to whole batches, at least one.
        seed: Seed of torch; rank r uses seed + r.
        affinity: CPUs and threads, see `Affinity`; applied at startup and recorded in progress.csv (column `Cpus`).
        log_interval_steps: Samples between two rows of diagnostics; the last batch always has one.
        logger: Where losses, diagnostics and snapshots go; None: nowhere.
        device: torch device of the agent while it trains.
        rank: Rank of this process.
        world_size: Number of ranks.

    Attributes:
        evaluates_offline: Whether performance is measured on offline samples instead, see `MinibatchRlEval`.
    """

    evaluates_offline = False

    def __init__(
        self,
        algo: GradientAlgo,
        agent: Agent,
        sampler: Sampler,
        n_steps: int,
        seed: int = 0,
        affinity: Affinity | Mapping[str, Any] | None = None,
        log_interval_steps: int = 100_000,
        *,
        logger: TrainLogger | None = None,
        device: str = "cpu",
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self.algo, self.agent, self.sampler = algo, agent, sampler
        self.logger = NullLogger() if logger is None else logger
        self.n_steps, self.log_interval_steps, self.seed = n_steps, log_interval_steps, seed
        self.affinity = Affinity.of(affinity)
        self.device, self.rank, self.world_size = device, rank, world_size

    @classmethod
    def options(cls, training: TrainingConfig, build: BuildFn) -> dict[str, Any]:
        """Return the keyword arguments of this loop that a config sets.

        Args:
            training: The config.
            build: Builds agent, sampler and algorithm in another process; this loop needs none.
        """
        return {"device": resolve_device(training.device)}

    def startup(self) -> int:
        """Initialize sampler, agent, algorithm and logging, in the order that several processes need too.

        Returns:
            The planned number of updates.
        """
        self.affinity.apply_master()
        torch.manual_seed(self.seed + self.rank)
        self.sampler.initialize(self.agent, rank=self.rank, world_size=self.world_size)
        self.itr_batch_size = self.sampler.batch_size * self.world_size
        self.n_batches = max(1, self.n_steps // self.itr_batch_size)
        n_itr = self.planned_updates()
        self.log_interval_itrs = max(1, self.log_interval_steps // self.itr_batch_size)
        self.agent.to_device(self.device)
        if self.world_size > 1:
            self.agent.data_parallel()
        self.algo.initialize(self.agent, n_itr=n_itr, batch_size=self.itr_batch_size)
        self.initialize_logging()
        return n_itr

    def planned_updates(self) -> int:
        """Return the number of updates that `n_batches` batches allow."""
        return self.n_batches

    def initialize_logging(self) -> None:
        """Reset counters, clocks and the window."""
        self.counter = SampleCounter()
        self._opt_infos: dict[str, list[float]] = {}
        self._window: deque[TrajInfos] = deque(maxlen=TRAJ_WINDOW * self.world_size)
        self.start_clocks()
        self._cum_train_time = self._cum_eval_time = self._eval_time = 0.0

    def start_clocks(self) -> None:
        """Measure times from now on."""
        self._start = self._last = time.perf_counter()

    def train(self) -> None:
        """Train on every batch; the sampler is shut down in any case.

        Raises:
            RoundError: The loss is not finite.
        """
        n_itr = self.startup()
        try:
            if self.evaluates_offline:
                self.log_diagnostics(0, n_itr)
            for itr in range(n_itr):
                self.agent.sample_mode(itr)
                samples, traj_infos = self.sampler.obtain_samples(itr)
                self.agent.train_mode(itr)
                opt_info = self.algo.optimize_agent(itr, samples)
                completed = max((len(values) for values in traj_infos.values()), default=len(samples))
                self.counter.add_samples(self.itr_batch_size, completed)
                self.store_trajectories(traj_infos)
                self.store_update(opt_info)
                if (itr + 1) % self.log_interval_itrs == 0 or itr + 1 == n_itr:
                    self.log_diagnostics(itr + 1, n_itr)
        finally:
            self.sampler.shutdown()

    def store_trajectories(self, traj_infos: TrajInfos) -> None:
        """Keep the statistics of a batch."""
        self._window.append(traj_infos)

    def store_update(self, opt_info: OptInfo) -> None:
        """Count an optimizer step and keep its figures."""
        self.counter.add_update()
        for name, value in opt_info.items():
            self._opt_infos.setdefault(name, []).append(value)
        self.logger.record_loss(opt_info["loss"])

    def traj_figures(self, itr: int) -> dict[str, Any]:
        """Return the progress.csv columns with trajectory statistics: how the loop measures performance."""
        return self.offline_figures(itr) if self.evaluates_offline else self.online_figures()

    def online_figures(self) -> dict[str, Any]:
        """Return statistics over the window."""
        names = self._window[-1] if self._window else {}
        joined = {name: np.concatenate([infos[name] for infos in self._window]) for name in names}
        counts = {"NewCompletedTrajs": self.counter.new_trajs, "StepsInTrajWindow": _count_steps(joined)}
        return counts | _summarize(joined)

    def offline_figures(self, itr: int) -> dict[str, Any]:
        """Evaluate the agent in eval mode and return the statistics; torch's random stream stays as it is."""
        start_time = time.perf_counter()
        self.agent.eval_mode(itr)
        with torch.random.fork_rng():
            infos = self.sampler.evaluate_agent(itr)
        self._eval_time += time.perf_counter() - start_time
        return {"StepsInEval": _count_steps(infos), "TrajsInEval": _count_trajs(infos)} | _summarize(infos)

    def log_diagnostics(self, completed: int, n_itr: int) -> None:
        """Record a row after `completed` of `n_itr` iterations and offer a snapshot. Train time excludes evaluation."""
        figures = self.traj_figures(max(0, completed - 1))
        count, now = self.counter, time.perf_counter()
        elapsed = max(now - self._last - self._eval_time, 1e-9)
        self._cum_train_time += elapsed
        self._cum_eval_time += self._eval_time
        row: dict[str, Any] = {
            "Iteration": completed,
            "CumTime": round(now - self._start, 3),
            "CumTrainTime": round(self._cum_train_time, 3),
            "CumEvalTime": round(self._cum_eval_time, 3),
            "CumSteps": count.steps,
            "CumCompletedTrajs": count.trajs,
            "CumUpdates": count.updates,
            "StepsPerSecond": round(count.new_steps / elapsed, 1),
            "UpdatesPerSecond": round(count.new_updates / elapsed, 3),
            **self.replay_figures(),
            "EffectiveBatchSize": self.itr_batch_size,
            "LearningRate": self.algo.optimizer.param_groups[0]["lr"],
            "Device": self.device,
            "Cpus": current_cpus(),
            **figures,
            **_summarize({name: np.asarray(values) for name, values in self._opt_infos.items()}),
        }
        self.logger.record_row(row)
        self.logger.progress(
            step=completed,
            steps=n_itr,
            loss=row.get("lossAverage"),
            eta_s=self._cum_train_time / completed * (n_itr - completed) if completed else None,
        )
        if completed:
            self.save_itr_snapshot(completed - 1)
        self._opt_infos = {}
        self._last, self._eval_time = time.perf_counter(), 0.0
        count.start_row()

    def replay_figures(self) -> dict[str, Any]:
        """Return the columns on how often a sample was optimized on: once, in loops without a replay buffer."""
        return {"ReplayRatio": 1.0, "CumReplayRatio": 1.0}

    def get_itr_snapshot(self, itr: int) -> dict[str, Any]:
        """Return the state after iteration `itr`: weights and optimizer. The schedule depends on `itr` alone."""
        return {
            "itr": itr,
            "cum_steps": (itr + 1) * self.itr_batch_size,
            "agent_state_dict": self.agent.state_dict(),
            "optimizer_state_dict": self.algo.optim_state_dict(),
        }

    def save_itr_snapshot(self, itr: int) -> None:
        """Pass the snapshot to the logger, whose mode decides whether it is saved."""
        if self.logger.snapshot_mode != "none":
            self.logger.save_snapshot(itr, self.get_itr_snapshot(itr))


class MinibatchRlEval(MinibatchRl):
    """Measure performance on offline samples: validation shots, in eval mode, before training and at every interval.

    Evaluation changes neither torch's random stream nor the training samples.
    """

    evaluates_offline = True


def find_loop(name: str) -> type[MinibatchRl]:
    """Return the loop of a config's `training.loop`.

    Raises:
        UsageError: No loop of this name is installed.
    """
    own = dict(zip(CORE_LOOPS, (MinibatchRl, MinibatchRlEval), strict=True))
    found = own.get(name) or plugins.load("autoqec.training_loops", name)
    if not (isinstance(found, type) and issubclass(found, MinibatchRl)):
        raise UsageError(f"{name!r} is not a training loop", location="training.loop", hint=f"use {' or '.join(own)}")
    return found


def _count_trajs(infos: TrajInfos) -> int:
    return max((len(values) for values in infos.values()), default=0)


def _count_steps(infos: TrajInfos) -> int:
    return int(infos["Length"].sum()) if "Length" in infos else _count_trajs(infos)


def _summarize(values_by_name: TrajInfos) -> dict[str, float]:
    """Return mean, standard deviation, median, minimum and maximum of each as <name>Average, <name>Std, ..."""
    figures: dict[str, float] = {}
    for name, values in values_by_name.items():
        data = values.astype(np.float64)
        if len(data):
            figures |= {
                f"{name}Average": float(data.mean()),
                f"{name}Std": float(data.std()),
                f"{name}Median": float(np.median(data)),
                f"{name}Min": float(data.min()),
                f"{name}Max": float(data.max()),
            }
    return figures
