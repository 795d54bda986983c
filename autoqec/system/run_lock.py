"""One owner per run: a lock on the run directory itself (filelock), and owner.json, which names its holder.

NFS and Lustre keep a lock on a directory to the client, so that another host would not see it, and pass that of a
file which is open for writing on to the server (flock(2)). There the owner locks the file owner.lock as well.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import lock_descriptor

from autoqec.errors import StorageError, UsageError
from autoqec.system.process import procfs

OWNER_FILE = "owner.json"
LOCK_FILE = "owner.lock"  # never replaced, unlike owner.json, and only on network file systems
HELD = "run-held"  # code of the error for a run that another process holds
_OWNER_VARIABLE = "AUTOQEC_OWNER"  # in the environment of every child, so that a later start finds what is left
_NETWORK_FILE_SYSTEMS = {"nfs", "nfs4", "lustre", "cifs", "smb3", "smbfs", "ceph", "9p"}
_LOCAL_LOCKS = {"local_lock=all", "local_lock=flock", "nolock", "localflock", "noflock"}  # mount options
_MOUNTS = Path("/proc/self/mounts")
_TIMEOUT_S = 10.0
_RETRY_DELAY_S = 0.05


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
    fd = _open(root)
    earlier = os.environ.get(_OWNER_VARIABLE)
    file_fd = None
    try:
        _lock(fd, root)
        file_fd = _lock_file(root)
        epoch = _epoch(read(root)) + 1
        killed_pids = kill_leftover_processes(root)
        purpose = {} if command is None else {"command": command}
        _write(root, _owner_record(root, epoch) | {"path": os.path.abspath(run_root)} | purpose)
        os.environ[_OWNER_VARIABLE] = f"{root}:{epoch}"
        yield RunOwner(epoch, killed_pids, unreliable_lock(root, file_fd is not None))
    finally:
        if earlier is None:
            os.environ.pop(_OWNER_VARIABLE, None)
        else:
            os.environ[_OWNER_VARIABLE] = earlier
        if file_fd is not None:
            os.close(file_fd)
        os.close(fd)


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
    root = Path(run_root).resolve()
    if _is_locked(_open(root)):
        return True
    if not _on_network(root):
        return False
    try:
        return _is_locked(os.open(root / LOCK_FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError:  # no owner has locked it yet, or no file can be locked there
        return False


def _is_locked(fd: int) -> bool:
    """Return whether another open file holds a lock, and close the descriptor."""
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared, which filelock has not: two that ask do not collide
    except OSError as error:
        return error.errno in (errno.EWOULDBLOCK, errno.EACCES)
    else:
        return False
    finally:
        os.close(fd)


def kill_leftover_processes(run_root: Path) -> tuple[int, ...]:
    """Kill every process that carries the run's mark and is not an ancestor. Call only while holding the run.

    A pid is pinned (pidfd) before its mark is read, so that a reused number is never hit.
    """
    mark = f"{_OWNER_VARIABLE}={run_root}:".encode()
    protected = _ancestors()
    killed_pids = []
    deadline = time.monotonic() + _TIMEOUT_S
    while True:
        pids_found = [pid for pid in procfs.pids() if pid not in protected and _kill_marked(pid, mark)]
        killed_pids += [pid for pid in pids_found if pid not in killed_pids]
        if not pids_found or time.monotonic() > deadline:
            return tuple(killed_pids)
        time.sleep(0.02)


def _kill_marked(pid: int, mark: bytes) -> bool:
    """Kill `pid` if it carries the mark; True if it did."""
    try:
        handle = os.pidfd_open(pid)
    except (OSError, AttributeError):
        return False
    try:
        if not any(entry.startswith(mark) for entry in procfs.environ(pid)) or procfs.start_time(pid) is None:
            return False
        with suppress(OSError):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
        return True
    finally:
        os.close(handle)


def _ancestors() -> set[int]:
    parents, pid, pids_found = procfs.parents(), os.getpid(), set()
    while pid and pid not in pids_found:
        pids_found.add(pid)
        pid = parents.get(pid, 0)
    return pids_found


def _open(root: Path) -> int:
    try:
        return os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        message = f"the run directory cannot be opened: {error.strerror}"
        raise UsageError(message, location=str(root), hint="`autoqec show` lists the runs") from error


def _lock(fd: int, root: Path) -> None:
    try:
        if lock_descriptor(fd, blocking=False):
            return
        time.sleep(_RETRY_DELAY_S)  # is_locked of another process holds the lock for an instant
        if lock_descriptor(fd, blocking=False):
            return
    except OSError as error:
        raise StorageError(f"the run cannot be locked: {error.strerror}", location=str(root)) from error
    raise _held_by_other(root)


def _lock_file(root: Path) -> int | None:
    """Lock owner.lock on a network file system; None on a local one, and where a file cannot be locked.

    Raises:
        UsageError: A process, mostly of another host, holds it.
    """
    if not _on_network(root):
        return None
    try:
        fd = os.open(root / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
    except OSError:
        return None
    try:
        _lock(fd, root)
    except StorageError:
        os.close(fd)
        return None
    except BaseException:
        os.close(fd)
        raise
    return fd


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
        "start_time": procfs.start_time(os.getpid()),
        "boot_id": procfs.boot_id(),
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


def unreliable_lock(root: Path, file_is_locked: bool = False) -> str | None:
    """Return why locks on this directory may not reach other hosts; None if they do.

    Args:
        root: The run directory.
        file_is_locked: Whether owner.lock could be locked.
    """
    kind, options = _file_system(root)
    if not _is_network(kind):
        return None
    local = sorted(_LOCAL_LOCKS.intersection(options))
    if kind == "nfs4" and file_is_locked and not local:
        return None
    mounted = f" with the option {local[0]}" if local else ""
    return (
        f"{root} lies on {kind}{mounted}: locks may not reach other hosts and a rename may not be atomic after a "
        "crash; keep one owner yourself, or use NFS version 4 or a local disk"
    )


def _on_network(root: Path) -> bool:
    return _is_network(_file_system(root)[0])


def _is_network(kind: str) -> bool:
    return kind in _NETWORK_FILE_SYSTEMS or kind.startswith("fuse")


def _file_system(path: Path) -> tuple[str, tuple[str, ...]]:
    """Return type and mount options of the file system that holds `path`; "" if it is unknown."""
    longest, kind, options = "", "", ""
    try:
        lines = os.fsdecode(_MOUNTS.read_bytes()).split("\n")
    except OSError:
        return "", ()
    for line in lines:
        _, mount_point, fs_type, mount_options, *_ = [*line.split(" "), "", "", "", ""]  # a source may be empty
        mount_point = re.sub(r"\\([0-7]{3})", lambda escape: chr(int(escape[1], 8)), mount_point)  # spaces, above all
        if mount_point and path.is_relative_to(mount_point) and len(mount_point) >= len(longest):
            longest, kind, options = mount_point, fs_type, mount_options
    return kind, tuple(options.split(","))
