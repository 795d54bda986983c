"""ParallelEnvironments: evaluates a batch in persistent worker processes, with the values of SerialEnvironments."""

from __future__ import annotations

import math
import os
import pickle
import sys
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from autoqec.errors import UsageError
from autoqec.extensions.continual.environments.multi import (
    AbstractMultiEnvironments,
    BatchEnv,
    MetricLogger,
    Routine,
    failed_result,
)
from autoqec.extensions.continual.environments.worker import TaskOutcome, read_frame, write_frame
from autoqec.system.process import child


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
