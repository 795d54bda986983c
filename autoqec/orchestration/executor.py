"""Where rounds are measured: in this process one after another, or several at once, each in a child of its own."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

Value = TypeVar("Value")
Measured = TypeVar("Measured", covariant=True)


class Pending(Protocol[Measured]):
    """A measurement that was asked for."""

    def result(self) -> Measured:
        """Its value, waited for; raises what it raised."""
        ...


class Executor(Protocol):
    """slots: how many measurements it takes at once."""

    slots: int

    def submit(self, work: Callable[[], Value]) -> Pending[Value]: ...


class _Now(Generic[Value]):
    def __init__(self, work: Callable[[], Value]) -> None:
        self._work = work

    def result(self) -> Value:
        return self._work()


class Serial:
    """One at a time, in the caller's own thread, when the result is asked for."""

    slots = 1

    def submit(self, work: Callable[[], Value]) -> Pending[Value]:
        return _Now(work)


class _Later(Generic[Value]):
    """A daemon thread: leaving the process is never held up by a measurement that nobody waits for."""

    def __init__(self, work: Callable[[], Value]) -> None:
        self._done: queue.SimpleQueue[tuple[bool, Value | BaseException]] = queue.SimpleQueue()
        threading.Thread(target=self._run, args=(work,), daemon=True).start()

    def _run(self, work: Callable[[], Value]) -> None:
        try:
            self._done.put((True, work()))
        except BaseException as error:
            self._done.put((False, error))

    def result(self) -> Value:
        good, value = self._done.get()
        if not good and isinstance(value, BaseException):
            raise value
        return value  # type: ignore[return-value]


class Parallel:
    """Up to `slots` at once."""

    def __init__(self, slots: int) -> None:
        self.slots = slots

    def submit(self, work: Callable[[], Value]) -> Pending[Value]:
        return _Later(work)
