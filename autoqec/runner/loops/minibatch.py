"""Training in one process: sampler, algorithm and agent, and the runner that leads them.

The shape follows rlpyt's runners (https://github.com/astooke/rlpyt): the four never reach round each other, so
loops over many processes differ from these in their runner alone. Budgets count shots; the clock is only logged.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any

import numpy as np
import torch

from autoqec.runner.agents import PredecoderAgent
from autoqec.runner.algorithms import GradientAlgo, OptInfo
from autoqec.runner.logger import TrainLogger
from autoqec.runner.samplers import ShotSampler, TrajInfos

TRAJ_WINDOW = 100  # batches that online figures are taken over


class MinibatchRlBase:
    """Start-up, the loop, diagnostics and snapshots.

    n_steps: shots to train on, over all ranks; whole batches only, at least one.
    log_interval_steps: shots between two lines of diagnostics; the last batch always has one.
    """

    def __init__(
        self,
        *,
        algo: GradientAlgo,
        agent: PredecoderAgent,
        sampler: ShotSampler,
        logger: TrainLogger,
        n_steps: int,
        log_interval_steps: int,
        seed: int = 0,
        device: str = "cpu",
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self.algo, self.agent, self.sampler, self.logger = algo, agent, sampler, logger
        self.n_steps, self.log_interval_steps, self.seed = n_steps, log_interval_steps, seed
        self.device, self.rank, self.world_size = device, rank, world_size

    def startup(self) -> int:
        """Bring the four up, in the one order that also holds with many processes. Returns the number of updates."""
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
        """Updates that `n_batches` batches will give."""
        return self.n_batches

    def initialize_logging(self) -> None:
        self._opt_infos: dict[str, list[float]] = {}
        self._new_trajs = 0
        self._cum_trajs = self._cum_updates = 0
        self.start_clocks()
        self._cum_train_time = self._cum_eval_time = self._eval_time = 0.0
        self._last_steps = self._last_updates = 0
        self.cum_steps = 0

    def start_clocks(self) -> None:
        self._start = self._last = time.perf_counter()

    def train(self) -> None:
        """Run every batch. RoundError where the loss is not finite; the sampler is shut down in any case."""
        n_itr = self.startup()
        try:
            self.before_training(n_itr)
            for itr in range(n_itr):
                self.agent.sample_mode(itr)
                samples, traj_infos = self.sampler.obtain_samples(itr)
                self.agent.train_mode(itr)
                opt_info = self.algo.optimize_agent(itr, samples)
                self.store_diagnostics(traj_infos, len(samples), opt_info)
                if (itr + 1) % self.log_interval_itrs == 0 or itr + 1 == n_itr:
                    self.log_diagnostics(itr + 1, n_itr, self.traj_figures(itr))
        finally:
            self.sampler.shutdown()

    def before_training(self, n_itr: int) -> None:
        """For loops that measure before they learn."""

    def traj_figures(self, itr: int) -> dict[str, Any]:
        """Columns about trajectories: what the loop takes for performance."""
        raise NotImplementedError

    def store_diagnostics(self, traj_infos: TrajInfos, n: int, opt_info: OptInfo) -> None:
        self._new_trajs += n
        self._cum_trajs += n
        self.cum_steps += self.itr_batch_size
        self._cum_updates += 1
        for name, value in opt_info.items():
            self._opt_infos.setdefault(name, []).append(value)
        self.logger.record_loss(opt_info["loss"])

    def log_diagnostics(self, completed: int, n_itr: int, figures: dict[str, Any]) -> None:
        """One line of progress.csv after `done` of `n_itr` batches; train time leaves evaluation out."""
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
        """How often a shot was optimized on: in the `updates` since the last line, and in all. Here once."""
        return {"ReplayRatio": 1.0, "CumReplayRatio": 1.0}

    def get_itr_snapshot(self, itr: int) -> dict[str, Any]:
        """State after batch `itr`: weights and optimizer. The schedule is a function of the batch number."""
        return {
            "itr": itr,
            "cum_steps": (itr + 1) * self.itr_batch_size,
            "agent_state_dict": self.agent.state_dict(),
            "optimizer_state_dict": self.algo.optim_state_dict(),
        }

    def save_itr_snapshot(self, itr: int) -> None:
        """Offer the snapshot to the logger, whose mode decides."""
        if self.logger.snapshot_mode != "none":
            self.logger.save_snapshot(itr, self.get_itr_snapshot(itr))


class MinibatchRl(MinibatchRlBase):
    """Performance from online samples: the shots that were trained on, over a window of batches."""

    def initialize_logging(self) -> None:
        super().initialize_logging()
        self._window: deque[TrajInfos] = deque(maxlen=TRAJ_WINDOW)

    def store_diagnostics(self, traj_infos: TrajInfos, n: int, opt_info: OptInfo) -> None:
        self._window.append(traj_infos)
        super().store_diagnostics(traj_infos, n, opt_info)

    def traj_figures(self, itr: int) -> dict[str, Any]:
        names = self._window[-1] if self._window else {}
        joined = {name: np.concatenate([infos[name] for infos in self._window]) for name in names}
        seen = max((len(values) for values in joined.values()), default=0)
        figures: dict[str, Any] = {"NewCompletedTrajs": self._new_trajs, "StepsInTrajWindow": seen}
        for name, values in joined.items():
            figures |= summary_stats(name, values)
        return figures


class MinibatchRlEval(MinibatchRlBase):
    """Performance from offline samples: val shots, in eval mode, before training and at every log interval.

    Evaluation leaves torch's random stream and the training shots as they were.
    """

    def before_training(self, n_itr: int) -> None:
        self.log_diagnostics(0, n_itr, self.traj_figures(0))

    def traj_figures(self, itr: int) -> dict[str, Any]:
        start_time = time.perf_counter()
        self.agent.eval_mode(itr)
        with torch.random.fork_rng():
            infos = self.sampler.evaluate_agent(itr)
        self._eval_time += time.perf_counter() - start_time
        n = max((len(values) for values in infos.values()), default=0)
        figures: dict[str, Any] = {"StepsInEval": n, "TrajsInEval": n}
        for name, values in infos.items():
            figures |= summary_stats(name, values)
        return figures


def summary_stats(name: str, values: np.ndarray) -> dict[str, float]:
    """Five figures of one quantity, under the columns nameAverage, nameStd, nameMedian, nameMin, nameMax."""
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
