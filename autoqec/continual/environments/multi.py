"""AbstractMultiEnvironments: a batch of design environments. Serial and parallel differ in how rewards are found."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from autoqec.continual.environments.hall_of_fame import HallOfFame
from autoqec.continual.environments.rendering import RenderMode, render_batch, top_k
from autoqec.errors import UsageError
from autoqec.store.run_log import LOGGER

if TYPE_CHECKING:
    import torch

Routine = Callable[[Any], tuple[float, dict[str, Any]]]


class BatchEnv(Protocol):
    """One environment of a batch. `state` is what routine and observer look at; it has a `last_task_info`."""

    state: Any

    @property
    def signature(self) -> str: ...

    def reset(self) -> Any: ...

    def step(self, action: Any, stepper: Any, raw_action: Any = None) -> Any: ...

    def clone(self) -> Any: ...

    def render(self, mode: Mapping[str, Any]) -> Any: ...


class MetricLogger(Protocol):
    def log_metric(self, name: str, value: float, step: int | None = None) -> None: ...

    def log_figure(self, name: str, figure: Any, step: int | None = None) -> None: ...

    def log_image(self, name: str, image: bytes, step: int | None = None) -> None: ...


class Observer(Protocol):
    def observe(self, state: Any) -> Any: ...


class Tensorizer(Protocol):
    def tensorize(self, observation: Any) -> torch.Tensor: ...


class AbstractMultiEnvironments(ABC):
    """Rewards are losses: smaller is better.

    hall_of_fame_size: 0 disables it. logger: for timings, figures and losses; None: nothing is logged.
    raise_errors: a routine that raises ends `get_reward`; otherwise that environment's loss is +inf.
    """

    reward_metric = "Reward Time"

    def __init__(
        self,
        envs: Sequence[BatchEnv],
        hall_of_fame_size: int,
        logger: MetricLogger | None = None,
        *,
        raise_errors: bool = False,
    ) -> None:
        if hall_of_fame_size < 0:
            raise UsageError(
                f"hall_of_fame_size is {hall_of_fame_size}", location="hall_of_fame_size", hint="0 disables it"
            )
        self.envs = list(envs)
        self.logger = logger
        self.raise_errors = raise_errors
        self.hall_of_fame = HallOfFame(hall_of_fame_size) if hall_of_fame_size else None
        self.task_infos: list[dict[str, Any]] = []  # of the last `get_reward`
        self.rendering_iteration = 0

    @abstractmethod
    def _evaluate(self, routine: Routine) -> list[tuple[float, dict[str, Any]]]:
        """(loss, task_info) of every environment, in order; a routine that raised gives `failed(error)`."""

    def get_reward(self, routine: Routine) -> list[float]:
        """The losses, one an environment. Logs the time, then adds all environments to the hall of fame."""
        start = time.monotonic()
        results = self._evaluate(routine)
        losses = [loss for loss, _ in results]
        self.task_infos = [info for _, info in results]
        for env, info in zip(self.envs, self.task_infos, strict=True):
            if "error" in info:  # the routine could not store it itself
                env.state.last_task_info = info
        self._log(self.reward_metric, time.monotonic() - start)
        if self.hall_of_fame is not None:
            self.hall_of_fame.add_all(self.envs, losses)
        return losses

    def reset(self) -> list[Any]:
        """The initial state of each environment."""
        return [env.reset() for env in self.envs]

    def gather(self) -> list[Any]:
        """The current states, the objects themselves."""
        return [env.state for env in self.envs]

    def step(self, actions: Sequence[Any], stepper: Any, raw_actions: Sequence[Any] | None = None) -> list[Any]:
        """One action an environment; each environment's own output. UsageError where the lengths differ."""
        for name, given in (("actions", actions), ("raw_actions", raw_actions)):
            if given is not None and len(given) != len(self.envs):
                raise UsageError(f"{len(given)} {name} for {len(self.envs)} environments", location=name)
        start = time.monotonic()
        if raw_actions is None:
            outputs = [env.step(action, stepper) for env, action in zip(self.envs, actions, strict=True)]
        else:
            outputs = [
                env.step(action, stepper, raw_action=raw)
                for env, action, raw in zip(self.envs, actions, raw_actions, strict=True)
            ]
        self._log("Timing: Step", time.monotonic() - start)
        return outputs

    def observe(self, observer: Observer, tensorizer: Tensorizer) -> torch.Tensor:
        """All observations, float [N, …]; [0] where there are no environments."""
        import torch

        rows = [tensorizer.tensorize(observer.observe(env.state)) for env in self.envs]
        return torch.stack([row.float() for row in rows]) if rows else torch.empty(0)

    def render(
        self,
        rewards: Sequence[float],
        n_best: int = 1,
        disregarded_percentage: float = 0.9,
        mode: RenderMode | None = None,
    ) -> None:
        """Figures of the best: `n_best` one by one through `env.render`, the top floor(N·(1 − p)) together.

        mode: {"style": "logger" (through the logger) or "file" (into mode["path"]), "task": what is drawn,
        "format": "figure" or "image"}; default: transients, as figures, to the logger. NaN losses rank last.
        Every figure is closed; each call counts one `rendering_iteration`.
        """
        if len(rewards) != len(self.envs):
            raise UsageError(f"{len(rewards)} rewards for {len(self.envs)} environments", location="rewards")
        render_mode: RenderMode = {"style": "logger", "task": "transients", "format": "figure", **(mode or {})}
        order = sorted(range(len(rewards)), key=lambda i: (math.isnan(rewards[i]), rewards[i], i))
        best = [self.envs[i] for i in order[: max(n_best, 0)]]
        chosen = order[: top_k(len(rewards), disregarded_percentage)]
        states = [self.envs[i].state for i in chosen]
        losses = [float(rewards[i]) for i in chosen]
        render_batch(best, states, losses, render_mode, self.logger, self.rendering_iteration)
        self.rendering_iteration += 1

    def _log(self, name: str, value: float) -> None:
        if self.logger is not None:
            self.logger.log_metric(name, value)


def evaluate_routine(routine: Routine, state: Any) -> tuple[float, dict[str, Any]]:
    """The routine's result; +inf and the error's words where it raises."""
    try:
        loss, info = routine(state)
        return float(loss), info
    except Exception as error:
        LOGGER.warning("the routine failed", exc_info=True)
        return failed_result(f"{type(error).__name__}: {error}")


def failed_result(error: str) -> tuple[float, dict[str, Any]]:
    return math.inf, {"error": error}
