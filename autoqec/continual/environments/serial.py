"""SerialEnvironments: one routine call after the other, in this process. For debugging and small batches."""

from __future__ import annotations

from typing import Any

from autoqec.continual.environments.multi import AbstractMultiEnvironments, Routine, evaluate_routine


class SerialEnvironments(AbstractMultiEnvironments):
    """Leaves `state.last_task_info` to the routine, which has the state in its hands."""

    reward_metric = "Reward Time"

    def _evaluate(self, routine: Routine) -> list[tuple[float, dict[str, Any]]]:
        if self.raise_errors:
            return [(float(loss), info) for loss, info in (routine(env.state) for env in self.envs)]
        return [evaluate_routine(routine, env.state) for env in self.envs]
