"""MinibatchRl and MinibatchRlEval: training loops in one process, over a sampler, an algorithm and an agent.

The interfaces follow the runners of rlpyt (https://github.com/astooke/rlpyt): sampler, algorithm and agent do not
know each other's internals, so loops over several processes subclass `MinibatchRlBase` and reuse the rest. Budgets
count samples, not seconds.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from autoqec.extensions.training_loops.affinity import Affinity, current_cpus
from autoqec.runner.agents import Agent
from autoqec.runner.algorithms import GradientAlgo, OptInfo
from autoqec.runner.logger import NullLogger, TrainLogger
from autoqec.runner.samplers import Sampler, TrajInfos

TRAJ_WINDOW = 100  # batches that online statistics cover


class MinibatchRlBase:
    """Startup, training loop, diagnostics and snapshots.

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
    """

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
        self.algo.initialize(self.agent, n_itr=n_itr, batch_size=self.itr_batch_size, rank=self.rank)
        self.initialize_logging()
        return n_itr

    def planned_updates(self) -> int:
        """Return the number of updates that `n_batches` batches allow."""
        return self.n_batches

    def initialize_logging(self) -> None:
        """Reset counters and clocks."""
        self._opt_infos: dict[str, list[float]] = {}
        self._new_trajs = 0
        self._cum_trajs = self._cum_updates = 0
        self.start_clocks()
        self._cum_train_time = self._cum_eval_time = self._eval_time = 0.0
        self._last_steps = self._last_updates = 0
        self.cum_steps = 0

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
            self.before_training(n_itr)
            for itr in range(n_itr):
                self.agent.sample_mode(itr)
                samples, traj_infos = self.sampler.obtain_samples(itr)
                self.agent.train_mode(itr)
                opt_info = self.algo.optimize_agent(itr, samples)
                self.store_diagnostics(traj_infos, self.count_trajectories(traj_infos, len(samples)), opt_info)
                if (itr + 1) % self.log_interval_itrs == 0 or itr + 1 == n_itr:
                    self.log_diagnostics(itr + 1, n_itr, self.traj_figures(itr))
        finally:
            self.sampler.shutdown()

    def count_trajectories(self, traj_infos: TrajInfos, n_samples: int) -> int:
        """Return how many trajectories a batch completed: as many as have statistics, else one per sample."""
        return max((len(values) for values in traj_infos.values()), default=n_samples)

    def before_training(self, n_itr: int) -> None:
        """Hook for loops that evaluate before the first update."""

    def traj_figures(self, itr: int) -> dict[str, Any]:
        """Return the progress.csv columns with trajectory statistics: how the loop measures performance."""
        raise NotImplementedError

    def store_diagnostics(self, traj_infos: TrajInfos, n: int, opt_info: OptInfo) -> None:
        """Count a batch of `n` trajectories and its update."""
        self._new_trajs += n
        self._cum_trajs += n
        self.cum_steps += self.itr_batch_size
        self._cum_updates += 1
        for name, value in opt_info.items():
            self._opt_infos.setdefault(name, []).append(value)
        self.logger.record_loss(opt_info["loss"])

    def log_diagnostics(self, completed: int, n_itr: int, figures: dict[str, Any]) -> None:
        """Record a row after `completed` of `n_itr` iterations and offer a snapshot. Train time excludes evaluation."""
        now = time.perf_counter()
        elapsed = max(now - self._last - self._eval_time, 1e-9)
        updates = self._cum_updates - self._last_updates
        self._cum_train_time += elapsed
        self._cum_eval_time += self._eval_time
        row: dict[str, Any] = {
            "Iteration": completed,
            "CumTime": round(now - self._start, 3),
            "CumTrainTime": round(self._cum_train_time, 3),
            "CumEvalTime": round(self._cum_eval_time, 3),
            "CumSteps": self.cum_steps,
            "CumCompletedTrajs": self._cum_trajs,
            "CumUpdates": self._cum_updates,
            "StepsPerSecond": round((self.cum_steps - self._last_steps) / elapsed, 1),
            "UpdatesPerSecond": round(updates / elapsed, 3),
            **self.replay_figures(updates),
            "EffectiveBatchSize": self.itr_batch_size,
            "LearningRate": self.algo.optimizer.param_groups[0]["lr"],
            "Device": self.device,
            "Cpus": current_cpus(),
            **figures,
        }
        for name, values in self._opt_infos.items():
            row |= summary_stats(name, np.asarray(values))
        self.logger.record_row(row)
        self.logger.progress(
            step=completed,
            steps=n_itr,
            loss=row.get("lossAverage"),
            eta_s=self._cum_train_time / completed * (n_itr - completed) if completed else None,
        )
        if completed:
            self.save_itr_snapshot(completed - 1)
        self._opt_infos, self._new_trajs = {}, 0
        self._last, self._eval_time = time.perf_counter(), 0.0
        self._last_steps, self._last_updates = self.cum_steps, self._cum_updates

    def replay_figures(self, updates: int) -> dict[str, Any]:
        """Return the columns on how often a sample was optimized on: once, in loops without a replay buffer.

        Args:
            updates: Updates since the last row.
        """
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


class MinibatchRl(MinibatchRlBase):
    """Measure performance on online samples: the batches trained on, over a window of TRAJ_WINDOW batches."""

    def initialize_logging(self) -> None:
        """Reset counters, clocks and the window."""
        super().initialize_logging()
        self._window: deque[TrajInfos] = deque(maxlen=TRAJ_WINDOW)

    def store_diagnostics(self, traj_infos: TrajInfos, n: int, opt_info: OptInfo) -> None:
        """Count a batch and add its trajectories to the window."""
        self._window.append(traj_infos)
        super().store_diagnostics(traj_infos, n, opt_info)

    def traj_figures(self, itr: int) -> dict[str, Any]:
        """Return statistics over the window."""
        names = self._window[-1] if self._window else {}
        joined = {name: np.concatenate([infos[name] for infos in self._window]) for name in names}
        n_trajs = max((len(values) for values in joined.values()), default=0)
        n_steps = int(joined["Length"].sum()) if "Length" in joined else n_trajs
        figures: dict[str, Any] = {"NewCompletedTrajs": self._new_trajs, "StepsInTrajWindow": n_steps}
        for name, values in joined.items():
            figures |= summary_stats(name, values)
        return figures


class MinibatchRlEval(MinibatchRlBase):
    """Measure performance on offline samples: validation shots, in eval mode, before training and at every interval.

    Evaluation changes neither torch's random stream nor the training samples.
    """

    def before_training(self, n_itr: int) -> None:
        """Evaluate the untrained agent."""
        self.log_diagnostics(0, n_itr, self.traj_figures(0))

    def traj_figures(self, itr: int) -> dict[str, Any]:
        """Evaluate the agent and return the statistics."""
        start_time = time.perf_counter()
        self.agent.eval_mode(itr)
        with torch.random.fork_rng():
            infos = self.sampler.evaluate_agent(itr)
        self._eval_time += time.perf_counter() - start_time
        n_trajs = max((len(values) for values in infos.values()), default=0)
        n_steps = int(infos["Length"].sum()) if "Length" in infos else n_trajs
        figures: dict[str, Any] = {"StepsInEval": n_steps, "TrajsInEval": n_trajs}
        for name, values in infos.items():
            figures |= summary_stats(name, values)
        return figures


def summary_stats(name: str, values: np.ndarray) -> dict[str, float]:
    """Return mean, standard deviation, median, minimum and maximum of `values` as <name>Average, <name>Std, ..."""
    if len(values) == 0:
        return {}
    data = values.astype(np.float64)
    return {
        f"{name}Average": float(data.mean()),
        f"{name}Std": float(data.std()),
        f"{name}Median": float(np.median(data)),
        f"{name}Min": float(data.min()),
        f"{name}Max": float(data.max()),
    }
