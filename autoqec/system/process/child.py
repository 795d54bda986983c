"""Start of child processes: a clean environment, limits on the whole process tree, and no orphans.

A small supervisor runs between this process and the child: it adopts orphans and ends everything below it when the
child ends, when a limit is exceeded, or when this process (strictly: the thread that started it) dies.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Literal, Self

from autoqec.errors import StorageError, UsageError
from autoqec.system.process import procfs
from autoqec.system.process.signals import block_signals

GB = 1e9
SIGKILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)  # bubblewrap reports a signal as an exit status
_SUPERVISOR = Path(__file__).with_name("supervise.py")
_INHERITED = (
    "PATH", "HOME", "LANG", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "LD_PRELOAD", "VIRTUAL_ENV",
    "CUDA_VISIBLE_DEVICES", "CUDA_HOME", "NVIDIA_VISIBLE_DEVICES", "AUTOQEC_OWNER",
)  # fmt: skip
DEFAULT_ENVIRONMENT = {
    "LC_ALL": "C.UTF-8",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",
    "PYTHONNOUSERSITE": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
}

LimitName = Literal["wall clock", "memory", "processes", "disk"]


@dataclass(frozen=True)
class Limits:
    """What a child and its descendants may use; None: no limit.

    Attributes:
        memory_gb: Memory of the whole tree, swapped and huge pages included, in 1e9 bytes.
        disk_mb: Blocks of files under `disk_dir`, and of removed files that are still open or mapped, in 1e6 bytes; and
            the size of any one file.
        processes: How many at a time, the child included.
        nofile: Soft and hard limit on open files.
        core: Limit on core files.
    """

    wallclock_s: float
    memory_gb: float | None = None
    disk_mb: float | None = None
    disk_dir: Path | None = None
    processes: int | None = None
    nofile: int = 4096
    core: int = 0


@dataclass(frozen=True)
class Result:
    """How a child ended.

    Attributes:
        returncode: Negative for a signal.
        limit_broken: The limit that was exceeded, with figures; None if none was.
        limit: Which limit that is.
    """

    returncode: int
    wallclock_s: float
    rss_peak_gb: float
    cpu_s: float
    limit_broken: str | None
    limit: LimitName | None = None

    @property
    def sigkilled(self) -> bool:
        """Whether SIGKILL ended it and no limit was the reason: a full memory, a user, or the child itself.

        Means nothing for a child that this process ended.
        """
        return self.limit_broken is None and self.returncode in SIGKILLED


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of a child: a few of this process's variables (no keys, GIT_* or PYTHON*), and `extra`."""
    inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    return {**inherited, **DEFAULT_ENVIRONMENT, **(extra or {})}


def run(
    argv: Sequence[str],
    *,
    cwd: Path | str,
    env: Mapping[str, str] | None = None,
    limits: Limits,
    stdout: Path,
    on_tick: Callable[[float], None] | None = None,
) -> Result:
    """Run `argv` to its end. stdout and stderr are appended to the file `stdout`; stdin is empty.

    `on_tick(seconds so far)` is called a few times per second; an exception in it ends the child and is passed on.

    Raises:
        UsageError: `cwd` is not a directory.
        StorageError: `stdout` cannot be opened.
    """
    out = _open_log(stdout)
    try:
        process = _spawn(argv, cwd, env, limits, stdin=subprocess.DEVNULL, stdout=out, stderr=out, pass_fds=())
    finally:
        os.close(out)
    watch = _LimitMonitor(process, limits)
    try:
        while not watch.tick():
            if on_tick is not None:
                on_tick(watch.seconds)
            watch.sleep()
    finally:
        watch.end()
    return watch.result()


class Process:
    """A child with pipes on stdin and stdout; a thread checks its limits. Leaving the context ends it."""

    def __init__(self, process: subprocess.Popen[bytes], limits: Limits) -> None:
        assert process.stdin is not None and process.stdout is not None
        self.stdin: IO[bytes] = process.stdin
        self.stdout: IO[bytes] = process.stdout
        self.pid = process.pid
        self._watch = _LimitMonitor(process, limits)
        self._thread = threading.Thread(target=self._loop, name=f"watch-{process.pid}", daemon=True)
        self._thread.start()

    def _loop(self) -> None:
        while not self._watch.tick():
            self._watch.sleep()
        self._watch.end()

    def poll(self) -> Result | None:
        """Return the result, or None while it runs."""
        return None if self._thread.is_alive() else self._watch.result()

    def wait(self, timeout: float | None = None) -> Result | None:
        """Wait for its end; return None if `timeout` seconds pass first."""
        self._thread.join(timeout)
        return self.poll()

    def kill(self) -> Result:
        """End it and its descendants now."""
        self._watch.stop()
        self._thread.join()
        for pipe in (self.stdin, self.stdout):
            with suppress(OSError):  # unsent bytes of a dead reader
                pipe.close()
        return self._watch.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()


def start(
    argv: Sequence[str],
    *,
    cwd: Path | str,
    env: Mapping[str, str] | None = None,
    limits: Limits,
    stderr: Path,
    pass_fds: Sequence[int] = (),
) -> Process:
    """Start `argv` with pipes on stdin and stdout; stderr is appended to a file; `pass_fds` stay open in it.

    The thread that calls this must outlive the child. Raises as `run`.
    """
    log = _open_log(stderr)
    pipe = subprocess.PIPE
    try:
        process = _spawn(argv, cwd, env, limits, stdin=pipe, stdout=pipe, stderr=log, pass_fds=pass_fds)
    finally:
        os.close(log)
    return Process(process, limits)


def _open_log(path: Path) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(path, flags, 0o644)
    except OSError as error:
        raise StorageError(f"the child's log cannot be opened: {error.strerror}", location=str(path)) from error


def _spawn(
    argv: Sequence[str],
    cwd: Path | str,
    env: Mapping[str, str] | None,
    limits: Limits,
    *,
    stdin: int,
    stdout: int,
    stderr: int,
    pass_fds: Sequence[int],
) -> subprocess.Popen[bytes]:
    rlimits = {"core": limits.core, "nofile": limits.nofile}
    if limits.disk_mb is not None:
        rlimits["fsize"] = int(limits.disk_mb * 1e6)
    supervisor_argv = [sys.executable, "-I", "-S", str(_SUPERVISOR), json.dumps(rlimits), str(os.getpid())]
    try:
        with block_signals(signal.SIGINT):  # the supervisor lets it in again
            return subprocess.Popen(
                [*supervisor_argv, ",".join(map(str, pass_fds)), "--", *map(str, argv)],
                cwd=cwd,
                env=environment(env),
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                pass_fds=tuple(pass_fds),
                start_new_session=True,
            )
    except (FileNotFoundError, NotADirectoryError, PermissionError) as error:
        raise UsageError(f"a process cannot be started: {error}", location=str(cwd)) from error


class _LimitMonitor:
    """Samples one supervised tree and ends it when a limit is exceeded."""

    def __init__(self, process: subprocess.Popen[bytes], limits: Limits) -> None:
        self._process, self._limits = process, limits
        self._start = time.monotonic()
        self._disk_due = 0.0
        self._peak = 0
        self._cpu_s = 0.0
        self._exceeded: tuple[LimitName, str] | None = None
        self._stopped = threading.Event()
        self._duration_s: float | None = None

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._start

    def sleep(self) -> None:
        # Short at first: most children of a test live for a fraction of a second.
        self._stopped.wait(min(0.2, 0.01 + self.seconds / 20))

    def stop(self) -> None:
        self._stopped.set()

    def tick(self) -> bool:
        """True once the tree has ended or must end."""
        if self._reap(os.WNOHANG):
            return True
        processes = procfs.process_tree(self._process.pid)[1:]  # the supervisor is ours
        rss = procfs.rss_bytes(processes)
        self._peak = max(self._peak, rss)
        self._exceeded = self._exceeded_limit(rss, processes)
        return self._exceeded is not None or self._stopped.is_set()

    def _exceeded_limit(self, rss: int, processes: list[int]) -> tuple[LimitName, str] | None:
        limits, seconds = self._limits, self.seconds
        if seconds > limits.wallclock_s:
            return "wall clock", f"wall clock {seconds:.1f} s > {limits.wallclock_s:g} s"
        if limits.memory_gb is not None and (exceeded := _exceeded_memory(rss, limits.memory_gb)) is not None:
            return exceeded
        if limits.processes is not None and len(processes) > limits.processes:
            return "processes", f"processes {len(processes)} > {limits.processes}"
        if limits.disk_mb is not None and limits.disk_dir is not None and seconds >= self._disk_due:
            used = (disk_bytes(limits.disk_dir) + procfs.removed_bytes(processes, limits.disk_dir)) / 1e6
            self._disk_due = self.seconds + max(0.1, 10 * (self.seconds - seconds))
            if used > limits.disk_mb:
                return "disk", f"disk {used:.0f} MB > {limits.disk_mb:g} MB"
        return None

    def end(self) -> None:
        """End the tree and reap the supervisor; harmless when it has ended."""
        if self._process.returncode is None:
            # A fork bomb outruns a walk over /proc: freeze what is there, then kill, then let the supervisor sweep.
            for sign in (signal.SIGSTOP, signal.SIGKILL):
                for pid in procfs.process_tree(self._process.pid)[1:]:
                    _signal(pid, sign)
            _signal(self._process.pid, signal.SIGTERM)
            deadline = time.monotonic() + 10
            while not self._reap(os.WNOHANG):
                if time.monotonic() > deadline:
                    for pid in procfs.process_tree(self._process.pid):
                        _signal(pid, signal.SIGKILL)
                    self._reap(0)
                    break
                time.sleep(0.01)
        if self._duration_s is None:
            self._duration_s = self.seconds

    def _reap(self, flags: int) -> bool:
        if self._process.returncode is not None:
            return True
        pid, status, usage = os.wait4(self._process.pid, flags)
        if pid == 0:
            return False
        self._process.returncode = os.waitstatus_to_exitcode(status)
        self._cpu_s = usage.ru_utime + usage.ru_stime
        self._peak = max(self._peak, usage.ru_maxrss * 1024)
        # The kernel may have been faster than the next sample. Its figure begins with the image of the process that
        # started the tree, this one, so that only a larger one says something about the tree.
        limit_gb, own_peak = self._limits.memory_gb, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        if self._process.returncode in SIGKILLED and limit_gb is not None and usage.ru_maxrss > own_peak:
            self._exceeded = self._exceeded or _exceeded_memory(self._peak, limit_gb)
        return True

    def result(self) -> Result:
        assert self._process.returncode is not None and self._duration_s is not None
        limit, text = self._exceeded or (None, None)
        return Result(self._process.returncode, self._duration_s, self._peak / GB, self._cpu_s, text, limit)


def disk_bytes(directory: Path) -> int:
    """Return the bytes that the files under `directory` occupy; links are not followed."""
    total = 0
    for where, _, names in os.walk(directory):
        for name in names:
            try:
                total += os.lstat(os.path.join(where, name)).st_blocks * 512
            except OSError:
                continue
    return total


def _exceeded_memory(rss: int, limit_gb: float) -> tuple[LimitName, str] | None:
    return ("memory", f"memory {rss / GB:.2f} GB > {limit_gb:g} GB") if rss > limit_gb * GB else None


def _signal(pid: int, number: int) -> None:
    with suppress(OSError):
        os.kill(pid, number)
