"""SyncRl and SyncRlEval: synchronous training over several processes (ranks).

Every rank runs the whole loop, and each step uses the gradient averaged over ranks; see `ranks`.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import torch.distributed as dist

from autoqec.extensions.training_loops.ranks import RankLoop
from autoqec.runner.algorithms import OptInfo
from autoqec.runner.loops.minibatch import TRAJ_WINDOW, MinibatchRl, MinibatchRlBase, MinibatchRlEval
from autoqec.runner.samplers import TrajInfos


class _SyncLoop(RankLoop):
    """The part that both synchronous loops share."""

    def startup(self) -> int:
        """Start up as every loop does, then spawn the other ranks and join the process group."""
        n_itr = super().startup()
        self.start_ranks()
        self.start_clocks()
        return n_itr

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
