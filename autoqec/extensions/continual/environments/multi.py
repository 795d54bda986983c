"""Batches of design environments, evaluated in this process or in workers, and the hall of fame of the best ones."""

from __future__ import annotations

import bisect
import math
import os
import pickle
import random
import sys
import tempfile
import threading
import time
import traceback
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from autoqec.errors import UsageError
from autoqec.extensions.continual.environments.rendering import RenderMode, render_batch, top_k
from autoqec.extensions.continual.environments.worker import TaskOutcome, read_frame, write_frame
from autoqec.store.run_log import LOGGER
from autoqec.system.process import child

if TYPE_CHECKING:
    import torch


Routine = Callable[[Any], tuple[float, dict[str, Any]]]


class BatchEnv(Protocol):
    """One environment of a batch. Routine and observer read its `state`, which has a `last_task_info`."""

    state: Any

    @property
    def signature(self) -> str:
        """Identifier of the structure: equal signatures are the same design."""

    @property
    def done(self) -> bool:
        """Whether the episode has ended."""

    def reset(self) -> Any:
        """Start an episode and return its initial state."""

    def step(self, action: Any, stepper: Any, raw_action: Any = None) -> Any:
        """Apply one action through the stepper."""

    def clone(self) -> Any:
        """Return a copy that later steps of the original do not change."""

    def render(self, mode: Mapping[str, Any]) -> Any:
        """Return a matplotlib figure of the state."""


class HallOfFame:
    """Keeps copies of environments with the smallest losses. Of equal losses the earlier one ranks higher."""

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"the capacity of a hall of fame is at least 1, not {capacity}")
        self.capacity = capacity
        self._ranked: list[tuple[float, int, str, Any]] = []  # sorted by (loss, arrival)
        self._arrivals = 0

    def add(self, env: Any, loss: float) -> bool:
        """Keep a copy of an object with `signature` and `clone` if its loss is among the best.

        Returns:
            False if it is not, if the same design is kept with a loss as small, or if the loss is not finite.
        """
        if not math.isfinite(loss):
            return False
        signature = env.signature
        duplicate = next((place for place, entry in enumerate(self._ranked) if entry[2] == signature), None)
        if duplicate is not None:
            if loss >= self._ranked[duplicate][0]:
                return False
            del self._ranked[duplicate]
        elif len(self._ranked) == self.capacity:
            if loss >= self._ranked[-1][0]:
                return False
            del self._ranked[-1]
        self._arrivals += 1
        bisect.insort(self._ranked, (float(loss), self._arrivals, signature, env.clone()))
        return True

    def add_all(self, envs: Iterable[Any], losses: Iterable[float]) -> None:
        """Add several environments with their losses."""
        for env, loss in zip(envs, losses, strict=True):
            self.add(env, loss)

    def sample(self, k: int, rng: random.Random) -> list[Any]:
        """At most k distinct members, drawn uniformly."""
        return rng.sample(list(self), min(k, len(self)))

    @property
    def losses(self) -> Sequence[float]:
        """Losses of the members, best first."""
        return [entry[0] for entry in self._ranked]

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the members, best first."""
        return iter([entry[3] for entry in self._ranked])

    def __getitem__(self, rank: int) -> Any:
        return self._ranked[rank][3]

    def __len__(self) -> int:
        return len(self._ranked)


class MetricLogger(Protocol):
    """Receives metrics and figures, as the loggers of training libraries do."""

    def log_metric(self, name: str, value: float, step: int | None = None) -> None:
        """Log a number."""

    def log_figure(self, name: str, figure: Any, step: int | None = None) -> None:
        """Log a matplotlib figure."""

    def log_image(self, name: str, image: bytes, step: int | None = None) -> None:
        """Log a PNG image."""


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

    def observe(self, observer: Any, tensorizer: Any) -> torch.Tensor:
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


class SerialEnvironments(AbstractMultiEnvironments):
    """A batch evaluated in this process. `state.last_task_info` is written by the routine, which has the state."""

    reward_metric = "Reward Time"

    def _evaluate(self, routine: Routine) -> list[tuple[float, dict[str, Any]]]:
        if self.raise_errors:
            return [(float(loss), info) for loss, info in (routine(env.state) for env in self.envs)]
        return [evaluate_routine(routine, env.state) for env in self.envs]


class ParallelEnvironments(AbstractMultiEnvironments):
    """A batch evaluated in worker processes.

    Each task_info is written into `state.last_task_info`: changes that a routine makes to a state stay in its worker.
    Routine, states and task infos must be picklable, and importable from a module. Workers start at the first
    `get_reward`; `close`, leaving the context or the end of this process stops them. A worker that dies costs the
    reward of one environment.

    Args:
        envs, hall_of_fame_size, logger, raise_errors: As for AbstractMultiEnvironments.
        n_workers: Number of processes; None: one per core, at most one per environment.
    """

    reward_metric = "Timing: Rewards"

    def __init__(
        self,
        envs: Sequence[BatchEnv],
        hall_of_fame_size: int,
        logger: MetricLogger | None = None,
        *,
        n_workers: int | None = None,
        raise_errors: bool = False,
    ) -> None:
        super().__init__(envs, hall_of_fame_size, logger, raise_errors=raise_errors)
        self.n_workers = n_workers if n_workers is not None else max(1, min(len(envs), os.cpu_count() or 1))
        if self.n_workers < 1:
            raise UsageError(f"n_workers is {self.n_workers}; at least 1 is needed", location="n_workers")
        self._pool: _Pool | None = None

    def _evaluate(self, routine: Routine) -> list[tuple[float, dict[str, Any]]]:
        tasks = [pickle.dumps((routine, env.state)) for env in self.envs]
        if self._pool is None:
            self._pool = _Pool(self.n_workers)
        results = self._pool.map(tasks)
        evaluated: list[tuple[float, dict[str, Any]]] = []
        for env, outcome in zip(self.envs, results, strict=True):
            if outcome.kind == "unreadable":
                message = f"a worker process cannot load the routine: {outcome.value}"
                hint = "define routine, states and their classes in a module, not in the script that runs"
                raise UsageError(message, location="get_reward", hint=hint)
            if outcome.kind == "raised" and self.raise_errors:
                raise outcome.value
            done = outcome.kind == "done"
            loss, info = outcome.value if done else failed_result(outcome.value, outcome.traceback)
            env.state.last_task_info = info
            evaluated.append((loss, info))
        return evaluated

    def close(self) -> None:
        """Stop the workers; a later `get_reward` starts new ones."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Pool:
    """A pool of threads, each with its own worker process for as long as the pool lives."""

    def __init__(self, size: int) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="autoqec-workers-")
        self._threads = ThreadPoolExecutor(size, thread_name_prefix="worker")
        self._thread_local = threading.local()
        self._lock = threading.Lock()
        self._processes: set[child.Process] = set()

    def map(self, tasks: Sequence[bytes]) -> list[TaskOutcome]:
        return list(self._threads.map(self._evaluate_task, tasks))

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)
        for process in list(self._processes):
            process.kill()
        self._folder.cleanup()

    def _evaluate_task(self, task: bytes) -> TaskOutcome:
        process = getattr(self._thread_local, "process", None) or self._start()
        try:
            write_frame(process.stdin, task)
            return TaskOutcome(*read_frame(process.stdout))
        except (OSError, EOFError):
            result = process.kill()
            with self._lock:
                self._processes.discard(process)
            self._thread_local.process = None
            message = f"the worker died (status {result.returncode})"
            return TaskOutcome("raised", RuntimeError(message), message)

    def _start(self) -> child.Process:
        process = child.start(
            [sys.executable, "-m", "autoqec.extensions.continual.environments.worker"],
            cwd=Path.cwd(),
            env={"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            limits=child.Limits(wallclock_s=math.inf),
            stderr=Path(self._folder.name) / f"{threading.get_ident()}.log",
        )
        self._thread_local.process = process
        with self._lock:
            self._processes.add(process)
        return process
