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

IO_CHUNK_BYTES = 2**18  # bytes to a read or write


@dataclass(frozen=True)
class CandidateFailure:
    """An answer that did not come, and why. error: the exception's type, or `timeout`, `closed`, `protocol`."""

    error: str
    what: str
    location: str | None = None
    hint: str | None = None

    def __str__(self) -> str:
        return f"{self.error}: {self.what}"


class CandidateClient:
    """Requests go out in order, answers come back in order; after a broken frame or a timeout every answer fails.

    answer_s: the longest wait for one answer. total_s: for all of them; time in which nobody waits is not counted.
    """

    def __init__(self, process: child.Process, *, answer_s: float, total_s: float) -> None:
        self._process = process
        self._stdin_fd, self._stdout_fd = process.stdin.fileno(), process.stdout.fileno()
        self._answer_s = answer_s
        self._remaining_s = total_s
        self._out = bytearray()
        self._in = bytearray()
        self._expected: deque[int] = deque()
        self._failure_reason: CandidateFailure | None = None
        for fd in (self._stdin_fd, self._stdout_fd):
            os.set_blocking(fd, False)

    def send_spec(self, spec: dict[str, Any]) -> None:
        self._queue(protocol.pack(protocol.SPEC, json.dumps(spec).encode()))

    def receive_model_info(self) -> dict[str, Any] | CandidateFailure:
        """What the candidate says it built."""
        payload_or_failure = self._receive_frame(protocol.MODEL_INFO, protocol.MAX_REPLY_TEXT)
        if isinstance(payload_or_failure, CandidateFailure):
            return payload_or_failure
        try:
            model_info = json.loads(payload_or_failure)
        except (ValueError, RecursionError):
            return self._fail(CandidateFailure("protocol", "the first answer is no JSON"))
        return (
            model_info
            if isinstance(model_info, dict)
            else self._fail(CandidateFailure("protocol", "the first answer is no object"))
        )

    def send(self, detection_events: np.ndarray) -> None:
        """Ask for log-odds of packed detection events, uint8 [n, ceil(n_detectors / 8)]."""
        self._expected.append(len(detection_events))
        self._queue(protocol.pack(protocol.DATA, np.ascontiguousarray(detection_events).tobytes()))

    def receive(self, n_edges: int) -> np.ndarray | CandidateFailure:
        """The oldest outstanding answer, float32 [n, n_edges] (values unchecked), or why there is none."""
        n = self._expected.popleft()
        payload_or_failure = self._receive_frame(protocol.LOG_ODDS, 4 * n * n_edges)
        if isinstance(payload_or_failure, CandidateFailure):
            return payload_or_failure
        if len(payload_or_failure) != 4 * n * n_edges:
            return CandidateFailure(
                "shape", f"{len(payload_or_failure)} bytes of log-odds for {n} shots x {n_edges} edges"
            )
        return np.frombuffer(payload_or_failure, "<f4").reshape(n, n_edges)

    @property
    def outstanding(self) -> int:
        return len(self._expected)

    def close(self) -> child.Result:
        """End the process; how it ended."""
        self._fail(CandidateFailure("closed", "the judge hung up"))
        return self._process.kill()

    def cpu_s(self) -> float:
        """CPU seconds of the process and everything below it so far, waited-for children too; 0 once it has ended."""
        ticks = 0
        for pid in procfs.process_tree(self._process.pid):
            ticks += sum(int(value) for value in procfs.stat_fields(pid)[11:15])  # utime, stime, cutime, cstime
        return ticks / os.sysconf("SC_CLK_TCK")

    def _queue(self, data: bytes) -> None:
        if self._failure_reason is None:
            self._out += data
            self._pump(read=False, wait=0.0)

    def _receive_frame(self, expected_tag: bytes, max_bytes: int) -> bytes | CandidateFailure:
        start_time = time.monotonic()
        try:
            return self._receive_payload(expected_tag, max_bytes, start_time + min(self._answer_s, self._remaining_s))
        finally:
            self._remaining_s -= time.monotonic() - start_time

    def _receive_payload(self, expected_tag: bytes, max_bytes: int, deadline: float) -> bytes | CandidateFailure:
        size = protocol.HEADER.size
        if not self._fill(size, deadline):
            return self._disconnected()
        tag, length = protocol.HEADER.unpack(self._in[:size])
        limit = (
            2 * max_bytes if tag == expected_tag else protocol.MAX_REPLY_TEXT
        )  # twice: a wrong shape may be told as such
        if tag not in (expected_tag, protocol.ERROR) or length > limit:
            return self._fail(CandidateFailure("protocol", f"an answer tagged {tag!r} of {length} bytes"))
        if not self._fill(size + length, deadline):
            return self._disconnected()
        payload = bytes(self._in[size : size + length])
        del self._in[: size + length]
        return payload if tag == expected_tag else _decode_failure(payload)

    def _fill(self, size: int, deadline: float) -> bool:
        """Whether `size` bytes arrived before `until`."""
        while self._failure_reason is None and len(self._in) < size:
            wait = deadline - time.monotonic()
            if wait <= 0:
                self._fail(CandidateFailure("timeout", "no answer in time"))
            else:
                self._pump(read=True, wait=wait)
        return len(self._in) >= size

    def _pump(self, *, read: bool, wait: float) -> None:
        """One round of writing what waits and, if asked, reading what came."""
        with selectors.DefaultSelector() as ready:
            if self._out:
                ready.register(self._stdin_fd, selectors.EVENT_WRITE)
            if read:
                ready.register(self._stdout_fd, selectors.EVENT_READ)
            for key, _ in ready.select(wait):
                try:
                    self._transfer(key.fd)
                except BlockingIOError:
                    continue
                except OSError as error:
                    self._fail(CandidateFailure("closed", f"the candidate's pipe broke ({error.strerror})"))
                if self._failure_reason is not None:
                    return

    def _transfer(self, fd: int) -> None:
        if fd == self._stdin_fd and self._out:
            del self._out[: os.write(fd, self._out[:IO_CHUNK_BYTES])]
        elif fd == self._stdout_fd:
            data = os.read(fd, IO_CHUNK_BYTES)
            if not data:
                self._fail(CandidateFailure("closed", "the candidate's process ended"))
            self._in += data

    def _disconnected(self) -> CandidateFailure:
        return self._failure_reason or CandidateFailure("closed", "the candidate's process ended")

    def _fail(self, why: CandidateFailure) -> CandidateFailure:
        if self._failure_reason is None:
            self._failure_reason = why
            self._out.clear()
            limit_broken = self._process.kill().limit_broken
            if limit_broken is not None:
                self._failure_reason = CandidateFailure("limit", limit_broken)
        return self._failure_reason


def _decode_failure(payload: bytes) -> CandidateFailure:
    """A candidate's own words, cut to size: they are shown as data."""
    try:
        fields = json.loads(payload)
        location, hint = (_truncate(fields[key], 200) if fields.get(key) else None for key in ("where", "hint"))
        return CandidateFailure(_truncate(fields["error"], 100), _truncate(fields["what"], 500), location, hint)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return CandidateFailure("protocol", "a failure that is no JSON")


def _truncate(value: Any, most: int) -> str:
    """One line that any file and terminal takes: half a surrogate pair, say, could be written nowhere."""
    return "".join(char if char.isprintable() else " " for char in str(value)[:most])
