"""Crash-safe JSON lines: a line is valid once its newline is on disk.

The file itself is locked, with flock: readers share it, which a filelock lock cannot do.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from autoqec.contracts.base import Contract
from autoqec.errors import ContractError, StorageError, UsageError
from autoqec.store import atomic

_BLOCK = 1 << 16
CHAIN_KEY = "prev_sha256"
LINE_KEY = "line_sha256"
NO_LINE = "0" * 64  # stands for the hash of a line before the first one
_LINE_SUFFIX = f',"{LINE_KEY}":"{NO_LINE}"}}'


def _unchained(line: bytes, value: dict[str, Any], previous: str) -> str:
    """Remove the keys of the hash chain from the value of a line, which contains the hash of `previous` and of itself.

    Returns:
        The SHA-256 of the line.

    Raises:
        ContractError: The chain is broken.
    """
    own = hashlib.sha256(line[: -len(_LINE_SUFFIX)]).hexdigest()
    for key, of, expected in ((CHAIN_KEY, "the previous line", previous), (LINE_KEY, "this line", own)):
        found = value.pop(key, None)
        if found is None:
            raise ContractError(f"the hash chain is broken: `{key}` is missing")
        if found != expected:
            message = f"`{key}` is {found}, but the hash of {of} is {expected}"
            raise ContractError(f"the hash chain is broken: {message}")
    return hashlib.sha256(line).hexdigest()


def append(path: Path | str, value: Any, *, salvage: Path | None = None, chained: bool = False) -> None:
    """Append `value` as one line, durably, under an exclusive lock of the file.

    An incomplete last line (without newline, or with NUL bytes after a power failure) is moved to `salvage` first. On
    failure the file is truncated to its old size.

    Args:
        path: The file; it is created if it does not exist.
        value: A JSON object.
        salvage: Directory for an incomplete line; by default `salvage/` beside the file.
        chained: Add the hashes of the previous line and of this one.

    Raises:
        StorageError: The file cannot be written.
        ValueError: The value contains NaN.
    """
    append_all(path, [value], salvage=salvage, chained=chained)


def append_all(path: Path | str, values: Iterable[Any], *, salvage: Path | None = None, chained: bool = False) -> None:
    """Append several lines by one write, as `append`; after a crash a prefix of complete lines is present."""
    path = Path(path)
    dump = partial(json.dumps, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    lines = [dump(value).encode() for value in values]
    if not lines:
        return
    with atomic.storage_errors(path):
        fd, created = _open(path)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            size = _repair(fd, path, salvage or path.parent / "salvage")
            if chained:
                lines = _chained(lines, _last_sha256(fd, size))
            atomic.append_to_fd(fd, b"".join(line + b"\n" for line in lines), size)
        finally:
            os.close(fd)
    if created:
        atomic.fsync_dir(path.parent)


def read(path: Path | str) -> list[dict[str, Any]]:
    """Return all complete lines; [] if the file does not exist. An incomplete last line is ignored.

    Raises:
        ContractError: Another line is damaged; names file and line.
    """
    found, _ = _whole_lines(Path(path), 0)
    values: list[dict[str, Any]] = []
    with _location_of_next(path, 0, values):
        for line in found:
            values.append(_parse(line))
    return values


def read_chained(path: Path | str, start: int, lines: int, previous: str) -> tuple[list[dict[str, Any]], int, str]:
    """Return lines of a chained file, and where they end.

    Args:
        path: The file.
        start: Byte at which the first line begins.
        lines: Number of complete lines before it.
        previous: SHA-256 of the line before it; `NO_LINE` for the first one.

    Returns:
        The complete lines, the byte at which they end, and the SHA-256 of the last one.

    Raises:
        ContractError: A line is damaged, or its hashes do not fit; names file and line.
    """
    found, end = _whole_lines(Path(path), start)
    values: list[dict[str, Any]] = []
    with _location_of_next(path, lines, values):
        for line in found:
            value = _parse(line)
            previous = _unchained(line, value, previous)
            values.append(value)
    return values, end, previous


@contextmanager
def _location_of_next(path: Path | str, lines: int, values: list[dict[str, Any]]) -> Iterator[None]:
    """Add file and line to a ContractError about the line that follows `lines` lines and `values`."""
    try:
        yield
    except ContractError as error:
        error.location = f"{path}:{lines + len(values) + 1}"
        raise


def _whole_lines(path: Path, start: int) -> tuple[list[bytes], int]:
    """Return the complete lines from byte `start`, and the byte at which they end."""
    try:
        if not path.is_file() and path.exists():  # a FIFO would block, a device may never end
            raise UsageError("is not a regular file", location=str(path), hint=f"ls -l {path}")
        with path.open("rb") as stream:
            stream.seek(start)
            data = stream.read()
    except FileNotFoundError:
        return [], 0
    except OSError as error:
        raise StorageError(f"could not be read: {error.strerror}", location=str(path)) from error
    complete = data[: len(data) - len(_torn_tail(data))]
    return complete.split(b"\n")[:-1], start + len(complete)


def line_hashes(path: Path | str) -> list[str]:
    """Return the SHA-256 of every complete line, without its newline; [] if the file does not exist."""
    return [hashlib.sha256(line).hexdigest() for line in _whole_lines(Path(path), 0)[0]]


def last_hash(path: Path | str) -> str:
    """Return the SHA-256 of the last complete line, which is durable; zeros if there is none."""
    path = Path(path)
    if not path.exists():
        return NO_LINE
    with atomic.storage_errors(path), path.open("rb") as stream:
        fcntl.flock(stream.fileno(), fcntl.LOCK_SH)  # a line that is being appended may not survive a power failure
        size = os.fstat(stream.fileno()).st_size
        return _last_sha256(stream.fileno(), size - len(_torn_tail(_last_lines(stream.fileno(), size))))


def is_torn(path: Path | str) -> bool:
    """Return whether the last line is incomplete."""
    path = Path(path)
    if not path.is_file():
        return False
    with atomic.storage_errors(path), path.open("rb") as stream:
        return bool(_torn_tail(_last_lines(stream.fileno(), os.fstat(stream.fileno()).st_size)))


def repair(path: Path | str, *, salvage: Path) -> None:
    """Move an incomplete last line of an existing file to `salvage`, as the next `append` would."""
    path = Path(path)
    with atomic.storage_errors(path):
        fd, _ = _open(path)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            _repair(fd, path, salvage)
        finally:
            os.close(fd)


def _open(path: Path) -> tuple[int, bool]:
    flags = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o644), True
    except FileExistsError:
        return os.open(path, flags), False


def _repair(fd: int, path: Path, salvage: Path) -> int:
    """Move an incomplete last line to `salvage`; return the size of the complete part in bytes."""
    size = os.fstat(fd).st_size
    torn = _torn_tail(_last_lines(fd, size))
    if not torn:
        return size
    keep = size - len(torn)
    atomic.make_dir(salvage)
    # The name depends on position and bytes, so that an interrupted and repeated repair writes the same file.
    name = f"{path.name}.{keep}.{hashlib.sha256(torn).hexdigest()[:12]}.torn"
    atomic.write_bytes(salvage / name, torn)
    os.ftruncate(fd, keep)
    os.fsync(fd)
    return keep


def _chained(lines: list[bytes], previous: str) -> list[bytes]:
    """Return the JSON objects with two more keys at the end: hashes of the previous line and of the line so far."""
    chained = []
    for line in lines:
        content = line[:-1] + f',"{CHAIN_KEY}":"{previous}"'.encode()
        suffix = _LINE_SUFFIX.replace(NO_LINE, hashlib.sha256(content).hexdigest())
        chained.append(content + suffix.encode())
        previous = hashlib.sha256(chained[-1]).hexdigest()
    return chained


def _last_sha256(fd: int, size: int) -> str:
    """Return the SHA-256 of the last line of a file that ends in a newline; zeros for an empty file."""
    data = _last_lines(fd, size).removesuffix(b"\n")
    return hashlib.sha256(data[data.rfind(b"\n") + 1 :]).hexdigest() if size else NO_LINE


def _last_lines(fd: int, size: int) -> bytes:
    """Return the end of the file, with at least its last line and the newline before it."""
    data = b""
    while len(data) < size and data.count(b"\n", 0, max(len(data) - 1, 0)) == 0:
        start = max(0, size - len(data) - _BLOCK)
        data = os.pread(fd, size - len(data) - start, start) + data
    return data


def _torn_tail(data: bytes) -> bytes:
    """Return what follows the last complete line. JSON has no raw NUL, so a last line with one is incomplete."""
    if not data:
        return b""
    end = len(data) - 1 if data.endswith(b"\n") else len(data)
    last = data[data.rfind(b"\n", 0, end) + 1 :]
    return last if not last.endswith(b"\n") or b"\0" in last else b""


def _parse(line: bytes) -> dict[str, Any]:
    try:
        value = _DECODER.decode(line.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError) as error:
        raise ContractError(f"the line is damaged: {error}") from error
    if not isinstance(value, dict):
        raise ContractError("the line is not a JSON object")
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


_DECODER = json.JSONDecoder(parse_constant=_no_constant)  # one for all lines: building one costs as much as a line


ContractT = TypeVar("ContractT", bound=Contract)


def read_contracts(path: Path, kind: type[ContractT]) -> list[ContractT]:
    """Return the contract of each line; [] if there is no file. Raises ContractError for a damaged line."""
    if not path.is_file():
        return []
    return [kind.read(line, location=f"{path}:{number}") for number, line in enumerate(read(path), start=1)]
