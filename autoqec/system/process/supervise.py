"""Stands between us and a child: run by path, standard library only, never imported.

    python -I -S supervise.py '{"core": 0, ...}' PARENT_PID FDS -- ARGV...

It starts ARGV, adopts every orphan below it, ends them all when ARGV ends or when our own process dies, and
leaves with ARGV's status. FDS: comma-separated descriptors that are ARGV's alone.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
from contextlib import suppress
from types import FrameType

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
EXEC_FAILED = 127
_LIMITS = {"core": resource.RLIMIT_CORE, "nofile": resource.RLIMIT_NOFILE, "fsize": resource.RLIMIT_FSIZE}


def _prctl(option: int, value: int) -> None:
    with suppress(AttributeError, OSError):  # not Linux: no such call
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _set_limits(limits: dict[str, int]) -> None:
    for name, value in limits.items():
        hard = resource.getrlimit(_LIMITS[name])[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(_LIMITS[name], (value, value))


def _parents() -> dict[int, int]:
    """Return pid -> parent pid of every visible process."""
    found = {}
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as stream:
                    found[int(name)] = int(stream.read().rpartition(b")")[2].split()[1])
            except (OSError, ValueError, IndexError):
                continue
    return found


def _descendants() -> list[int]:
    """Return every descendant of this process."""
    parents, own_pid = _parents(), os.getpid()
    found = []
    for pid in parents:
        ancestor, steps = pid, 0
        while ancestor > 1 and ancestor != own_pid and steps < 1000:
            ancestor, steps = parents.get(ancestor, 0), steps + 1
        if ancestor == own_pid and pid != own_pid:
            found.append(pid)
    return found


def _kill_descendants() -> None:
    """Kill until no descendant is left: orphans become children of this process."""
    while True:
        for pid in _descendants():
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _on_term(_number: int, _frame: FrameType | None) -> None:
    _kill_descendants()
    os.kill(os.getpid(), signal.SIGKILL)


def _reset_sigint() -> None:
    """What came while we were being started was meant for our parent; from here on SIGINT does what it always does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def main() -> None:
    """Start the child and supervise it; exit with its status."""
    limits, parent, fds = json.loads(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    argv = sys.argv[5:]
    _reset_sigint()
    signal.signal(signal.SIGTERM, _on_term)
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    _prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os._exit(143)
    own_pid = os.getpid()
    child = os.fork()
    if child == 0:
        _run(argv, limits, own_pid)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    for fd in filter(None, fds.split(",")):
        os.close(int(fd))
    pid, status = os.waitpid(-1, 0)
    while pid != child:
        pid, status = os.waitpid(-1, 0)
    _kill_descendants()
    if os.WIFSIGNALED(status):
        _die_by_signal(os.WTERMSIG(status))
    os._exit(os.WEXITSTATUS(status))


def _die_by_signal(number: int) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    signal.pause()


def _run(argv: list[str], limits: dict[str, int], supervisor: int) -> None:
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != supervisor:
            os._exit(143)
        _set_limits(limits)
        os.execvp(argv[0], argv)
    except BaseException as error:
        os.write(2, f"{argv[0]}: cannot be started: {error}\n".encode())
    os._exit(EXEC_FAILED)


if __name__ == "__main__":
    main()
