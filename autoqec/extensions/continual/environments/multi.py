"""AbstractMultiEnvironments: a batch of design environments. Subclasses differ in how they evaluate rewards."""

from __future__ import annotations

import math
import time
import traceback
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from autoqec.errors import UsageError
from autoqec.extensions.continual.environments.hall_of_fame import HallOfFame
from autoqec.extensions.continual.environments.rendering import RenderMode, render_batch, top_k
from autoqec.store.run_log import LOGGER

if TYPE_CHECKING:
    import torch

Routine = Callable[[Any], tuple[float, dict[str, Any]]]


class BatchEnv(Protocol):
    """One environment of a batch. Routine and observer read its `state`, which has a `last_task_info`."""

    state: Any

    @property
    def signature(self) -> str:
        """Identifier of the structure: equal signatures are the same design."""

    def reset(self) -> Any:
        """Start an episode and return its initial state."""

    def step(self, action: Any, stepper: Any, raw_action: Any = None) -> Any:
        """Apply one action through the stepper."""

    def clone(self) -> Any:
        """Return a copy that later steps of the original do not change."""

    def render(self, mode: Mapping[str, Any]) -> Any:
        """Return a matplotlib figure of the state."""


class MetricLogger(Protocol):
    """Receives metrics and figures, as the loggers of training libraries do."""

    def log_metric(self, name: str, value: float, step: int | None = None) -> None:
        """Log a number."""

    def log_figure(self, name: str, figure: Any, step: int | None = None) -> None:
        """Log a matplotlib figure."""

    def log_image(self, name: str, image: bytes, step: int | None = None) -> None:
        """Log a PNG image."""


class Observer(Protocol):
    """Maps a state to an observation."""

    def observe(self, state: Any) -> Any:
        """Return the observation of a state."""


class Tensorizer(Protocol):
    """Maps an observation to a tensor."""

    def tensorize(self, observation: Any) -> torch.Tensor:
        """Return the observation as a tensor of fixed shape."""


class AbstractMultiEnvironments(ABC):
    """A batch of environments. Rewards are losses: smaller is better.

    Args:
        envs: The environments.
        hall_of_fame_size: Number of best environments that are kept; 0 disables the hall of fame.
        logger: Receives timings, figures and losses; None disables logging of metrics.
        raise_errors: Whether an exception in the routine is raised by `get_reward`. If not, the loss of that
            environment is +inf, its task info holds `error` and `traceback`, and the traceback is logged and announced
            by a RuntimeWarning.
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
        """(loss, task_info) of every environment, in order; `failed_result` where the routine raised."""

    def get_reward(self, routine: Routine) -> list[float]:
        """Evaluate the routine on every environment, then add all environments to the hall of fame.

        Args:
            routine: Function of a state, returning (loss, task_info).

        Returns:
            One loss per environment, in order.
        """
        start = time.monotonic()
        results = self._evaluate(routine)
        losses = [loss for loss, _ in results]
        self.task_infos = [info for _, info in results]
        failed = [info for info in self.task_infos if "error" in info]
        for env, info in zip(self.envs, self.task_infos, strict=True):
            if "error" in info:  # the routine could not store it itself
                env.state.last_task_info = info
        if failed:
            message = (
                f"the routine failed for {len(failed)} of {len(self.envs)} environments; first: {failed[0]['error']}"
            )
            warnings.warn(f"{message} (tracebacks in `task_infos` and in the log)", RuntimeWarning, stacklevel=2)
        self._log(self.reward_metric, time.monotonic() - start)
        if self.hall_of_fame is not None:
            self.hall_of_fame.add_all(self.envs, losses)
        return losses

    def reset(self) -> list[Any]:
        """Return the initial state of each environment."""
        return [env.reset() for env in self.envs]

    def gather(self) -> list[Any]:
        """Return the current states, the objects themselves."""
        return [env.state for env in self.envs]

    def step(self, actions: Sequence[Any], stepper: Any, raw_actions: Sequence[Any] | None = None) -> list[Any]:
        """Apply one action per environment.

        Returns:
            The output of each environment's `step`, in order.

        Raises:
            UsageError: The number of actions or raw actions differs from the number of environments.
        """
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
        """Return all observations as one float tensor [N, …]; [0] for an empty batch."""
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
        """Draw the best environments. Every figure is closed; each call counts one `rendering_iteration`.

        Args:
            rewards: Losses of the environments; NaN ranks last.
            n_best: Number of environments that are drawn one by one, through `env.render`.
            disregarded_percentage: p; the best floor(N·(1 − p)) environments are drawn together in one figure.
            mode: `style`: "logger" or "file" (into the directory `path`); `task`: what is drawn, one of
                `rendering.TASKS`; `format`: "figure" or "image". Missing keys default to logger, transients, figure.
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
    """Return the result of the routine; +inf with error and traceback if it raises."""
    try:
        loss, info = routine(state)
        return float(loss), info
    except Exception as error:
        return failed_result(error, traceback.format_exc())


def failed_result(error: Exception, trace: str) -> tuple[float, dict[str, Any]]:
    """Loss and task info of an environment whose routine raised; logs the traceback."""
    LOGGER.error("the routine failed\n%s", trace)
    return math.inf, {"error": f"{type(error).__name__}: {error}", "traceback": trace}
