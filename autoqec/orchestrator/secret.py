"""The secret of a run, from which the verifier derives its shots: created, read, checked and published."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from autoqec.contracts.base import sha256_bytes
from autoqec.contracts.history import RunInfo
from autoqec.errors import ManualInterventionRequired, UsageError
from autoqec.store import atomic
from autoqec.store.history import History
from autoqec.store.layout import RunLayout
from autoqec.system import run_lock

SECRET_BYTES = 32
_MAX_BYTES = 2**20


def new_secret(path: Path | str | None = None) -> bytes:
    """Return the secret of a new run.

    Args:
        path: A file with the secret, for tests and replays; by default 32 random bytes.

    Raises:
        UsageError: The file cannot be read, is not a regular file, or is too short or too large.
    """
    if path is None:
        return os.urandom(SECRET_BYTES)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise UsageError(
            f"cannot be read: {error.strerror}", location=str(path), hint="name another --secret-file"
        ) from error
    with os.fdopen(fd, "rb") as stream:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise UsageError("is not a regular file", location=str(path), hint="name another --secret-file")
        secret = stream.read(_MAX_BYTES + 1)
    if not SECRET_BYTES // 2 <= len(secret) <= _MAX_BYTES:
        message = f"a secret has {SECRET_BYTES // 2} to {_MAX_BYTES} bytes"
        raise UsageError(message, location=str(path), hint=f"head -c {SECRET_BYTES} /dev/urandom > {path}")
    return secret


def is_closed(layout: RunLayout) -> bool:
    """Return whether the run is closed: its secret is published, so no further round may be verified with it."""
    return layout.secret_hex.exists()


def read_secret(layout: RunLayout, info: RunInfo) -> bytes:
    """Return the secret of an open run.

    Raises:
        UsageError: The run is closed.
        ManualInterventionRequired: The secret is lost, or its hash is not the one in run.json.
    """
    if is_closed(layout):
        raise UsageError("the run is closed: its secret is published", location=info.run_id, hint="start a new run")
    secret = None
    with suppress(OSError):
        secret = atomic.read_bytes(layout.secret)
    if secret is None:
        message = "the run's secret is missing or cannot be read, so its rounds cannot be verified"
        hint = (
            f"restore {layout.secret} from a backup; without it `autoqec show`, `report`, `export` and `package-run` "
            f"still work on {info.run_id}, and a new run can continue from its branches"
        )
        raise ManualInterventionRequired(message, location=str(layout.secret), hint=hint)
    _require_committed(layout, info, secret)
    return secret


def read_published_secret(layout: RunLayout, info: RunInfo | None = None) -> bytes:
    """Return the secret of a closed run.

    Raises:
        UsageError: The secret is missing, or its hash is not the one in run.json.
    """
    secret = b""
    with suppress(OSError, ValueError):
        secret = bytes.fromhex(atomic.read_bytes(layout.secret_hex).decode())
    if sha256_bytes(secret) != (info or History(layout).info()).secret_sha256:
        message = "does not contain the secret whose hash is in run.json"
        raise UsageError(message, location=str(layout.secret_hex), hint=f"restore {layout.secret_hex}")
    return secret


def _require_own_repository(layout: RunLayout, path: object) -> None:
    """Raise ManualInterventionRequired if another repository reaches the same run directory through a link.

    A copy of a repository whose `runs` is a symbolic link lacks the branches of rounds that the original adds.

    Args:
        layout: The run.
        path: The run directory as its last owner reached it, from owner.json.
    """
    if not isinstance(path, str) or len(Path(path).parents) < 2:
        return
    original = Path(path).parents[1]
    with suppress(OSError):
        shared = (original / ".git").exists() and Path(path).samefile(layout.root)
        if shared and not original.samefile(layout.repo_root):
            what = f"the run belongs to the repository {original}: `runs` of both leads to the same directory"
            hint = f"resume it there; here, replace the link: rm {layout.root.parent}"
            raise ManualInterventionRequired(what, location=str(layout.root), hint=hint)


def require_only_copy(layout: RunLayout) -> None:
    """Raise ManualInterventionRequired if the directory that last used this secret still exists elsewhere.

    A copied repository would sample the same shots as its original; a moved one no longer exists at its old place.
    """
    owner = run_lock.read(layout.root)
    _require_own_repository(layout, owner.get("path"))
    earlier = owner.get("root")
    if not isinstance(earlier, str) or Path(earlier) == layout.root.resolve():
        return
    original = Path(earlier)
    with suppress(OSError):
        same_run = atomic.read_bytes(original / layout.secret.name) == atomic.read_bytes(layout.secret)
        if same_run and not original.samefile(layout.root):
            message = (
                f"this is a copy of {original}, which has the same secret: both would be verified on the same shots"
            )
            hint = f"resume it there and delete this copy, or delete {original} if that is the copy; or start a new run"
            raise ManualInterventionRequired(message, location=str(layout.root), hint=hint)


def _require_committed(layout: RunLayout, info: RunInfo, secret: bytes) -> None:
    if sha256_bytes(secret) != info.secret_sha256:
        was, now = info.secret_sha256, sha256_bytes(secret)
        message = f"the secret has changed: its SHA-256 is {now}, at the start of the run {was}"
        raise ManualInterventionRequired(message, location=str(layout.secret), hint=f"restore {layout.secret}")
