"""Starts a sandboxed candidate process; its client never blocks on a process that does not read, answer or stop."""

from __future__ import annotations

import dataclasses
import json
import os
import secrets
import selectors
import shutil
import sys
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np

from autoqec.contracts.dsl import PredecoderDSL
from autoqec.contracts.profiles import Profile
from autoqec.errors import InfrastructureError
from autoqec.installation import IMPORT_DIR
from autoqec.system import sandbox
from autoqec.system.process import child, procfs
from autoqec.verification.artifact import FrozenArtifact
from autoqec.verification.candidate import decoder_libraries, protocol

IO_CHUNK_BYTES = 2**18  # bytes per read or write
IDLE_TIMEOUT_S = 30.0  # longest wait for a process to sleep after its last answer
EXIT_TIMEOUT_S = 30.0  # longest wait for the status of a process that closed its pipes


@dataclass(frozen=True)
class CandidateFailure:
    """Why an answer is missing. error: the exception's type, or `timeout`, `closed`, `protocol`, `limit`, `shape`."""

    error: str
    what: str
    location: str | None = None
    hint: str | None = None

    def __str__(self) -> str:
        return f"{self.error}: {self.what}"


@dataclass(frozen=True)
class ProcessUsage:
    """Resources of a process tree so far."""

    cpu_s: float
    memory_bytes: int

    def since(self, earlier: ProcessUsage) -> ProcessUsage:
        """Return the difference from an earlier reading."""
        return ProcessUsage(self.cpu_s - earlier.cpu_s, self.memory_bytes - earlier.memory_bytes)


class CandidateClient:
    """Sends requests and receives answers in order; after a protocol error or a timeout every answer fails.

    Every method that sends or receives raises InfrastructureError, once, if SIGKILL ended the process and none of its
    limits was the reason.

    Args:
        answer_s: Longest wait for one answer.
        total_s: Longest wait for all answers together; time in which the verifier does not wait is not counted.
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
        self._at_ready = ProcessUsage(0.0, 0)
        for fd in (self._stdin_fd, self._stdout_fd):
            os.set_blocking(fd, False)

    def send_spec(self, spec: dict[str, Any]) -> None:
        """Send env, config and paths; the process answers READY before it imports any branch code."""
        self._queue(protocol.pack(protocol.SPEC, json.dumps(spec).encode()))

    def load_branch_code(self) -> CandidateFailure | None:
        """Wait for READY, read the process's resources, and let it import the editable modules."""
        answer = self._receive_frame(protocol.READY, 0)
        if isinstance(answer, CandidateFailure):
            return answer
        self._at_ready = self.usage()
        self._queue(protocol.pack(protocol.GO, b""))
        return None

    def receive_model_info(self) -> dict[str, Any] | CandidateFailure:
        """Receive what the process says that it built."""
        answer = self._receive_frame(protocol.MODEL_INFO, protocol.MAX_REPLY_TEXT)
        if isinstance(answer, CandidateFailure):
            return answer
        try:
            model_info = json.loads(answer)
        except (ValueError, RecursionError):
            return self._fail(CandidateFailure("protocol", "the first answer is not JSON"))
        if not isinstance(model_info, dict):
            return self._fail(CandidateFailure("protocol", "the first answer is not a JSON object"))
        return model_info

    def usage(self) -> ProcessUsage:
        """Read CPU time and anonymous memory of the process tree; zeros after it has ended."""
        pids = procfs.process_tree(self._process.pid)
        return ProcessUsage(procfs.cpu_seconds(pids), procfs.anonymous_bytes(pids))

    def usage_of_branch_code(self) -> ProcessUsage:
        """Read the resources used since the import of the editable modules began."""
        return self.usage().since(self._at_ready)

    def idle_memory_of_branch_code(self) -> int:
        """Read the growth of anonymous memory, in bytes, between two requests: without memory of a forward pass.

        The process frees that after its answer, so this waits until it sleeps.
        """
        deadline = time.monotonic() + IDLE_TIMEOUT_S
        while self._running() and time.monotonic() < deadline:
            time.sleep(0.005)
        return self.usage_of_branch_code().memory_bytes

    def _running(self) -> bool:
        return procfs.is_active(procfs.process_tree(self._process.pid))

    def send(self, detection_events: np.ndarray) -> None:
        """Request the log-odds of packed detection events, uint8 [n, ceil(n_detectors / 8)]."""
        self._expected.append(len(detection_events))
        self._queue(protocol.pack(protocol.DATA, np.ascontiguousarray(detection_events).tobytes()))

    def receive(self, n_edges: int) -> np.ndarray | CandidateFailure:
        """Receive the oldest outstanding answer: float32 [n, n_edges], values unchecked, or why it is missing."""
        n = self._expected.popleft()
        payload_or_failure = self._receive_frame(protocol.LOG_ODDS, 4 * n * n_edges)
        if isinstance(payload_or_failure, CandidateFailure):
            return payload_or_failure
        if len(payload_or_failure) != 4 * n * n_edges:
            return CandidateFailure(
                "shape", f"{len(payload_or_failure)} bytes of log-odds for {n} shots x {n_edges} edges"
            )
        return np.frombuffer(payload_or_failure, "<f4").reshape(n, n_edges)

    def decode_one_by_one(
        self, detection_events: np.ndarray, n_observables: int
    ) -> tuple[np.ndarray, np.ndarray] | CandidateFailure:
        """Let a process without branch code decode shots one by one with gate, network and matching.

        Returns:
            Predictions of the first k >= 1 shots, bool [k, n_observables], and their elapsed times in us, float64 [k].
        """
        self._queue(protocol.pack(protocol.TIME, np.ascontiguousarray(detection_events).tobytes()))
        bytes_per_shot = 8 + n_observables
        payload = self._receive_frame(protocol.TIMES, bytes_per_shot * len(detection_events))
        if isinstance(payload, CandidateFailure):
            return payload
        shots, rest = divmod(len(payload), bytes_per_shot)
        if rest or not 1 <= shots <= len(detection_events):
            return CandidateFailure("shape", f"{len(payload)} bytes of times for {len(detection_events)} shots")
        elapsed_us = np.frombuffer(payload, "<f8", shots)
        if not (np.isfinite(elapsed_us).all() and (elapsed_us > 0).all()):
            return CandidateFailure("protocol", "times that are not positive numbers")
        predictions = np.frombuffer(payload, np.uint8, offset=8 * shots).reshape(shots, n_observables)
        return predictions != 0, elapsed_us

    @property
    def outstanding(self) -> int:
        """Number of requests without an answer."""
        return len(self._expected)

    def close(self) -> child.Result:
        """End the process.

        Returns:
            How it ended, with the CPU seconds that the kernel counted for it since READY.
        """
        self._fail(CandidateFailure("closed", "the verifier closed the connection"))
        result = self._process.kill()
        return dataclasses.replace(result, cpu_s=result.cpu_s - self._at_ready.cpu_s)

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
        # Twice the expected size, so that an answer of the wrong shape is reported as such.
        limit = 2 * max_bytes if tag == expected_tag else protocol.MAX_REPLY_TEXT
        if tag not in (expected_tag, protocol.ERROR) or length > limit:
            return self._fail(CandidateFailure("protocol", f"an answer tagged {tag!r} of {length} bytes"))
        if not self._fill(size + length, deadline):
            return self._disconnected()
        payload = bytes(self._in[size : size + length])
        del self._in[: size + length]
        return payload if tag == expected_tag else _decode_failure(payload)

    def _fill(self, size: int, deadline: float) -> bool:
        """Return whether `size` bytes arrived before the deadline."""
        while self._failure_reason is None and len(self._in) < size:
            wait = deadline - time.monotonic()
            if wait <= 0:
                self._fail(CandidateFailure("timeout", "no answer in time"))
            else:
                self._pump(read=True, wait=wait)
        return len(self._in) >= size

    def _pump(self, *, read: bool, wait: float) -> None:
        """Write pending bytes and, if asked, read available ones, once."""
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
                    self._ended(f"the pipe to the candidate broke ({error.strerror})")
                if self._failure_reason is not None:
                    return

    def _transfer(self, fd: int) -> None:
        if fd == self._stdin_fd and self._out:
            del self._out[: os.write(fd, self._out[:IO_CHUNK_BYTES])]
        elif fd == self._stdout_fd:
            data = os.read(fd, IO_CHUNK_BYTES)
            if not data:
                self._ended("the candidate process ended")
            self._in += data

    def _disconnected(self) -> CandidateFailure:
        return self._failure_reason or CandidateFailure("closed", "the candidate process ended")

    def _ended(self, what: str) -> None:
        """Record that the process closed a pipe. Its exit status follows, unless it closed the pipe and goes on."""
        exit_status = self._process.wait(EXIT_TIMEOUT_S)
        self._fail(CandidateFailure("closed", what))
        if exit_status is not None and exit_status.sigkilled:
            message = "the candidate process was killed (SIGKILL, or out of memory)"
            raise InfrastructureError(message, hint="`dmesg | tail` names the reason; free memory, then verify again")

    def _fail(self, why: CandidateFailure) -> CandidateFailure:
        if self._failure_reason is None:
            self._failure_reason = why
            self._out.clear()
            limit_broken = self._process.kill().limit_broken
            if limit_broken is not None:
                self._failure_reason = CandidateFailure("limit", limit_broken)
        return self._failure_reason


def _decode_failure(payload: bytes) -> CandidateFailure:
    """Parse a FAIL message. Its text comes from branch code: it is truncated and shown as data."""
    try:
        fields = json.loads(payload)
        location, hint = (_truncate(fields[key], 200) if fields.get(key) else None for key in ("where", "hint"))
        return CandidateFailure(_truncate(fields["error"], 100), _truncate(fields["what"], 500), location, hint)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return CandidateFailure("protocol", "a FAIL message that is not JSON")


def _truncate(value: Any, most: int) -> str:
    """Return one printable line; half a surrogate pair, for example, could not be written to a file."""
    return "".join(char if char.isprintable() else " " for char in str(value)[:most])


MAX_PROCESS_S = 14 * 24 * 3600.0
DISK_MB = 1.0  # size limit of a candidate's log and of its scratch directory: weights written there are in no count
MAX_OPEN_FILES = 256  # pipes hold memory that is in no account, 64 KiB each
ANSWER_TIMEOUT_S = 300.0  # longest wait for one chunk, however much time is left


def start_candidate(
    frozen: FrozenArtifact,
    env_text: str,
    dsl: PredecoderDSL,
    profile: Profile,
    member: tuple[int, float] | None = None,
    *,
    whole_decoder: bool = False,
) -> CandidateClient:
    """Start a candidate process under the profile's limits and send its specification.

    Args:
        frozen: The artifact.
        env_text: The run's env.yaml.
        dsl: The round's config.
        profile: Limits of time and memory.
        member: Index in the env's `other_members` and p of the circuit to decode; None for the env's target.
        whole_decoder: Let it use decoder libraries, to time gate, network and matching in one process; only for an
            artifact without branch code.

    Raises:
        UsageError: The sandbox cannot hide the run from the process.
        ValueError: `whole_decoder` for an artifact with branch code.
    """
    if whole_decoder and frozen.modules_dir:
        raise ValueError("branch code gets no decoder libraries")
    argv = [sys.executable, "-P", "-s", "-m", "autoqec.verification.candidate.process"]
    # Each process has its own copy of the artifact, scratch directory and log, under a name that cannot be guessed:
    # Landlock lets a process stat any path that it knows, so the size of a guessable file could pass on information.
    private = frozen.dir.parent / secrets.token_hex(16)
    artifact, scratch = private / "artifact", private / "scratch"
    shutil.copytree(frozen.dir, artifact)
    scratch.mkdir()
    policy = sandbox.SandboxPolicy(
        read_only=(artifact,),
        hidden_paths=frozen.hidden_paths,
        scratch=scratch,
        hidden=() if whole_decoder else decoder_libraries.files(),
        fork=False,  # CPU time of a process that its parent never waits for would not be counted
        tmp_mb=int(DISK_MB),
        cwd=artifact,
        env={"PYTHONPATH": str(IMPORT_DIR)},  # this package, not another installed one
    )
    wrapped = sandbox.wrap(argv, policy, sandbox_backend=frozen.sandbox_backend)
    # The client limits the time spent waiting for answers; time that the verifier spends decoding must not count.
    limits = child.Limits(
        wallclock_s=MAX_PROCESS_S,
        memory_gb=profile.memory_gb,
        disk_mb=DISK_MB,
        disk_dir=scratch,
        processes=64,
        nofile=MAX_OPEN_FILES,
    )
    process = child.start(wrapped.argv, cwd=artifact, env=wrapped.env, limits=limits, stderr=private / "log")
    client = CandidateClient(process, answer_s=ANSWER_TIMEOUT_S, total_s=profile.judge_wallclock_s)
    client.send_spec(
        {
            "env_text": env_text,
            "member": member,
            "checkpoint": str(artifact / frozen.checkpoint.name),
            "dsl_config": dsl.config(),
            "modules_dir": str(artifact / frozen.modules_dir.name) if frozen.modules_dir else None,
            "whole_decoder": whole_decoder,
        }
    )
    return client
