"""Base of the training loops that may optimize over several processes (ranks), which average their gradients.

Startup completes before any process is spawned; then the ranks join a process group and take rank 0's weights. Rank 0
is the calling process: it alone logs, evaluates and saves snapshots.
"""

from __future__ import annotations

import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from autoqec.contracts.dsl import TrainingConfig
from autoqec.extensions.training_loops import shared_memory_group
from autoqec.extensions.training_loops.process_group import Worker, WorkerGroup
from autoqec.extensions.training_loops.shared_memory_group import Exchange
from autoqec.runner.devices import resolve_device, resolve_rank_device
from autoqec.runner.logger import NullLogger
from autoqec.runner.minibatch import BuildFn, MinibatchRl
from autoqec.system import machine

RENDEZVOUS_TIMEOUT_S = 60


class RankLoop(MinibatchRl):
    """The part that all loops over ranks share.

    Args:
        args: See `MinibatchRl`.
        build: Builds agent, sampler and algorithm as they are before startup; it is pickled.
        backend: Gloo for CPUs, nccl for one GPU per rank. Where the sandbox allows no sockets, gloo is replaced by
            shared memory (`shared_memory_group`).
        rank_devices: Devices by rank; empty: every rank uses `device`.
        worker: Connection of a spawned rank to rank 0.
        rendezvous_file: File through which the ranks of a spawned rank's group find each other.
        exchange: Shared memory of the group, if it does not use sockets.
        settings: Keyword arguments of `MinibatchRl`. There may be more ranks (`world_size`) than CPUs.
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
        self.workers = WorkerGroup()
        self._temp_dir: tempfile.TemporaryDirectory[str] | None = None
        if rank_devices:
            self.device = rank_devices[self.rank]

    @classmethod
    def options(cls, training: TrainingConfig, build: BuildFn) -> dict[str, Any]:
        """Return the keyword arguments of this loop that a config sets: its ranks, or a device."""
        if training.sync is None:
            return {"build": build, "device": resolve_device(training.device)}
        ranks = training.sync.ranks
        devices = tuple(resolve_rank_device(training, rank) for rank in range(ranks))
        return {"build": build, "world_size": ranks, "backend": training.sync.backend, "rank_devices": devices}

    def startup(self) -> int:
        """Start up as every loop does, with the rank's GPU as the current one."""
        if self.device.startswith("cuda"):
            torch.cuda.set_device(self.device)
        return super().startup()

    def start_ranks(self, **rank_settings: Any) -> None:
        """Spawn the other ranks, join the process group and take rank 0's weights; does nothing for one rank.

        Args:
            rank_settings: Keyword arguments of this class that only spawned ranks get.
        """
        if self.world_size == 1:
            return
        if self.rank == 0:
            self._spawn_ranks(rank_settings)
        elif self.worker is not None:
            self.worker.ready()
        self._join_process_group()
        self.agent.broadcast()

    def _spawn_ranks(self, rank_settings: dict[str, Any]) -> None:
        self._temp_dir = tempfile.TemporaryDirectory(prefix="autoqec-ranks-")
        self.rendezvous_file = Path(self._temp_dir.name) / "store"
        if self.backend == "gloo" and not shared_memory_group.sockets_allowed():
            self.exchange = Exchange(self.world_size)
        names = ("n_steps", "log_interval_steps", "seed", "world_size", "device", "rank_devices", "backend", "exchange")
        settings = {name: getattr(self, name) for name in (*names, "rendezvous_file")} | rank_settings
        for rank in range(1, self.world_size):
            affinity = {"master_cpus": self.affinity.worker(rank - 1), "torch_threads": self.affinity.torch_threads}
            own_settings = {**settings, "rank": rank, "affinity": affinity}
            self.workers.start(f"rank {rank}", run_rank, type(self), self.build, own_settings)
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
        """Train; no process is left running afterwards.

        Raises:
            RoundError: A process failed or was killed; the message names it.
        """
        try:
            self.run()
            self.workers.join()
        except Exception as error:
            cause = self.workers.find_cause(error)
            if cause is error:
                raise
            raise cause from error
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()
            self.workers.close()
            if self._temp_dir is not None:
                self._temp_dir.cleanup()

    def run(self) -> None:
        """Start up and train on every batch; the processes are joined by the caller."""
        super().train()

    def rank_figures(self) -> dict[str, Any]:
        """Return the progress.csv columns on ranks."""
        collectives = self.backend if self.exchange is None else shared_memory_group.BACKEND
        return {"Ranks": self.world_size, "Cores": machine.cpu_count(), "Collectives": collectives}


def run_rank(worker: Worker, kind: type[RankLoop], build: BuildFn, settings: dict[str, Any]) -> None:
    """Run the loop in a spawned rank's process."""
    agent, sampler, algo = build()
    kind(agent=agent, sampler=sampler, algo=algo, build=build, worker=worker, logger=NullLogger(), **settings).train()
