"""A process that evaluates routines for ParallelEnvironments: `python -m autoqec.continual.environments.worker`.

It reads frames from stdin and answers each on the descriptor that was stdout; a routine that prints reaches stderr.
A frame is eight bytes of length, then a pickle. Both ends are this program; nothing else writes to the pipes.
"""

from __future__ import annotations

import os
import pickle
from typing import IO, Any

_LENGTH = 8


def write_frame(stream: IO[bytes], value: Any) -> None:
    data = pickle.dumps(value)
    stream.write(len(data).to_bytes(_LENGTH, "big") + data)
    stream.flush()


def read_frame(stream: IO[bytes]) -> Any:
    """The next value. EOFError where the other end has gone."""
    head = stream.read(_LENGTH)
    size = int.from_bytes(head, "big")
    data = stream.read(size) if len(head) == _LENGTH else b""
    if len(head) != _LENGTH or len(data) != size:
        raise EOFError("the pipe was closed")
    return pickle.loads(data)


def evaluate_task(task: bytes) -> tuple[str, Any]:
    """("done", (loss, info)), or ("raised", the exception); text where the exception can't travel."""
    try:
        routine, state = pickle.loads(task)
        loss, info = routine(state)
        return "done", (float(loss), info)
    except Exception as error:
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            return "raised", RuntimeError(f"{type(error).__name__}: {error}")
        return "raised", error


def main() -> None:
    with os.fdopen(os.dup(1), "wb") as out, os.fdopen(os.dup(0), "rb") as inp:
        os.dup2(2, 1)
        with open(os.devnull, "rb") as nothing:
            os.dup2(nothing.fileno(), 0)
        while True:
            try:
                task = read_frame(inp)
            except EOFError:
                return
            kind, value = evaluate_task(task)
            try:
                write_frame(out, (kind, value))
            except (pickle.PicklingError, TypeError, AttributeError) as error:
                write_frame(out, ("raised", RuntimeError(f"the task info can't be sent: {error}")))


if __name__ == "__main__":
    main()
