"""Sandboxing of untrusted branch code: bubblewrap, Landlock with seccomp, or none."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Literal, get_args

from autoqec.errors import AutoqecError, UsageError
from autoqec.installation import PACKAGE_DIR
from autoqec.system.process import child
from autoqec.system.sandbox import bubblewrap, confine, syscalls

SandboxBackend = Literal["bubblewrap", "landlock", "none"]
SANDBOX_BACKENDS: tuple[SandboxBackend, ...] = get_args(SandboxBackend)
OPT_OUT_VARIABLE = "AUTOQEC_NO_SANDBOX"
CHOICE = "AUTOQEC_SANDBOX"
INSTALL = f"pip install {bubblewrap.PACKAGE}, and allow user namespaces"
_CONFINE = Path(confine.__file__)
_SYSTEM = ("/usr", "/lib", "/lib64", "/lib32", "/bin", "/sbin", "/nix/store")
_SYSTEM_FILES = ("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives", "/etc/localtime")
_SYSFS = "/sys/devices/system"
# /proc/self is opened by the process it names: others stay closed.
_LANDLOCK_EXTRA = (
    "/dev/urandom", "/dev/random", "/dev/zero",
    "/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/driver",
)  # fmt: skip


@dataclass(frozen=True)
class SandboxPolicy:
    """What sandboxed code may do; everything else is denied.

    Python, its packages and this package are always readable.

    Attributes:
        read_only: Files and directories, which keep their paths.
        writable: Files and directories, which keep their paths.
        scratch: Empty directory of this process alone, for HOME, TMPDIR and the caches of libraries. The caller
            limits its size and removes it; None: the first writable directory. bubblewrap uses a private /tmp of at
            most `tmp_mb` instead.
        cwd: Default: the first writable directory, else /; backend none keeps that of `process.child`.
        hidden_paths: Places that stay invisible even if files of Python lie around them, as in a workspace below /usr.
        gpu: NVIDIA's devices are accessible.
        network: Denied unless True.
        loopback: Sockets to programs in the same sandbox; only bubblewrap offers them.
        fork: It may start processes; threads are always allowed.
        hidden: Files and directories of Python that cannot be read; Landlock shows their names.
    """

    read_only: tuple[Path, ...] = ()
    writable: tuple[Path, ...] = ()
    hidden_paths: tuple[Path, ...] = ()
    hidden: tuple[Path, ...] = ()
    scratch: Path | None = None
    tmp_mb: int = 256
    network: bool = False
    loopback: bool = False
    gpu: bool = False
    fork: bool = True
    cwd: Path | None = None
    env: dict[str, str] = field(default_factory=dict)

    @property
    def home(self) -> Path:
        """Working directory of the sandboxed program."""
        return self.cwd or next((path for path in self.writable if path.is_dir()), Path("/"))


@dataclass(frozen=True)
class SandboxedCommand:
    """A command for `process.child`: `argv` and `env`; `sandbox_backend` is recorded."""

    argv: tuple[str, ...]
    env: dict[str, str]
    sandbox_backend: SandboxBackend


@cache
def probe() -> SandboxBackend:
    """Return the strongest backend that works here, found by running it once; AUTOQEC_SANDBOX narrows the choice."""
    return next(sandbox_backend for sandbox_backend in SANDBOX_BACKENDS if is_available(sandbox_backend))


def chosen() -> str:
    """Return the backend that AUTOQEC_SANDBOX asks for: `auto`, `bubblewrap` or `landlock`.

    Raises:
        UsageError: The variable has another value.
    """
    value = os.environ.get(CHOICE) or "auto"
    if value not in ("auto", "bubblewrap", "landlock"):
        raise UsageError(f"unknown sandbox backend {value!r}", location=CHOICE, hint="use auto, bubblewrap or landlock")
    return value


def opted_out() -> bool:
    """Return whether the user allowed branch code to run without a sandbox."""
    return os.environ.get(OPT_OUT_VARIABLE) == "1"


def is_available(sandbox_backend: SandboxBackend) -> bool:
    """Return whether a program starts inside this backend and finds files and network closed."""
    return unavailable_reason(sandbox_backend) is None


@cache
def unavailable_reason(sandbox_backend: SandboxBackend) -> str | None:
    """Return why this backend does not work here, None if it does; found by trying."""
    if sandbox_backend == "none":
        return None
    if sys.platform != "linux":
        return f"it needs Linux, this is {sys.platform}"
    if chosen() not in ("auto", sandbox_backend):
        return f"{CHOICE}={chosen()} excludes it"
    if sandbox_backend == "bubblewrap" and bubblewrap.bwrap() is None:
        return "bwrap is not installed"
    with tempfile.TemporaryDirectory() as place:
        secret, inside, log = Path(place, "secret"), Path(place, "inside"), Path(place, "log")
        secret.write_text("secret")
        inside.mkdir()
        wrapped = wrap(
            [sys.executable, "-I", "-S", "-c", _PROBE, str(secret)],
            SandboxPolicy(writable=(inside,)),
            sandbox_backend=sandbox_backend,
        )
        try:
            result = child.run(
                wrapped.argv, cwd=place, env=wrapped.env, limits=child.Limits(wallclock_s=30), stdout=log
            )
        except AutoqecError as error:
            return error.message
        if result.returncode == 0 and (inside / "written").exists():
            return None
        output = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
        return (output[-1] if output else f"exit status {result.returncode}")[:200]


_PROBE = """
import socket, sys
open("written", "w").close()
for attack in (lambda: open(sys.argv[1]), lambda: socket.socket()):
    try:
        attack()
    except OSError:
        continue
    sys.exit("the sandbox is open")
"""


def wrap(
    argv: Sequence[str], policy: SandboxPolicy, *, sandbox_backend: SandboxBackend | None = None
) -> SandboxedCommand:
    """Return `argv` inside a sandbox backend (default: the strongest that works here). Starts nothing.

    The network is closed in both real backends; `none` changes only the environment.

    Raises:
        UsageError: A closed place lies among Python's own files and the backend cannot hide it.
    """
    sandbox_backend = sandbox_backend or probe()
    if sandbox_backend == "landlock" and (exposed := _exposed(policy.hidden_paths)):
        raise UsageError(
            f"{exposed[0]} lies among the files that Python needs, and Landlock can't hide it there",
            location="sandbox",
            hint=f"{INSTALL}; or move the workspace",
        )
    private = Path("/tmp") if sandbox_backend == "bubblewrap" else policy.scratch or policy.home
    env = {"USER": "sandbox", **_private_places(private), **policy.env}
    if sandbox_backend == "bubblewrap":
        inner = _confine_command(argv, policy, landlock=False)
        return SandboxedCommand((*_bubblewrap(policy), "--", *inner), env, sandbox_backend)
    if sandbox_backend == "landlock":
        return SandboxedCommand(_confine_command(argv, policy, landlock=True), env, sandbox_backend)
    return SandboxedCommand(tuple(map(str, argv)), env, sandbox_backend)


def _private_places(directory: Path) -> dict[str, str]:
    """Variables by which programs and libraries find a place for their files: all in one private directory."""
    return {
        "HOME": str(directory),
        "TMPDIR": str(directory),
        "XDG_CACHE_HOME": str(directory / "cache"),
        "MPLCONFIGDIR": str(directory / "matplotlib"),
        "TORCHINDUCTOR_CACHE_DIR": str(directory / "torchinductor"),
    }


def readable() -> tuple[Path, ...]:
    """Return what Python needs: the environment, the interpreter under it, this package; resolved and as named."""
    places = [Path(sys.prefix), Path(sys.base_prefix), Path(sys.executable).resolve().parent.parent]
    places += [PACKAGE_DIR]
    all_forms = [form for place in places for form in (place, place.resolve())]
    return tuple(dict.fromkeys(path for path in all_forms if path != Path("/")))


def _interpreter_links() -> list[Path]:
    """Symbolic links between `sys.executable` and the interpreter that lie outside the places that are bound."""
    links, path = [], Path(sys.executable)
    bound = (*_system(), *readable())
    while path.is_symlink():
        if not any(path.is_relative_to(place) for place in bound):
            links.append(path)
        path = Path(os.path.normpath(path.parent / os.readlink(path)))
    return links


def _exposed(places: Sequence[Path]) -> list[Path]:
    """Return the outermost of `places` that lie among the files of Python or the system, as named and resolved."""
    opened = [form for path in (*_system(), *readable()) for form in (path, path.resolve())]
    hidden_paths = [form for path in places if path.exists() for form in (path.absolute(), path.resolve())]
    exposed = [path for path in hidden_paths if any(path.is_relative_to(place) for place in opened)]
    return [path for path in _by_depth(exposed) if not any(outer in path.parents for outer in exposed)]


def _confine_command(argv: Sequence[str], policy: SandboxPolicy, *, landlock: bool) -> tuple[str, ...]:
    rules = {
        "landlock": landlock,
        "cwd": str(policy.home),
        "network": policy.network,
        "seccomp": syscalls.filter_program(
            network=policy.network,
            loopback=policy.loopback and not landlock,  # bubblewrap's network namespace has no other process
            gpu=policy.gpu,
            fork=policy.fork,
            signals=not landlock or confine.landlock_version() >= confine.SIGNAL_SCOPE,
        ).hex(),
        "read": [str(path) for path in (*_system(), *readable(), *_LANDLOCK_EXTRA, *policy.read_only)],
        # Finding this package on the path means listing what lies beside it: names, no file's content.
        "list": [str(PACKAGE_DIR.parent)],
        "hidden": [str(path.resolve()) for path in policy.hidden],
        "write": [str(path) for path in (*policy.writable, *filter(None, [policy.scratch]))],
        "devices": [str(path) for path in _devices(policy)],
    }
    if not landlock:
        rules |= {"read": [], "list": [], "write": [], "devices": []}
    return (sys.executable, "-I", "-S", str(_CONFINE), json.dumps(rules), "--", *map(str, argv))


def _system() -> list[Path]:
    return [Path(path) for path in (*_SYSTEM, *_SYSTEM_FILES, _SYSFS) if os.path.exists(path)]


def _devices(policy: SandboxPolicy) -> list[Path]:
    return sorted(Path("/dev").glob("nvidia*")) if policy.gpu else []


def _bubblewrap(policy: SandboxPolicy) -> list[str]:
    size = str(policy.tmp_mb * 1_000_000)
    out = [str(bubblewrap.bwrap() or "bwrap"), "--unshare-user", "--unshare-pid", "--unshare-ipc"]
    out += ["--unshare-uts", "--unshare-cgroup-try"]
    out += [] if policy.network else ["--unshare-net"]
    out += ["--uid", "65534", "--gid", "65534", "--hostname", "sandbox", "--die-with-parent", "--new-session"]
    out += ["--cap-drop", "ALL", "--unsetenv", "LD_PRELOAD", "--unsetenv", "AUTOQEC_OWNER"]
    # First, so that a run's directory under one of them lies on top.
    out += ["--proc", "/proc", "--dev", "/dev"]
    for memory in ("/dev/shm", "/tmp"):
        out += ["--size", size, "--tmpfs", memory]
    for path in _system():
        # A merged /usr: /bin and /lib are links into it.
        out += ["--symlink", os.readlink(path), str(path)] if path.is_symlink() else _bind("--ro-bind", path)
    for path in _by_depth(readable()):
        out += _bind("--ro-bind", path)
    for path in _interpreter_links():
        out += ["--symlink", os.readlink(path), str(path)]
    hidden = _exposed((*policy.hidden_paths, *policy.hidden))
    for path in hidden:
        out += ["--size", size, "--tmpfs", str(path)] if path.is_dir() else ["--ro-bind", "/dev/null", str(path)]
    for path in _by_depth(policy.read_only):
        out += _bind("--ro-bind", path)
    for path in _devices(policy):
        out += _bind("--dev-bind", path)
    for path in _by_depth(policy.writable):
        out += _bind("--bind", path)
    # The new root and /dev are memory without a limit: nothing may be written there.
    remount_read_only = [Path("/dev"), *(path for path in hidden if path.is_dir()), Path("/")]
    return [
        *out,
        *(word for path in remount_read_only for word in ("--remount-ro", str(path))),
        "--chdir",
        str(policy.home),
    ]


def _bind(option: str, path: Path) -> list[str]:
    return [option, str(path), str(path)]


def _by_depth(paths: Sequence[Path]) -> list[Path]:
    """Outer directories first, so that an inner mount lies on top."""
    return sorted(dict.fromkeys(path.absolute() for path in paths), key=lambda path: len(path.parts))
