"""SerialEnvironments: evaluates one environment after the other in this process, for debugging and small batches."""

from __future__ import annotations

from typing import Any

from autoqec.extensions.continual.environments.multi import AbstractMultiEnvironments, Routine, evaluate_routine


class SerialEnvironments(AbstractMultiEnvironments):
    """A batch evaluated in this process. `state.last_task_info` is written by the routine, which has the state."""

    reward_metric = "Reward Time"

    def _evaluate(self, routine: Routine) -> list[tuple[float, dict[str, Any]]]:
        if self.raise_errors:
            return [(float(loss), info) for loss, info in (routine(env.state) for env in self.envs)]
        return [evaluate_routine(routine, env.state) for env in self.envs]
