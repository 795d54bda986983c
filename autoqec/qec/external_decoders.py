"""External decoders (`sinter.Decoder`) among an env's baselines, each run in a sandboxed process.

Messages are those of `autoqec.qec.external_process`.
"""

from __future__ import annotations

import json
import struct
import sys
import threading
import weakref
from contextlib import ExitStack
from importlib.machinery import ModuleSpec
from pathlib import Path

import numpy as np
import stim

from autoqec.contracts.env import EnvSpec
from autoqec.errors import UsageError
from autoqec.installation import IMPORT_DIR
from autoqec.qec.decoder_trust import ExternalDecoderSpec, external_decoder, locate
from autoqec.qec.external_process import FAILED, HEADER
from autoqec.qec.problem import Problem
from autoqec.qec.sampling import unpack
from autoqec.system import sandbox
from autoqec.system.process import child
from autoqec.system.scratch import scratch

LIFETIME_S = 14 * 24 * 3600.0
MEMORY_GB, DISK_MB, PROCESSES = 16.0, 256.0, 64
MAX_MESSAGE = 2**16


class NoAnswerError(Exception):
    """The process answered nonsense, ended, or exceeded the time limit (`expired`)."""

    def __init__(self, message: str, *, expired: bool = False) -> None:
        super().__init__(message)
        self.expired = expired


class ReportedFailureError(Exception):
    """The process answered with a failure; `payload` is what it said, which untrusted code wrote."""

    def __init__(self, payload: bytes) -> None:
        super().__init__()
        self.payload = payload


def start(program: str, module: ModuleSpec, directory: Path, *, sandboxed: bool = True) -> child.Process:
    """Start the process.

    In the sandbox it may read Python's own files and the decoder's package, and write to a scratch directory. Without,
    its working directory is the current one.

    Args:
        program: Module that the process runs.
        module: Top-level package or module of the decoder.
        directory: For the log and the scratch directory.
        sandboxed: Whether it runs in the sandbox.
    """
    private = directory / "scratch"
    private.mkdir()
    argv: tuple[str, ...] = (sys.executable, "-P", "-s", "-m", program)
    environment, cwd = {"PYTHONPATH": str(IMPORT_DIR)}, Path.cwd()
    if sandboxed:
        paths = module.submodule_search_locations or [str(module.origin)]
        policy = sandbox.SandboxPolicy(
            read_only=tuple(map(Path, paths)), scratch=private, tmp_mb=int(DISK_MB), env=environment
        )
        wrapped = sandbox.wrap(argv, policy)
        argv, environment, cwd = wrapped.argv, wrapped.env, private
    limits = child.Limits(
        wallclock_s=LIFETIME_S, memory_gb=MEMORY_GB, disk_mb=DISK_MB, disk_dir=private, processes=PROCESSES
    )
    return child.start(argv, cwd=cwd, env=environment, limits=limits, stderr=_log(directory))


class DecoderChannel:
    """Requests to a process that `start` gave.

    Args:
        process: The process.
        directory: That of `start`.
        timeout_s: Limit for each answer, in seconds; the process is killed when it is reached.
    """

    def __init__(self, process: child.Process, directory: Path, timeout_s: float) -> None:
        self._process, self._log, self._timeout_s = process, _log(directory), timeout_s

    def kill(self) -> None:
        """End the process now, also while another thread waits for its answer."""
        self._process.kill()

    def ask(self, payload: bytes, size: int | None = None) -> bytes:
        """Send one request; return its answer, of `size` bytes if given.

        Raises:
            NoAnswerError: There is no usable answer.
            ReportedFailureError: The decoder failed.
        """
        expired = threading.Event()

        def expire() -> None:
            expired.set()
            self._process.kill()

        watchdog = threading.Timer(self._timeout_s, expire)
        watchdog.start()
        try:
            self._process.stdin.write(HEADER.pack(0, len(payload)) + payload)
            self._process.stdin.flush()
            tag, length = HEADER.unpack(self._process.stdout.read(HEADER.size))
            if length > MAX_MESSAGE if tag == FAILED or size is None else length != size:
                raise NoAnswerError(f"answered {length} bytes, {size} were expected")
            answer = self._process.stdout.read(length)
        except (OSError, ValueError, struct.error) as error:
            raise NoAnswerError(f"its process ended: {self._end()}", expired=expired.is_set()) from error
        finally:
            watchdog.cancel()
        if len(answer) != length:
            raise NoAnswerError(f"its process ended: {self._end()}")
        if tag == FAILED:
            raise ReportedFailureError(answer)
        return answer

    def _end(self) -> str:
        result = self._process.wait(10.0) or self._process.kill()  # its pipe may close before its status is known
        lines = self._log.read_text(errors="replace")[-2000:].split("\n") if self._log.exists() else []
        last = next((line for line in reversed(lines) if line.strip()), "")
        return f"{result.limit_broken or f'exit status {result.returncode}'} {last}".strip()


def _log(directory: Path) -> Path:
    return directory / "log"


ANSWER_TIMEOUT_S = 3600.0  # the longest wait for one batch


class ExternalDecoder:
    """An external decoder, compiled for one problem.

    Raises:
        UsageError: The decoder is not trusted, not installed, cannot be loaded, does not take the problem, or fails.
    """

    def __init__(self, problem: Problem, name: str, spec: ExternalDecoderSpec) -> None:
        self.name = name
        self._n_observables = problem.n_observables
        dem = problem.dem if spec.split else without_separators(problem.dem)
        self._process = _DecoderProcess(problem.env, name, spec, dem)

    def decode(self, detection_events: np.ndarray) -> np.ndarray:
        """Decode bit-packed detection events, uint8 [n, ceil(n_detectors / 8)], to bool [n, n_observables]."""
        shape = (len(detection_events), -(-self._n_observables // 8))
        packed = self._process.ask(np.ascontiguousarray(detection_events).tobytes(), shape[0] * shape[1])
        return unpack(np.frombuffer(packed, np.uint8).reshape(shape), self._n_observables).astype(bool)


def require_installed(env: EnvSpec) -> None:
    """Check that each external decoder among the env's baselines can be loaded.

    Raises:
        UsageError: One is not trusted, not installed or cannot be loaded.
    """
    for name in env.baselines:
        if (spec := external_decoder(name)) is not None:
            _DecoderProcess(env, name, spec, None).close()


class _DecoderProcess:
    """A sandboxed process that holds one decoder, compiled for `dem`; None: only found and loaded."""

    def __init__(self, env: EnvSpec, name: str, spec: ExternalDecoderSpec, dem: stim.DetectorErrorModel | None) -> None:
        self._where = f"env `{env.name}`, field `baselines`"
        self._name, self._hint = name, spec.hint
        module = locate(name, spec, location=self._where)
        resources = ExitStack()
        self.close = weakref.finalize(self, resources.close)
        directory = resources.enter_context(scratch("decoder"))
        process = resources.enter_context(start("autoqec.qec.external_process", module, directory))
        self._channel = DecoderChannel(process, directory, ANSWER_TIMEOUT_S)
        request = {
            "module": spec.module,
            "function": spec.function,
            "decoder": spec.decoder,
            "origin": module.origin,
            "locations": module.submodule_search_locations,
            "dem": None if dem is None else str(dem),
        }
        self.ask(json.dumps(request).encode(), 0)

    def ask(self, payload: bytes, size: int) -> bytes:
        """Send one request; return its answer of `size` bytes."""
        try:
            return self._channel.ask(payload, size)
        except NoAnswerError as error:
            raise self._error(str(error)) from error
        except ReportedFailureError as error:
            raise self._error(error.payload.decode(errors="replace")) from error

    def _error(self, what: str) -> UsageError:
        """Build an error from a message of untrusted code, reduced to one line of printable characters."""
        text = "".join(char if char.isprintable() else " " for char in what)[:500]
        return UsageError(f"decoder {self._name!r}: {text}", location=self._where, hint=self._hint)


def without_separators(dem: stim.DetectorErrorModel) -> stim.DetectorErrorModel:
    """Return the model without `^`: each error mechanism as the set of detectors and observables that it flips."""
    out = stim.DetectorErrorModel()
    for instruction in dem.flattened():
        if instruction.type == "error":
            flips: dict[str, stim.DemTarget] = {}
            for target in instruction.targets_copy():
                if not target.is_separator() and flips.pop(str(target), None) is None:
                    flips[str(target)] = target
            instruction = stim.DemInstruction("error", instruction.args_copy(), list(flips.values()))
        out.append(instruction)
    return out
