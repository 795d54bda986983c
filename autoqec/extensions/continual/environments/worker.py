"""Worker process of ParallelEnvironments: `python -m autoqec.extensions.continual.environments.worker`.

Reads frames from stdin and answers each on the descriptor that was stdout; output of a routine goes to stderr.
A frame is eight bytes of length, then a pickle. Both ends are this program, and nothing else writes to the pipes.
"""

from __future__ import annotations

import os
import pickle
import traceback
from typing import IO, Any, Literal, NamedTuple

_LENGTH = 8


class TaskOutcome(NamedTuple):
    """Answer to one task.

    Attributes:
        kind: `done`; `raised` by the routine; `unreadable`, the task could not be loaded in the worker.
        value: (loss, task_info), or the exception.
        traceback: Of the exception; "" without one.
    """

    kind: Literal["done", "raised", "unreadable"]
    value: Any
    traceback: str = ""


def write_frame(stream: IO[bytes], value: Any) -> None:
    """Write one value and flush."""
    data = pickle.dumps(value)
    stream.write(len(data).to_bytes(_LENGTH, "big") + data)
    stream.flush()


def read_frame(stream: IO[bytes]) -> Any:
    """Read one value. EOFError if the other end has closed the pipe."""
    head = stream.read(_LENGTH)
    size = int.from_bytes(head, "big")
    data = stream.read(size) if len(head) == _LENGTH else b""
    if len(head) != _LENGTH or len(data) != size:
        raise EOFError("the pipe was closed")
    return pickle.loads(data)


def evaluate_task(task: bytes) -> TaskOutcome:
    """Evaluate a pickled (routine, state)."""
    try:
        routine, state = pickle.loads(task)
    except Exception as error:
        return TaskOutcome("unreadable", RuntimeError(f"{type(error).__name__}: {error}"), traceback.format_exc())
    try:
        loss, info = routine(state)
        return TaskOutcome("done", (float(loss), info))
    except Exception as error:
        return TaskOutcome("raised", _picklable(error), traceback.format_exc())


def _picklable(error: Exception) -> Exception:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def main() -> None:
    """Answer tasks until stdin is closed."""
    with os.fdopen(os.dup(1), "wb") as out, os.fdopen(os.dup(0), "rb") as inp:
        os.dup2(2, 1)
        with open(os.devnull, "rb") as nothing:
            os.dup2(nothing.fileno(), 0)
        while True:
            try:
                task = read_frame(inp)
            except EOFError:
                return
            outcome = evaluate_task(task)
            try:
                write_frame(out, tuple(outcome))  # a class of this module is `__main__`'s here
            except (pickle.PicklingError, TypeError, AttributeError) as error:
                fault = RuntimeError(f"the task info cannot be pickled: {error}")
                write_frame(out, ("raised", fault, traceback.format_exc()))


if __name__ == "__main__":
    main()
