"""One owner per run: a filelock on owner.lock, and owner.json, which names the holder."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from filelock import FileLock, Timeout

from autoqec.errors import StorageError, UsageError

OWNER_FILE = "owner.json"
LOCK_FILE = "owner.lock"  # never replaced, unlike owner.json
HELD = "run-held"  # code of the error for a run that another process holds
_OWNER_VARIABLE = "AUTOQEC_OWNER"  # in the environment of every child, so that a later start finds what is left
_NETWORK_FILE_SYSTEMS = {"nfs", "nfs4", "lustre", "cifs", "smb3", "smbfs", "ceph", "9p"}
_LOCAL_LOCKS = {"local_lock=all", "local_lock=flock", "nolock", "localflock", "noflock"}  # mount options
_TIMEOUT_S = 10.0
_LOCK_TIMEOUT_S = 0.1  # is_locked of another process holds the lock for an instant


@dataclass(frozen=True)
class RunOwner:
    """The holder of a run.

    Attributes:
        epoch: How often the run was held, this time included; creating it, recovery and `autoqec verify` count, too.
        killed_pids: Processes of earlier owners that were killed now.
        warning: What may fail on this file system; None on a local one.
    """

    epoch: int
    killed_pids: tuple[int, ...]
    warning: str | None


@contextmanager
def lock_run(run_root: Path | str, command: str | None = None) -> Iterator[RunOwner]:
    """Hold the run while the block runs; the lock ends with this process.

    Children started inside carry the run's mark; those that a dead owner left are killed first.

    Args:
        run_root: Directory of the run.
        command: Subcommand of `autoqec` that the run is held for, which owner.json names; `run`: it runs rounds.

    Raises:
        UsageError: Another process holds the run.
        StorageError: owner.json cannot be written.
    """
    root = Path(run_root).resolve()
    earlier = os.environ.get(_OWNER_VARIABLE)
    with ExitStack() as held:
        is_locked_file = _lock(root, held)
        epoch = _epoch(read(root)) + 1
        killed_pids = kill_leftover_processes(root)
        purpose = {} if command is None else {"command": command}
        _write(root, _owner_record(root, epoch) | {"path": os.path.abspath(run_root)} | purpose)
        os.environ[_OWNER_VARIABLE] = f"{root}:{epoch}"
        try:
            yield RunOwner(epoch, killed_pids, unreliable_lock(root, is_locked_file))
        finally:
            os.environ.pop(_OWNER_VARIABLE)
            if earlier is not None:
                os.environ[_OWNER_VARIABLE] = earlier


def _epoch(owner: dict[str, Any]) -> int:
    """Return the number of earlier owners; 0 if the file says something else."""
    epoch = owner.get("epoch")
    return epoch if isinstance(epoch, int) and 0 <= epoch < 2**53 else 0


def read(run_root: Path | str) -> dict[str, Any]:
    """Return the content of owner.json: who holds the run, or held it last; {} if it cannot be read."""
    path = Path(run_root, OWNER_FILE)
    try:
        data = json.loads(path.read_bytes()) if path.is_file() else {}  # reading a FIFO would block
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def require_unlocked(run_root: Path | str) -> None:
    """Raise UsageError, which names the holder, if some process holds the run."""
    if is_locked(run_root):
        raise _held_by_other(Path(run_root).resolve())


def is_locked(run_root: Path | str) -> bool:
    """Return whether some process holds the run now."""
    root = _directory(Path(run_root).resolve())
    try:
        fd = os.open(root / LOCK_FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # no owner has locked it yet, or no file can be locked there
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared, which filelock has not: two that ask do not collide
    except OSError as error:
        return error.errno in (errno.EWOULDBLOCK, errno.EACCES)
    else:
        return False
    finally:
        os.close(fd)


def owner_exists(run_root: Path | str) -> bool:
    """Return whether the process that owner.json names exists on this machine; with its start it is identified."""
    owner = read(run_root)
    try:
        return abs(psutil.Process(int(owner["pid"])).create_time() - owner["start_time"]) < 1
    except (psutil.Error, KeyError, TypeError, ValueError, OverflowError):
        return False


def kill_leftover_processes(run_root: Path) -> tuple[int, ...]:
    """Kill every process that carries the run's mark and is not an ancestor. Call only while holding the run."""
    mark = f"{run_root}:"
    protected = {os.getpid(), *(process.pid for process in psutil.Process().parents())}
    killed_pids = list[int]()
    deadline = time.monotonic() + _TIMEOUT_S
    while True:
        processes = [process for process in psutil.process_iter() if process.pid not in protected]
        found = [process.pid for process in processes if _kill_marked(process, mark)]
        killed_pids += [pid for pid in found if pid not in killed_pids]
        if not found or time.monotonic() > deadline:
            return tuple(killed_pids)
        time.sleep(0.02)


def _kill_marked(process: psutil.Process, mark: str) -> bool:
    """Kill a process if it carries the mark; True if it did. psutil never signals another one of the same number."""
    try:
        if not process.environ().get(_OWNER_VARIABLE, "").startswith(mark):
            return False
        process.kill()
    except (psutil.Error, OSError):
        return False
    return True


def _directory(root: Path) -> Path:
    if root.is_dir():
        return root
    raise UsageError("there is no such run directory", location=str(root), hint="`autoqec show` lists the runs")


def _lock(root: Path, held: ExitStack) -> bool:
    """Lock owner.lock until `held` is closed; return False on a network file system that locks no files.

    Raises:
        UsageError: A process, perhaps of another host, holds it.
        StorageError: The file cannot be locked.
    """
    try:
        lock = FileLock(_directory(root) / LOCK_FILE, _LOCK_TIMEOUT_S, poll_interval=0.02, fallback_to_soft=False)
        held.enter_context(lock)
    except Timeout as error:
        raise _held_by_other(root) from error
    except OSError as error:
        if _is_network(_file_system(root)[0]):
            return False
        raise StorageError(f"the run cannot be locked: {error.strerror}", location=str(root / LOCK_FILE)) from error
    return True


def _held_by_other(root: Path) -> UsageError:
    other = read(root)
    command = f" (`autoqec {other['command']}`)" if "command" in other else ""
    return UsageError(
        f"the run is held by process {other.get('pid', '?')} on {other.get('host', '?')}{command}",
        location=str(root),
        hint=f"wait for it, or end it: `kill {other.get('pid', 'PID')}` on {other.get('host', 'that host')}",
        code=HELD,
    )


def _owner_record(root: Path, epoch: int) -> dict[str, Any]:
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "start_time": psutil.Process().create_time(),
        "epoch": epoch,
        "root": str(root),  # tells a copy of the run from the run
    }


def _write(root: Path, value: dict[str, Any]) -> None:
    path, temporary = root / OWNER_FILE, root / f".{OWNER_FILE}.tmp"
    try:
        temporary.unlink(missing_ok=True)  # we hold the lock: it is a dead owner's
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            os.write(fd, (json.dumps(value, indent=2) + "\n").encode())
            os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(temporary, path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        hint = f"look at its file system (`df -h {root}`, `ls -ld {root}`), then start again"
        raise StorageError(f"could not be written: {error.strerror}", location=str(path), hint=hint) from error


def unreliable_lock(root: Path, is_locked_file: bool = True) -> str | None:
    """Return why locks in this directory may not reach other hosts; None if they do.

    Args:
        root: The run directory.
        is_locked_file: Whether owner.lock could be locked.
    """
    kind, options = _file_system(root)
    if not _is_network(kind):
        return None
    local = sorted(_LOCAL_LOCKS.intersection(options))
    if kind == "nfs4" and is_locked_file and not local:
        return None
    mounted = f" with the option {local[0]}" if local else ""
    return (
        f"{root} lies on {kind}{mounted}: locks may not reach other hosts and a rename may not be atomic after a "
        "crash; keep one owner yourself, or use NFS version 4 or a local disk"
    )


def _is_network(kind: str) -> bool:
    return kind in _NETWORK_FILE_SYSTEMS or kind.startswith("fuse")


def _file_system(path: Path) -> tuple[str, tuple[str, ...]]:
    """Return type and mount options of the file system that holds `path`; "" if it is unknown."""
    mounts = [mount for mount in psutil.disk_partitions(all=True) if path.is_relative_to(mount.mountpoint)]
    if not mounts:
        return "", ()
    found = max(reversed(mounts), key=lambda mount: len(mount.mountpoint))  # the last one of a place covers the others
    return found.fstype, tuple(found.opts.split(","))
