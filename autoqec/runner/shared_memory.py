"""What spawned processes share: arrays in a nameless file, and tokens through a pipe.

Named semaphores and memfds are closed behind the sandbox's walls, pipes and unlinked files are not; and nothing here
has a name, so nothing stays behind, however a process ends. numpy and the standard library only: a copier starts light.
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
    """A numpy array whose memory every process sees that got it as an argument of its start. Zeros at first."""

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
    """A queue of bytes 0..255 between processes; as many as a pipe holds (at least 4096) fit in."""

    def __init__(self, *first: int) -> None:
        self._ends: tuple[int, int] = os.pipe()
        for token in first:
            self.put(token)

    def put(self, token: int = 0) -> None:
        os.write(self._ends[1], bytes([token]))

    def get(self, timeout: float | None = None) -> int | None:
        """The oldest token; None when `timeout` seconds pass first."""
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
    """One holder at a time, over processes.

    on_wait: called while one waits, in this process alone; it may raise, as where the holder has died.
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
    """A descriptor of `size` bytes in memory where that is open to us, else in the temporary directory."""
    why = ""
    for directory in ("/dev/shm", tempfile.gettempdir()):
        try:
            descriptor, name = tempfile.mkstemp(prefix="autoqec-", dir=directory)
        except OSError:
            continue
        os.unlink(name)
        try:
            os.posix_fallocate(descriptor, 0, size)  # too little room is found here, not by a signal at the first write
        except OSError as error:
            os.close(descriptor)
            why = f" ({error.strerror})"
            continue
        return descriptor
    raise RoundError(
        "train_error",
        f"{size / 1e6:.1f} MB of shared memory are not to be had{why}",
        location="training.replay",
        hint="lower `training.replay.shots` or `training.batch_size`",
    )
