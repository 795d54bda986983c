"""ParallelEnvironments: routine calls in worker processes that stay, with the values of SerialEnvironments."""

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

from autoqec.continual.environments.multi import (
    AbstractMultiEnvironments,
    BatchEnv,
    MetricLogger,
    Routine,
    failed_result,
)
from autoqec.continual.environments.worker import read_frame, write_frame
from autoqec.errors import UsageError
from autoqec.system.process import child


class ParallelEnvironments(AbstractMultiEnvironments):
    """Writes each task_info into `state.last_task_info`: what a routine does to a state stays in its worker.

    Routine, states and task infos must be picklable. Workers start at the first `get_reward`; `close`, or leaving
    the context, ends them, and so does the end of this process. A worker that dies costs one environment's reward.
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
            raise UsageError(f"{self.n_workers} workers can't work", location="n_workers")
        self._pool: _Pool | None = None

    def _evaluate(self, routine: Routine) -> list[tuple[float, dict[str, Any]]]:
        tasks = [pickle.dumps((routine, env.state)) for env in self.envs]
        if self._pool is None:
            self._pool = _Pool(self.n_workers)
        results = self._pool.map(tasks)
        evaluated: list[tuple[float, dict[str, Any]]] = []
        for env, (kind, value) in zip(self.envs, results, strict=True):
            if kind == "raised" and self.raise_errors:
                raise value
            loss, info = value if kind == "done" else failed_result(f"{type(value).__name__}: {value}")
            env.state.last_task_info = info
            evaluated.append((loss, info))
        return evaluated

    def close(self) -> None:
        """End the workers; a later `get_reward` starts others."""
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
    """Threads that live as long as the pool; each owns one worker process, which lives as long as its thread."""

    def __init__(self, size: int) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="autoqec-workers-")
        self._threads = ThreadPoolExecutor(size, thread_name_prefix="worker")
        self._thread_local = threading.local()
        self._lock = threading.Lock()
        self._processes: set[child.Process] = set()

    def map(self, tasks: Sequence[bytes]) -> list[tuple[str, Any]]:
        return list(self._threads.map(self._evaluate_task, tasks))

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)
        for process in list(self._processes):
            process.kill()
        self._folder.cleanup()

    def _evaluate_task(self, task: bytes) -> tuple[str, Any]:
        process = getattr(self._thread_local, "process", None) or self._start()
        try:
            write_frame(process.stdin, task)
            kind, value = read_frame(process.stdout)
            return kind, value
        except (OSError, EOFError):
            result = process.kill()
            with self._lock:
                self._processes.discard(process)
            self._thread_local.process = None
            return "raised", RuntimeError(f"the worker died (status {result.returncode})")

    def _start(self) -> child.Process:
        process = child.start(
            [sys.executable, "-m", "autoqec.continual.environments.worker"],
            cwd=Path.cwd(),
            env={"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            limits=child.Limits(wallclock_s=math.inf),
            stderr=Path(self._folder.name) / f"{threading.get_ident()}.log",
        )
        self._thread_local.process = process
        with self._lock:
            self._processes.add(process)
        return process
