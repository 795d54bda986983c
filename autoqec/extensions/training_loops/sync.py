"""SyncRl and SyncRlEval: synchronous training over several processes (ranks).

Every rank runs the whole loop, and each step uses the gradient averaged over ranks; see `ranks`.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from autoqec.extensions.training_loops.ranks import RankLoop
from autoqec.runner.samples import TrajInfos


class SyncRl(RankLoop):
    """Measure performance on online samples of all ranks."""

    def startup(self) -> int:
        """Start up as every loop does, then spawn the other ranks and join the process group."""
        n_itr = super().startup()
        self._fresh: list[TrajInfos] = []
        self.start_ranks()
        self.start_clocks()
        return n_itr

    def store_trajectories(self, traj_infos: TrajInfos) -> None:
        """Keep the statistics of a batch, which are sent to rank 0 at the next log interval."""
        if not self.evaluates_offline:
            self._fresh.append(traj_infos)

    def traj_figures(self, itr: int) -> dict[str, Any]:
        """Return statistics over the window of all ranks, or of rank 0's evaluation; empty on ranks other than 0."""
        figures = self.offline_figures(itr) if self.evaluates_offline and self.rank == 0 else {}
        self._window.extend(self.gather_figures(self._fresh))
        self._fresh = []
        if self.rank:
            return {}
        return (figures or self.online_figures()) | self.rank_figures()

    def gather_figures(self, figures: list[TrajInfos]) -> list[TrajInfos]:
        """Collect every rank's new trajectories on rank 0 and count them there; other ranks wait and get none."""
        if self.world_size == 1:
            return figures
        parts: list[Any] | None = [None] * self.world_size if self.rank == 0 else None
        dist.gather_object((self.counter.new_trajs, figures), parts, dst=0)
        if parts is None:
            return []
        self.counter.add_samples(0, sum(count for count, _ in parts[1:]))
        return [infos for _, rank_infos in parts for infos in rank_infos]


class SyncRlEval(SyncRl):
    """Measure performance on offline samples, which rank 0 alone decodes while the others wait."""

    evaluates_offline = True
