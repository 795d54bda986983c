"""Shared arrays in unlinked files and token queues in pipes, for spawned processes.

The sandbox refuses named semaphores and memfds but allows pipes and unlinked files; these have no name, so nothing
remains however a process ends. This module imports numpy only, so that copier processes start fast.
"""

from __future__ import annotations

import mmap
import os
import select
import tempfile
from collections.abc import Callable
from multiprocessing.reduction import DupFd
from types import TracebackType
from typing import Any, Self

import numpy as np

from autoqec.errors import RoundError

WAIT_S = 0.2


class SharedArray:
    """A zero-initialized numpy array, shared with processes that get it as an argument of their start."""

    def __init__(self, shape: tuple[int, ...], dtype: Any) -> None:
        self.shape, self.dtype = shape, np.dtype(dtype)
        self._fd = _anonymous_file(max(1, int(np.prod(shape)) * self.dtype.itemsize))
        self._map()

    def _map(self) -> None:
        memory = mmap.mmap(self._fd, 0)
        self.array: np.ndarray = np.frombuffer(memory, self.dtype, int(np.prod(self.shape))).reshape(self.shape)

    def __getstate__(self) -> dict[str, Any]:
        return {"shape": self.shape, "dtype": self.dtype, "fd": DupFd(self._fd)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.shape, self.dtype, self._fd = state["shape"], state["dtype"], state["fd"].detach()
        self._map()

    def __del__(self) -> None:
        if hasattr(self, "_fd"):
            os.close(self._fd)


class TokenPipe:
    """A queue of bytes between processes, as long as a pipe's capacity (at least 4096)."""

    def __init__(self, *first: int) -> None:
        self._ends: tuple[int, int] = os.pipe()
        for token in first:
            self.put(token)

    def put(self, token: int = 0) -> None:
        """Append a token, 0 to 255."""
        os.write(self._ends[1], bytes([token]))

    def get(self, timeout: float | None = None) -> int | None:
        """Remove and return the oldest token; None after `timeout` seconds without one."""
        if timeout is not None and not select.select([self._ends[0]], [], [], timeout)[0]:
            return None
        return os.read(self._ends[0], 1)[0]

    def __getstate__(self) -> dict[str, Any]:
        return {"ends": tuple(DupFd(end) for end in self._ends)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._ends = tuple(end.detach() for end in state["ends"])

    def __del__(self) -> None:
        for end in getattr(self, "_ends", ()):
            os.close(end)


class Mutex:
    """A lock between processes.

    Attributes:
        on_wait: Called while this process waits; it may raise, for example because the holder has died.
    """

    def __init__(self) -> None:
        self._token = TokenPipe(0)
        self.on_wait: Callable[[], None] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_token": self._token, "on_wait": None}

    def __enter__(self) -> Self:
        while self._token.get(None if self.on_wait is None else WAIT_S) is None:
            assert self.on_wait is not None
            self.on_wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._token.put()


def _anonymous_file(size: int) -> int:
    """Return the descriptor of an unlinked file in /dev/shm, or in the temporary directory if that is not writable."""
    reason = ""
    for directory in ("/dev/shm", tempfile.gettempdir()):
        try:
            descriptor, name = tempfile.mkstemp(prefix="autoqec-", dir=directory)
        except OSError:
            continue
        os.unlink(name)
        try:
            os.posix_fallocate(descriptor, 0, size)  # else a full file system is a SIGBUS at the first write
        except OSError as error:
            os.close(descriptor)
            reason = f" ({error.strerror})"
            continue
        return descriptor
    raise RoundError(
        "train_error",
        f"cannot allocate {size / 1e6:.1f} MB of shared memory{reason}",
        location="training.replay",
        hint="lower `training.replay.shots` or `training.batch_size`",
        cause="out of memory",
    )
