"""Every refused system call is made in every sandbox backend."""

from __future__ import annotations

import errno
import json
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from autoqec.errors import UsageError
from autoqec.system import sandbox
from autoqec.system.process import child
from autoqec.system.sandbox import SandboxBackend, SandboxPolicy, syscalls

ROOT = Path(__file__).parents[4]
MAKE_CALLS = """
import ctypes, json, sys
libc, found = ctypes.CDLL(None, use_errno=True), {}
for name, number in json.loads(sys.argv[1]).items():
    ctypes.set_errno(0)
    result = libc.syscall(number, *([ctypes.c_long(-1)] * 6))  # arguments that no call accepts
    found[name] = ctypes.get_errno() if result < 0 else 0
print(json.dumps(found))
"""


def native_calls(calls: dict[str, syscalls.Numbers]) -> dict[str, int]:
    """Return the system calls that this architecture has."""
    column = syscalls.ARCHITECTURES[platform.machine()][0]
    return {name: number for name, numbers in calls.items() if (number := numbers[column]) is not None}


def run(code: str, backend: SandboxBackend, tmp_path: Path, *argv: str, fork: bool = False) -> tuple[int, str]:
    inside = tmp_path / "inside"
    inside.mkdir(exist_ok=True)
    policy = SandboxPolicy(scratch=inside, fork=fork)
    wrapped = sandbox.wrap([sys.executable, "-I", "-S", "-c", code, *argv], policy, sandbox_backend=backend)
    log = tmp_path / "log"
    log.unlink(missing_ok=True)
    ended = child.run(wrapped.argv, cwd="/", env=wrapped.env, limits=child.Limits(60), stdout=log)
    return ended.returncode, log.read_text()


def test_every_listed_call_is_refused(sandbox_backend: SandboxBackend, tmp_path: Path) -> None:
    groups = [*syscalls.REFUSED.values(), syscalls.SOCKET, syscalls.UNLESS_GPU, syscalls.UNLESS_FORK]
    calls = {name: number for group in groups for name, number in native_calls(group).items()}
    expected = dict.fromkeys(calls, errno.EPERM) | dict.fromkeys(native_calls(syscalls.NOT_IMPLEMENTED), errno.ENOSYS)
    numbers = json.dumps(calls | native_calls(syscalls.NOT_IMPLEMENTED))
    code, output = run(MAKE_CALLS, sandbox_backend, tmp_path, numbers)
    assert code == 0, output
    assert json.loads(output) == expected


def test_without_a_sandbox_the_calls_are_not_refused() -> None:
    calls = native_calls(syscalls.REFUSED["file metadata"]) | native_calls(syscalls.NOT_IMPLEMENTED)
    argv = [sys.executable, "-I", "-S", "-c", MAKE_CALLS, json.dumps(calls)]
    answers = json.loads(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)
    assert errno.EPERM not in answers.values()


# Python code, and whether it is refused.
ARGUMENTS = {
    "open(O_CREAT, 0o644)": ("os.open('f', os.O_CREAT | os.O_WRONLY, 0o644)", False),
    "open(O_CREAT, 0o4755)": ("os.open('f', os.O_CREAT | os.O_WRONLY, 0o4755)", True),
    "open(O_CREAT, 0o2755)": ("os.open('f', os.O_CREAT | os.O_WRONLY, 0o2755)", True),
    "ioctl(FIONREAD)": ("fcntl.ioctl(os.pipe()[0], 0x541B, bytes(4))", False),
    "ioctl(FS_IOC_SETFLAGS)": ("fcntl.ioctl(open('f', 'w'), 0x40086602, bytes(8))", True),
    "ioctl(FS_IOC_FSSETXATTR)": ("fcntl.ioctl(open('f', 'w'), 0x401C5820, bytes(28))", True),
    "ioctl(TIOCSTI)": ("fcntl.ioctl(0, 0x5412, b'x')", True),
    "fcntl(F_GETFD)": ("fcntl.fcntl(1, fcntl.F_GETFD)", False),
    "fcntl(F_SETLEASE)": ("fcntl.fcntl(os.open('/dev/null', 0), fcntl.F_SETLEASE, fcntl.F_RDLCK)", True),
    "fcntl(F_SETOWN)": ("fcntl.fcntl(0, fcntl.F_SETOWN, os.getpid())", True),
    "fcntl(F_SETSIG)": ("fcntl.fcntl(0, fcntl.F_SETSIG, 10)", True),
    "ioctl(FIOSETOWN)": ("fcntl.ioctl(os.pipe()[0], 0x8901, bytes(4))", True),
    "fcntl(F_SETLK), read": ("fcntl.lockf(open(os.__file__), fcntl.LOCK_SH | fcntl.LOCK_NB)", True),
    "fcntl(F_SETLK), write": ("fcntl.lockf(open('f', 'w'), fcntl.LOCK_EX | fcntl.LOCK_NB)", True),
    "fcntl(F_SETLKW)": ("fcntl.lockf(open(os.__file__), fcntl.LOCK_SH)", True),
    "fcntl(F_GETLK)": ("fcntl.fcntl(open('f', 'w'), fcntl.F_GETLK, bytes(32))", True),
    "fcntl(F_OFD_SETLK)": ("fcntl.fcntl(open('f', 'w'), 37, LOCK)", True),
    "fcntl(F_OFD_SETLKW)": ("fcntl.fcntl(open('f', 'w'), 38, LOCK)", True),
    "fcntl(F_OFD_GETLK)": ("fcntl.fcntl(open('f', 'w'), 36, LOCK)", True),
    "flock": ("fcntl.flock(open('f', 'w'), fcntl.LOCK_SH)", True),
    "fcntl(F_SETPIPE_SZ)": ("fcntl.fcntl(os.pipe()[0], 1031, 2**20)", True),
    "socketpair": ("socket.socketpair()", True),
    "prctl(PR_SET_NAME)": ("prctl(15, b'name')", False),
    "prctl(PR_SET_DUMPABLE)": ("prctl(4, 0)", True),
    "mmap(MAP_PRIVATE)": ("mmap.mmap(-1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)", False),
    "mmap(MAP_SHARED | MAP_ANONYMOUS)": ("mmap.mmap(-1, 4096)", True),
    "mmap(MAP_SHARED), file": ("mmap.mmap(os.open(os.__file__, 0), 10, mmap.MAP_SHARED, mmap.PROT_READ)", True),
    "mmap(MAP_HUGETLB)": ("mmap.mmap(-1, 2**21, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40000)", True),
    "sched_setaffinity(0)": ("os.sched_setaffinity(0, os.sched_getaffinity(0))", False),
    "sched_setaffinity(1)": ("os.sched_setaffinity(1, {0})", True),
    "fork": ("os.fork() or os._exit(0)", True),
    "spawn": ("os.posix_spawn('/bin/true', ['true'], {})", True),
    "thread": ("t = threading.Thread(target=print); t.start(); t.join()", False),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_calls_that_depend_on_their_arguments(name: str, sandbox_backend: SandboxBackend, tmp_path: Path) -> None:
    call, refused = ARGUMENTS[name]
    code = f"""
import ctypes, errno, fcntl, mmap, os, socket, struct, threading
os.chdir(os.environ["TMPDIR"])
LOCK = struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0)
def prctl(option, value):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0): raise OSError(ctypes.get_errno(), "prctl")
try: {call}
except OSError as error: raise SystemExit(77 if error.errno == errno.EPERM else 1)
"""
    returncode, output = run(code, sandbox_backend, tmp_path)
    assert returncode == (77 if refused else 0), output


@pytest.mark.parametrize("name", ["fcntl(F_SETLK), write", "flock", "socketpair", "mmap(MAP_SHARED | MAP_ANONYMOUS)"])
def test_processes_that_may_fork_can_share_locks_and_memory(
    name: str, sandbox_backend: SandboxBackend, tmp_path: Path
) -> None:
    code = f"import fcntl, mmap, os, socket\nos.chdir(os.environ['TMPDIR'])\n{ARGUMENTS[name][0]}"
    returncode, output = run(code, sandbox_backend, tmp_path, fork=True)
    assert returncode == 0, output


def test_process_creation_can_be_allowed(sandbox_backend: SandboxBackend, tmp_path: Path) -> None:
    code = "import os\nif os.fork() == 0: os._exit(5)\nraise SystemExit(os.waitstatus_to_exitcode(os.wait()[1]) != 5)"
    assert run(code, sandbox_backend, tmp_path, fork=True)[0] == 0


def test_unknown_architecture_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(UsageError, match="no table of system calls for riscv64"):
        syscalls.filter_program(network=False, loopback=False, gpu=False, fork=True, signals=True)


def test_page_lists_every_call() -> None:
    page = (ROOT / "docs/contracts/sandbox.md").read_text(encoding="utf-8")
    for group, calls in syscalls.REFUSED.items():
        assert f"| {group} | {', '.join(f'`{name}`' for name in calls)} |" in page, group
