"""Reads objects of a repository through one git process that stays alive, since starting one costs milliseconds."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import IO, Any

from autoqec.system.git.parsing import GitError

ARGUMENTS = ("cat-file", "--batch-command")
_CHUNK = 4096  # bytes of requests that are sent before their answers are read: a pipe holds at least as many
_KINDS = (b"blob", b"tree", b"commit", b"tag")
_STARTS = 2  # a process that ended, as a killed one, is replaced once per call

Header = tuple[str, str, int]  # sha, type, bytes


class ReaderEndedError(Exception):
    """The process ended without an answer; the text is what it wrote to stderr."""


class ObjectReader:
    """Answers requests in the order in which they are made; thread-safe.

    The process changes nothing and holds no lock. It ends with this object or with this process, whose end closes its
    stdin. A forked copy of this process starts one of its own.

    Args:
        start: Starts the process; returns GitPython's object for it.
    """

    def __init__(self, start: Callable[[], Any]) -> None:
        self._start = start
        self._process: Any = None
        self._owner = 0
        self._lock = threading.Lock()

    def contents(self, names: Sequence[str]) -> list[tuple[str, bytes] | None]:
        """Return (sha, bytes) of each object; None for one that does not exist. Raises ReaderEndedError."""
        return [None if found is None else (found[0][0], found[1]) for found in self._ask("contents", names)]

    def headers(self, names: Sequence[str]) -> list[Header | None]:
        """Return (sha, type, bytes) of each object; None for one that does not exist. Raises ReaderEndedError."""
        return [None if found is None else found[0] for found in self._ask("info", names)]

    def _ask(self, request: str, names: Sequence[str]) -> list[tuple[Header, bytes] | None]:
        for name in names:
            if "\n" in name:
                raise GitError(f"{name!r} is not a name for an object")
        with self._lock:
            for tries_left in reversed(range(_STARTS)):
                try:
                    return [found for chunk in _chunks(request, names) for found in self._exchange(request, *chunk)]
                except BaseException as error:  # also an interrupt, which may leave answers unread
                    self._process = None
                    if not tries_left or not isinstance(error, ReaderEndedError):
                        raise
        raise AssertionError

    def _exchange(self, request: str, data: bytes, count: int) -> list[tuple[Header, bytes] | None]:
        if self._process is None or self._owner != os.getpid():
            self._process, self._owner = self._start(), os.getpid()
        stdin, stdout = self._process.stdin, self._process.stdout
        try:
            stdin.write(data)
            stdin.flush()
        except OSError as error:
            raise self._ended() from error
        return [self._answer(stdout, has_content=request == "contents") for _ in range(count)]

    def _answer(self, stdout: IO[bytes], *, has_content: bool) -> tuple[Header, bytes] | None:
        line = stdout.readline()
        if not line.endswith(b"\n"):
            raise self._ended()
        fields = line.split()
        if len(fields) != 3 or fields[1] not in _KINDS or not fields[2].isdigit():  # `NAME missing`, `NAME ambiguous`
            return None
        header = fields[0].decode(), fields[1].decode(), int(fields[2])
        if not has_content:
            return header, b""
        data = stdout.read(header[2] + 1)
        if len(data) != header[2] + 1:
            raise self._ended()
        return header, data[:-1]

    def _ended(self) -> ReaderEndedError:
        assert self._process is not None
        message = b""
        if self._process.stderr is not None:
            with suppress(OSError, ValueError):
                message = self._process.stderr.read()
        return ReaderEndedError(message.decode("utf-8", "surrogateescape"))


def _chunks(request: str, names: Sequence[str]) -> Iterator[tuple[bytes, int]]:
    """Yield the requests in pieces, each with the number of requests in it."""
    data, count = b"", 0
    for name in names:
        line = f"{request} {name}\n".encode("utf-8", "surrogateescape")
        if data and len(data) + len(line) > _CHUNK:
            yield data, count
            data, count = b"", 0
        data, count = data + line, count + 1
    if data:
        yield data, count
