"""Spawned processes that live and die together: one's death ends all, and is the reason that is given.

Every member holds the reading end of one pipe whose writing end is the leader's alone: when the leader goes, in
whatever way, members see its end and leave at once. No signal is needed for that, and behind some walls none is had.
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

READY_TIMEOUT_S = 600.0  # a member that has not come up by then never will
CAUSE_TIMEOUT_S = 3.0  # how long a failure waits for the member that caused it
SHUTDOWN_TIMEOUT_S = 2.0


class WorkerGroup:
    """Members are named `<role> <number>`; `check` raises where one has ended before its time."""

    def __init__(self) -> None:
        self._context = get_context("spawn")  # never fork: threads of torch, and CUDA, do not survive one
        self._alive_pipe: tuple[int, int] = os.pipe()
        self._processes: dict[str, Any] = {}
        self._status_pipe: dict[str, connection.Connection] = {}
        self._statuses: dict[str, dict[str, Any]] = {}

    def start(self, name: str, target: Callable[..., None], *args: Any) -> None:
        """Run `target(member, *args)` in a process of its own. Target and arguments are pickled."""
        mine, theirs = self._context.Pipe(duplex=False)
        process = self._context.Process(
            target=_run_worker,
            args=(name, InheritedFd(self._alive_pipe[0]), theirs, target, args),
            name=name,
            daemon=True,
        )
        process.start()
        theirs.close()
        self._processes[name], self._status_pipe[name] = process, mine

    @property
    def pids(self) -> dict[str, int]:
        return {name: process.pid for name, process in self._processes.items()}

    def await_ready(self) -> None:
        """Until every member has called `ready`. RoundError where one ends before it."""
        deadline = time.monotonic() + READY_TIMEOUT_S
        while not all(self._statuses.get(name, {}).get("ready") for name in self._processes):
            self.check()
            if time.monotonic() > deadline:
                raise RoundError("train_error", f"a training process did not come up within {READY_TIMEOUT_S:g} s")
            connection.wait([*self._status_pipe.values(), *self._sentinels()], timeout=0.1)

    def check(self) -> None:
        """RoundError, naming the member and its reason, where one has failed or was killed."""
        for name, process in self._processes.items():
            code = process.exitcode  # before its last words: after them it could end unheard
            self._listen(name)
            status = self._statuses.get(name, {})
            if "reason" in status:
                raise RoundError(status["status"], f"{name}: {status['reason']}")
            if code is not None and (code != 0 or "done" not in status):
                ending = f"signal {-code}" if code < 0 else f"status {code}"
                raise RoundError("train_error", f"{name} (process {process.pid}) was ended by {ending}")

    def find_cause(self, error: BaseException) -> BaseException:
        """What ended the training: a member's own failure where one shows up soon, else `error`."""
        if isinstance(error, AutoqecError):
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
        """End whoever is left; nobody is when this returns."""
        if self._alive_pipe[1] >= 0:
            os.close(self._alive_pipe[1])
            os.close(self._alive_pipe[0])
            self._alive_pipe = (-1, -1)
        deadline = time.monotonic() + SHUTDOWN_TIMEOUT_S
        for process in self._processes.values():
            process.join(max(0.0, deadline - time.monotonic()))
            with suppress(PermissionError):  # a wall may let us signal nobody; the pipe's end has told them
                process.kill()
            process.join()

    def join(self) -> None:
        """Until every member has ended by itself; RoundError where one failed."""
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
    """A descriptor that a spawned process gets its own copy of."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __getstate__(self) -> dict[str, Any]:
        return {"handle": DupFd(self.descriptor)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.descriptor = state["handle"].detach()


class Worker:
    """A member's voice to its leader."""

    def __init__(self, status_pipe: connection.Connection) -> None:
        self._status_pipe = status_pipe

    def ready(self) -> None:
        self._status_pipe.send({"ready": True})

    def done(self) -> None:
        self._status_pipe.send({"done": True})

    def failed(self, error: BaseException) -> None:
        if isinstance(error, RoundError):
            self._status_pipe.send({"status": error.status, "reason": str(error)})
        elif isinstance(error, AutoqecError):
            self._status_pipe.send({"status": "train_error", "reason": str(error)})
        else:
            self._status_pipe.send({"status": "train_error", "reason": f"{type(error).__name__}: {error}"})


def _run_worker(
    name: str,
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
    except BaseException as error:  # a branch's code may raise anything; the leader gives the reason
        traceback.print_exc()
        with suppress(OSError):
            worker.failed(error)
        os._exit(1)
    os._exit(0)  # threads or exit handlers of a branch's code have no say in how this ends


def _exit_on_eof(alive_fd: int) -> None:
    os.read(alive_fd, 1)
    os._exit(0)
