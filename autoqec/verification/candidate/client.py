"""The judge's end of the pipes to a candidate: never blocks on a candidate that won't read, answer or stop."""

from __future__ import annotations

import json
import os
import selectors
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np

from autoqec.system.process import child, procfs
from autoqec.verification.candidate import protocol

PIECE = 2**18  # bytes to a read or write


@dataclass(frozen=True)
class Failure:
    """An answer that did not come, and why. error: the exception's type, or `timeout`, `closed`, `protocol`."""

    error: str
    what: str
    where: str | None = None
    mend: str | None = None

    def __str__(self) -> str:
        return f"{self.error}: {self.what}"


class Link:
    """Requests go out in order, answers come back in order; after a broken frame or a timeout every answer fails.

    answer_s: the longest wait for one answer. total_s: for all of them; time in which nobody waits is not counted.
    """

    def __init__(self, process: child.Process, *, answer_s: float, total_s: float) -> None:
        self._process = process
        self._to, self._from = process.stdin.fileno(), process.stdout.fileno()
        self._answer_s = answer_s
        self._left_s = total_s
        self._out = bytearray()
        self._in = bytearray()
        self._expected: deque[int] = deque()
        self._dead: Failure | None = None
        for fd in (self._to, self._from):
            os.set_blocking(fd, False)

    def send_spec(self, spec: dict[str, Any]) -> None:
        self._queue(protocol.pack(protocol.SPEC, json.dumps(spec).encode()))

    def receive_made(self) -> dict[str, Any] | Failure:
        """What the candidate says it built."""
        got = self._frame(protocol.MADE, protocol.MAX_REPLY_TEXT)
        if isinstance(got, Failure):
            return got
        try:
            made = json.loads(got)
        except (ValueError, RecursionError):
            return self._die(Failure("protocol", "the first answer is no JSON"))
        return made if isinstance(made, dict) else self._die(Failure("protocol", "the first answer is no object"))

    def send(self, detectors: np.ndarray) -> None:
        """Ask for log-odds of packed detection events, uint8 [n, ceil(n_detectors / 8)]."""
        self._expected.append(len(detectors))
        self._queue(protocol.pack(protocol.DATA, np.ascontiguousarray(detectors).tobytes()))

    def receive(self, n_edges: int) -> np.ndarray | Failure:
        """The oldest outstanding answer, float32 [n, n_edges] (values unchecked), or why there is none."""
        n = self._expected.popleft()
        got = self._frame(protocol.ODDS, 4 * n * n_edges)
        if isinstance(got, Failure):
            return got
        if len(got) != 4 * n * n_edges:
            return Failure("shape", f"{len(got)} bytes of log-odds for {n} shots x {n_edges} edges")
        return np.frombuffer(got, "<f4").reshape(n, n_edges)

    @property
    def outstanding(self) -> int:
        return len(self._expected)

    def close(self) -> child.Result:
        """End the process; how it ended."""
        self._die(Failure("closed", "the judge hung up"))
        return self._process.kill()

    def cpu_s(self) -> float:
        """CPU seconds of the process and everything below it so far, waited-for children too; 0 once it has ended."""
        ticks = 0
        for pid in procfs.tree(self._process.pid):
            ticks += sum(int(value) for value in procfs.stat_fields(pid)[11:15])  # utime, stime, cutime, cstime
        return ticks / os.sysconf("SC_CLK_TCK")

    def _queue(self, data: bytes) -> None:
        if self._dead is None:
            self._out += data
            self._pump(read=False, wait=0.0)

    def _frame(self, wanted: bytes, largest: int) -> bytes | Failure:
        began = time.monotonic()
        try:
            return self._next(wanted, largest, began + min(self._answer_s, self._left_s))
        finally:
            self._left_s -= time.monotonic() - began

    def _next(self, wanted: bytes, largest: int, until: float) -> bytes | Failure:
        size = protocol.HEADER.size
        if not self._fill(size, until):
            return self._gone()
        tag, length = protocol.HEADER.unpack(self._in[:size])
        limit = 2 * largest if tag == wanted else protocol.MAX_REPLY_TEXT  # twice: a wrong shape may be told as such
        if tag not in (wanted, protocol.FAIL) or length > limit:
            return self._die(Failure("protocol", f"an answer tagged {tag!r} of {length} bytes"))
        if not self._fill(size + length, until):
            return self._gone()
        payload = bytes(self._in[size : size + length])
        del self._in[: size + length]
        return payload if tag == wanted else _failure(payload)

    def _fill(self, size: int, until: float) -> bool:
        """Whether `size` bytes arrived before `until`."""
        while self._dead is None and len(self._in) < size:
            wait = until - time.monotonic()
            if wait <= 0:
                self._die(Failure("timeout", "no answer in time"))
            else:
                self._pump(read=True, wait=wait)
        return len(self._in) >= size

    def _pump(self, *, read: bool, wait: float) -> None:
        """One round of writing what waits and, if asked, reading what came."""
        with selectors.DefaultSelector() as ready:
            if self._out:
                ready.register(self._to, selectors.EVENT_WRITE)
            if read:
                ready.register(self._from, selectors.EVENT_READ)
            for key, _ in ready.select(wait):
                try:
                    self._move(key.fd)
                except BlockingIOError:
                    continue
                except OSError as error:
                    self._die(Failure("closed", f"the candidate's pipe broke ({error.strerror})"))
                if self._dead is not None:
                    return

    def _move(self, fd: int) -> None:
        if fd == self._to and self._out:
            del self._out[: os.write(fd, self._out[:PIECE])]
        elif fd == self._from:
            data = os.read(fd, PIECE)
            if not data:
                self._die(Failure("closed", "the candidate's process ended"))
            self._in += data

    def _gone(self) -> Failure:
        return self._dead or Failure("closed", "the candidate's process ended")

    def _die(self, why: Failure) -> Failure:
        if self._dead is None:
            self._dead = why
            self._out.clear()
            killed = self._process.kill().killed
            if killed is not None:
                self._dead = Failure("limit", killed)
        return self._dead


def _failure(payload: bytes) -> Failure:
    """A candidate's own words, cut to size: they are shown as data."""
    try:
        said = json.loads(payload)
        where, mend = (_cut(said[key], 200) if said.get(key) else None for key in ("where", "mend"))
        return Failure(_cut(said["error"], 100), _cut(said["what"], 500), where, mend)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return Failure("protocol", "a failure that is no JSON")


def _cut(value: Any, most: int) -> str:
    """One line that any file and terminal takes: half a surrogate pair, say, could be written nowhere."""
    return "".join(char if char.isprintable() else " " for char in str(value)[:most])
