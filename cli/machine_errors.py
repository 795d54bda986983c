"""Translation of operating system errors: permissions, limits, memory and full disks."""

from __future__ import annotations

import errno
import os

from autoqec.errors import AutoqecError, StorageError, UsageError

_STORAGE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO}
_HINTS = {
    errno.EACCES: "check its permissions: ls -ld",
    errno.EPERM: "check its permissions: ls -ld",
    errno.ENAMETOOLONG: "give a shorter name",
    errno.ELOOP: "check its symbolic links: ls -l",
    errno.ENOTDIR: "check its path: ls -ld",
    errno.EISDIR: "check its path: ls -ld",
    errno.ENXIO: "check its type: ls -ld",
    errno.EMFILE: "raise the limit on open files: ulimit -n 1024",
    errno.ENFILE: "close other programs, or raise fs.file-max",
    errno.EAGAIN: "raise the limits on processes and memory: ulimit -u, ulimit -v",
    errno.ENOMEM: "free memory, or raise the limit: ulimit -v unlimited",
}
_MEMORY_MESSAGES = ("failed to map segment", "cannot allocate memory", "can't start new thread", "not enough memory")
_MAX_NAME = 200


def machine_error(error: Exception) -> AutoqecError | None:
    """Return the error to show for an exception that the machine caused; None if it may be a bug."""
    if isinstance(error, MemoryError) or any(text in str(error).lower() for text in _MEMORY_MESSAGES):
        return UsageError("not enough memory", code="memory", hint=_HINTS[errno.ENOMEM])
    if not isinstance(error, OSError) or error.errno is None:
        return None
    message = (error.strerror or os.strerror(error.errno)).lower()
    name = None if error.filename is None else os.fsdecode(error.filename)
    location = name if name is None or len(name) <= _MAX_NAME else name[:_MAX_NAME] + "…"
    if error.errno in _STORAGE:
        return StorageError(message, location=location, hint="check the disk: df -h")
    if error.errno in _HINTS:
        return UsageError(message, location=location, hint=_HINTS[error.errno])
    return None
