"""RoundRoutine: evaluates designs that a cheaper routine promotes in real rounds, with verification."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from autoqec.contracts.env import EnvSpec
from autoqec.extensions.continual.environments.design import PredecoderDraft
from autoqec.extensions.continual.environments.hall_of_fame import HallOfFame
from autoqec.extensions.continual.environments.routines import RoutineResult, loss_of, task_info_of_row
from autoqec.ideators.space import Config

RunRound = Callable[[Config], Mapping[str, Any]]


@dataclass
class RoundRoutine:
    """Screens a design, and runs a round if it is among the best so far. A design is run once.

    A design without a VERIFIED verdict counts as no gain, whatever its validation shots showed.

    Attributes:
        env: Env of the designs.
        screen: Cheaper routine.
        run_round: Config -> row of history of the round that was run.
        hall_of_fame: Designs that were promoted.
    """

    env: EnvSpec
    screen: Callable[[PredecoderDraft], RoutineResult]
    run_round: RunRound
    hall_of_fame: HallOfFame = field(default_factory=lambda: HallOfFame(1))
    fidelity: ClassVar[str] = "round"
    _lock: ClassVar[threading.Lock] = threading.Lock()  # a repository runs one round at a time
    _rows: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __call__(self, draft: PredecoderDraft) -> RoutineResult:
        """Evaluate a draft."""
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
    """Return a row of history as task info, with the gain that the verifier measured."""
    info = task_info_of_row(row)
    if info.get("verify_verdict") == "VERIFIED":
        names = ("relative", "relative_low", "relative_high")
        info |= {name: info.get(name.replace("relative", "relative_holdout")) for name in names}
    elif info.get("relative_low") is not None:
        info["relative_low"] = min(float(info["relative_low"]), 0.0)
    return info
