"""A group of spawned worker processes: if one fails, all are ended and its failure is reported.

Every worker holds the read end of a pipe whose write end only the parent has: when the parent exits in any way, workers
read end-of-file and exit. This needs no signals, which some sandboxes refuse.
"""

from __future__ import annotations

import os
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import connection, get_context
from multiprocessing.reduction import DupFd
from typing import Any

from autoqec.errors import AutoqecError, RoundError

READY_TIMEOUT_S = 600.0  # a worker that is not ready by then has failed
CAUSE_TIMEOUT_S = 3.0  # how long to look for the worker whose failure caused an error
SHUTDOWN_TIMEOUT_S = 2.0


class WorkerGroup:
    """Workers named `<role> <number>`; `check` raises if one has failed."""

    def __init__(self) -> None:
        self._context = get_context("spawn")  # not fork: torch threads and CUDA do not survive it
        self._alive_pipe: tuple[int, int] = os.pipe()
        self._processes: dict[str, Any] = {}
        self._status_pipe: dict[str, connection.Connection] = {}
        self._statuses: dict[str, dict[str, Any]] = {}

    def start(self, name: str, target: Callable[..., None], *args: Any) -> None:
        """Run `target(worker, *args)` in a new process. Target and arguments are pickled."""
        receiver, sender = self._context.Pipe(duplex=False)
        process = self._context.Process(
            target=_run_worker,
            args=(InheritedFd(self._alive_pipe[0]), sender, target, args),
            name=name,
            daemon=True,
        )
        process.start()
        sender.close()
        self._processes[name], self._status_pipe[name] = process, receiver

    @property
    def pids(self) -> dict[str, int]:
        """Process ids by name."""
        return {name: process.pid for name, process in self._processes.items()}

    def await_ready(self) -> None:
        """Wait until every worker has called `ready`.

        Raises:
            RoundError: One failed before that, or is not ready after READY_TIMEOUT_S.
        """
        deadline = time.monotonic() + READY_TIMEOUT_S
        while not all(self._statuses.get(name, {}).get("ready") for name in self._processes):
            self.check()
            if time.monotonic() > deadline:
                raise RoundError("train_error", f"a training process was not ready within {READY_TIMEOUT_S:g} s")
            connection.wait([*self._status_pipe.values(), *self._sentinels()], timeout=0.1)

    def check(self) -> None:
        """Look for failed workers.

        Raises:
            RoundError: One has failed or was killed; the message names it and the reason.
        """
        for name, process in self._processes.items():
            code = process.exitcode  # read before the status: a worker could send it and exit in between
            self._listen(name)
            status = self._statuses.get(name, {})
            if "reason" in status:
                raise RoundError(status["status"], f"{name}: {status['reason']}", cause=status["cause"])
            if code is not None and (code != 0 or "done" not in status):
                ending = f"signal {-code}" if code < 0 else f"status {code}"
                raise RoundError("train_error", f"{name} (process {process.pid}) was ended by {ending}")

    def find_cause(self, error: BaseException) -> BaseException:
        """Return the failure of a worker that explains `error`, or `error` if none is found within CAUSE_TIMEOUT_S."""
        if isinstance(error, AutoqecError) or not self._processes:
            return error
        deadline = time.monotonic() + CAUSE_TIMEOUT_S
        while time.monotonic() < deadline:
            try:
                self.check()
            except RoundError as cause:
                return cause
            time.sleep(0.02)
        return error

    def close(self) -> None:
        """End all workers; none is running when this returns."""
        if self._alive_pipe[1] >= 0:
            os.close(self._alive_pipe[1])
            os.close(self._alive_pipe[0])
            self._alive_pipe = (-1, -1)
        deadline = time.monotonic() + SHUTDOWN_TIMEOUT_S
        for process in self._processes.values():
            process.join(max(0.0, deadline - time.monotonic()))
            with suppress(PermissionError):  # the sandbox may refuse signals; the closed pipe ends them
                process.kill()
            process.join()

    def join(self) -> None:
        """Wait until every worker has ended.

        Raises:
            RoundError: One failed.
        """
        while self._sentinels():
            self.check()
            connection.wait(self._sentinels(), timeout=0.1)
        self.check()

    def _sentinels(self) -> list[int]:
        return [process.sentinel for process in self._processes.values() if process.exitcode is None]

    def _listen(self, name: str) -> None:
        with suppress(EOFError, OSError):
            while self._status_pipe[name].poll():
                self._statuses.setdefault(name, {}).update(self._status_pipe[name].recv())


class InheritedFd:
    """A file descriptor that is duplicated into a spawned process."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __getstate__(self) -> dict[str, Any]:
        return {"handle": DupFd(self.descriptor)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.descriptor = state["handle"].detach()


class Worker:
    """The worker's connection to its group."""

    def __init__(self, status_pipe: connection.Connection) -> None:
        self._status_pipe = status_pipe

    def ready(self) -> None:
        """Report that startup has completed."""
        self._status_pipe.send({"ready": True})

    def done(self) -> None:
        """Report success."""
        self._status_pipe.send({"done": True})

    def failed(self, error: BaseException) -> None:
        """Report a failure with its reason."""
        if isinstance(error, RoundError):
            self._status_pipe.send({"status": error.status, "reason": str(error), "cause": error.cause})
        elif isinstance(error, AutoqecError):
            self._status_pipe.send({"status": "train_error", "reason": str(error), "cause": None})
        else:
            reason = f"{type(error).__name__}: {error}"
            self._status_pipe.send({"status": "train_error", "reason": reason, "cause": None})


def _run_worker(
    alive_fd: InheritedFd,
    status_pipe: connection.Connection,
    target: Callable[..., None],
    args: tuple[Any, ...],
) -> None:
    threading.Thread(target=_exit_on_eof, args=(alive_fd.descriptor,), daemon=True).start()
    worker = Worker(status_pipe)
    try:
        target(worker, *args)
        worker.done()
    except BaseException as error:  # branch code may raise anything; the parent reports it
        traceback.print_exc()
        with suppress(OSError):
            worker.failed(error)
        os._exit(1)
    os._exit(0)  # skips exit handlers and threads of branch code


def _exit_on_eof(alive_fd: int) -> None:
    os.read(alive_fd, 1)
    os._exit(0)
