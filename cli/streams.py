"""Standard output and standard error that survive a closed pipe, a full disk and a lost terminal."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

from autoqec.errors import AutoqecError, StorageError


class GuardedStream:
    """A text stream that discards its output from the first failure on, so that the command can finish.

    Attributes:
        error: The first failure; None if everything was written.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.error: OSError | None = None

    def write(self, text: str) -> int:
        """Write `text` if the stream still works; return its length."""
        if self.error is None:
            try:
                return self._stream.write(text)
            except OSError as error:
                self._discard(error)
        return len(text)

    def flush(self) -> None:
        """Flush the stream if it still works."""
        if self.error is None:
            try:
                self._stream.flush()
            except OSError as error:
                self._discard(error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _discard(self, error: OSError) -> None:
        """Send what is still buffered to /dev/null: it would fail again when the interpreter ends."""
        self.error = error
        with suppress(OSError, ValueError):
            target = os.open(os.devnull, os.O_WRONLY)
            os.dup2(target, self._stream.fileno())
            os.close(target)


@contextmanager
def guarded_streams() -> Iterator[GuardedStream]:
    """Guard sys.stdout and sys.stderr while the block runs; yields the guarded stdout."""
    before = sys.stdout, sys.stderr
    for stream in before:
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a terminal that cannot show Δ still gets the rest
    output = GuardedStream(sys.stdout)
    sys.stdout, sys.stderr = output, GuardedStream(sys.stderr)
    try:
        yield output
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        sys.stdout, sys.stderr = before


def output_error(output: GuardedStream) -> AutoqecError | None:
    """Return the error to report for output that was lost; None if it all arrived or its reader closed the pipe."""
    if output.error is None or output.error.errno == errno.EPIPE:
        return None
    return StorageError(
        f"could not be written: {output.error.strerror}", location="standard output", hint="df -h; then run it again"
    )
