"""SyncRl and SyncRlEval: synchronous training over several processes (ranks).

Every rank runs the whole loop, and each step uses the gradient averaged over ranks. Startup completes before any
process is spawned; then the ranks join a process group and take rank 0's weights. Rank 0 is the calling process: it
alone logs, evaluates and saves snapshots.
"""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from autoqec.runner import shared_memory_group
from autoqec.runner.agents import Agent
from autoqec.runner.algorithms import GradientAlgo, OptInfo
from autoqec.runner.logger import NullLogger
from autoqec.runner.loops.minibatch import TRAJ_WINDOW, MinibatchRl, MinibatchRlBase, MinibatchRlEval
from autoqec.runner.process_group import Worker, WorkerGroup
from autoqec.runner.samplers import Sampler, TrajInfos
from autoqec.runner.shared_memory_group import Exchange
from autoqec.system import machine

BuildFn = Callable[[], tuple[Agent, Sampler, GradientAlgo]]
RENDEZVOUS_TIMEOUT_S = 60


class _SyncLoop(MinibatchRlBase):
    """The part that both synchronous loops share.

    Args:
        args: See `MinibatchRlBase`.
        build: Builds agent, sampler and algorithm as they are before startup; it is pickled.
        backend: Gloo for CPUs, nccl for one GPU per rank. Where the sandbox allows no sockets, gloo is replaced by
            shared memory (`shared_memory_group`).
        rank_devices: Devices by rank; empty: every rank uses `device`.
        worker: Connection of a spawned rank to rank 0.
        rendezvous_file: File through which the ranks of a spawned rank's group find each other.
        exchange: Shared memory of the group, if it does not use sockets.
        settings: Keyword arguments of `MinibatchRlBase`. There may be more ranks (`world_size`) than CPUs.
    """

    def __init__(
        self,
        *args: Any,
        build: BuildFn,
        backend: str = "gloo",
        rank_devices: tuple[str, ...] = (),
        worker: Worker | None = None,
        rendezvous_file: Path | None = None,
        exchange: Exchange | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(*args, **settings)
        self.build, self.backend, self.worker = build, backend, worker
        self.rank_devices, self.rendezvous_file, self.exchange = rank_devices, rendezvous_file, exchange
        self.workers: WorkerGroup | None = None
        if rank_devices:
            self.device = rank_devices[self.rank]

    def startup(self) -> int:
        """Start up as every loop does, then spawn the other ranks and join the process group."""
        if self.device.startswith("cuda"):
            torch.cuda.set_device(self.device)
        n_itr = super().startup()
        if self.world_size == 1:
            return n_itr
        if self.rank == 0:
            self._start_ranks()
        elif self.worker is not None:
            self.worker.ready()
        self._join_process_group()
        self.agent.broadcast()
        self.start_clocks()
        return n_itr

    def _start_ranks(self) -> None:
        self._temp_dir = tempfile.TemporaryDirectory(prefix="autoqec-ranks-")
        self.rendezvous_file = Path(self._temp_dir.name) / "store"
        self.workers = WorkerGroup()
        if self.backend == "gloo" and not shared_memory_group.sockets_allowed():
            self.exchange = Exchange(self.world_size)
        names = ("n_steps", "log_interval_steps", "seed", "world_size", "device", "rank_devices", "backend", "exchange")
        settings = {name: getattr(self, name) for name in (*names, "rendezvous_file")}
        for rank in range(1, self.world_size):
            affinity = {"master_cpus": self.affinity.worker(rank - 1), "torch_threads": self.affinity.torch_threads}
            rank_settings = {**settings, "rank": rank, "affinity": affinity}
            self.workers.start(f"rank {rank}", run_rank, type(self), self.build, rank_settings)
        self.workers.await_ready()
        if self.exchange is not None:
            self.exchange.on_wait = self.workers.check

    def _join_process_group(self) -> None:
        backend = self.backend
        if self.exchange is not None:
            backend = shared_memory_group.BACKEND
            shared_memory_group.register(self.exchange)
        store = dist.FileStore(str(self.rendezvous_file), self.world_size)  # type: ignore[attr-defined]
        store.set_timeout(timedelta(seconds=RENDEZVOUS_TIMEOUT_S))
        dist.init_process_group(backend, store=store, rank=self.rank, world_size=self.world_size)

    def train(self) -> None:
        """Train on every batch of every rank; no rank is left running afterwards.

        Raises:
            RoundError: A rank failed or was killed; the message names it.
        """
        try:
            super().train()
            if self.workers is not None:
                self.workers.join()
        except Exception as error:
            cause = error if self.workers is None else self.workers.find_cause(error)
            if cause is error:
                raise
            raise cause from error
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()
            if self.workers is not None:
                self.workers.close()
                self._temp_dir.cleanup()

    def gather_figures(self, figures: list[TrajInfos]) -> list[TrajInfos]:
        """Collect every rank's new trajectories on rank 0 and count them there; other ranks wait and get none."""
        if self.world_size == 1:
            return figures
        parts: list[Any] | None = [None] * self.world_size if self.rank == 0 else None
        dist.gather_object((self._new_trajs, figures), parts, dst=0)
        if parts is None:
            return []
        others = sum(count for count, _ in parts[1:])
        self._new_trajs += others
        self._cum_trajs += others
        return [infos for _, rank_infos in parts for infos in rank_infos]

    def rank_figures(self) -> dict[str, Any]:
        """Return the columns that only synchronous loops have."""
        collectives = self.backend if self.exchange is None else shared_memory_group.BACKEND
        return {"Ranks": self.world_size, "Cores": machine.cpu_count(), "Collectives": collectives}


class SyncRl(_SyncLoop, MinibatchRl):
    """Measure performance on online samples of all ranks."""

    def initialize_logging(self) -> None:
        """Reset counters, clocks and the window."""
        super().initialize_logging()
        self._window = deque(maxlen=TRAJ_WINDOW * self.world_size)
        self._fresh: list[TrajInfos] = []

    def store_diagnostics(self, traj_infos: TrajInfos, n: int, opt_info: OptInfo) -> None:
        """Count a batch; its trajectories are sent to rank 0 at the next log interval."""
        self._fresh.append(traj_infos)
        MinibatchRlBase.store_diagnostics(self, traj_infos, n, opt_info)

    def traj_figures(self, itr: int) -> dict[str, Any]:
        """Return statistics over the window of all ranks; empty on ranks other than 0."""
        self._window.extend(self.gather_figures(self._fresh))
        self._fresh = []
        return super().traj_figures(itr) | self.rank_figures() if self.rank == 0 else {}


class SyncRlEval(_SyncLoop, MinibatchRlEval):
    """Measure performance on offline samples, which rank 0 alone decodes while the others wait."""

    def traj_figures(self, itr: int) -> dict[str, Any]:
        """Evaluate on rank 0; empty on other ranks."""
        figures = super().traj_figures(itr) | self.rank_figures() if self.rank == 0 else {}
        self.gather_figures([])
        return figures


def run_rank(worker: Worker, kind: type[_SyncLoop], build: BuildFn, settings: dict[str, Any]) -> None:
    """Run the loop in a spawned rank's process."""
    agent, sampler, algo = build()
    kind(agent=agent, sampler=sampler, algo=algo, build=build, worker=worker, logger=NullLogger(), **settings).train()
