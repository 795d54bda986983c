"""RoundRoutine: the dearest fidelity. A real round, worktree and judge, for what a cheaper routine promoted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from autoqec.continual.environments.design import PredecoderDraft
from autoqec.continual.environments.hall_of_fame import HallOfFame
from autoqec.continual.environments.routines import RoutineResult, loss_of, task_info_of_row
from autoqec.contracts.env import EnvSpec
from autoqec.ideators.space import Config

RunRound = Callable[[Config], Mapping[str, Any]]


@dataclass
class RoundRoutine:
    """A design is screened by `cheaper`; one that is among the best of `fame` so far is promoted to a round.

    run_round: config -> the row of history it came to; whoever has a repository injects it. A design is run once. What
    the judge did not verify is worth no gain, whatever its val shots said.
    """

    env: EnvSpec
    screen: Callable[[PredecoderDraft], RoutineResult]
    run_round: RunRound
    hall_of_fame: HallOfFame = field(default_factory=lambda: HallOfFame(1))
    fidelity: ClassVar[str] = "round"
    _lock: ClassVar[threading.Lock] = threading.Lock()  # a repository takes one round after the other
    _rows: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __call__(self, draft: PredecoderDraft) -> RoutineResult:
        loss, info = self.screen(draft)
        with self._lock:
            if draft.signature not in self._rows:
                if not self.hall_of_fame.add(draft, loss):
                    return loss, info
                self._rows[draft.signature] = verified_task_info(self.run_round(draft.config()))
        info = self._rows[draft.signature] | {"fidelity": self.fidelity, "signature": draft.signature}
        draft.last_task_info = info
        return loss_of(info, self.env), info


def verified_task_info(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of history as task info, worth what the judge found on fresh shots."""
    info = task_info_of_row(row)
    if info.get("verify_verdict") == "VERIFIED":
        names = ("relative", "relative_low", "relative_high")
        info |= {name: info.get(name.replace("relative", "relative_holdout")) for name in names}
    elif info.get("relative_low") is not None:
        info["relative_low"] = min(float(info["relative_low"]), 0.0)
    return info
