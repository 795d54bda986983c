"""JSON lines that survive a crash: a line counts once its newline is on disk."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from autoqec.errors import ContractError, StorageError, UsageError
from autoqec.store import atomic

_BLOCK = 1 << 16
CHAIN_KEY = "prev_sha256"
_GENESIS = "0" * 64


@dataclass(frozen=True)
class Chain:
    """Where a file's hash chain stands: each line holds the SHA-256 of the bytes of the line before it.

    sha256: of the last line. begun: a chained line was read, so that every later one must be; files of earlier versions
    begin without.
    """

    sha256: str = _GENESIS
    begun: bool = False

    def follow(self, line: bytes, value: dict[str, Any], location: str) -> Chain:
        """The chain after one more line, whose key is taken out of `value`. ContractError where it is broken."""
        found = value.pop(CHAIN_KEY, None)
        if found is None and self.begun:
            raise ContractError(f"the hash chain is broken: `{CHAIN_KEY}` is missing", location=location)
        if found is not None and found != self.sha256:
            what = f"`{CHAIN_KEY}` is {found}, but the line before has {self.sha256}"
            raise ContractError(f"the hash chain is broken: {what}", location=location)
        return Chain(hashlib.sha256(line).hexdigest(), self.begun or found is not None)


def append(path: Path | str, value: Any, *, salvage: Path | None = None, chained: bool = False) -> None:
    """Append `value` as one line; durable on return.

    A torn tail (a line without newline, or holding NUL bytes after a power cut) is moved to
    `salvage` (default: `salvage/` beside the file) first. Writers exclude each other by flock on the file.
    On failure the file is cut back to what it was. Raises StorageError; ValueError for NaN.
    chained: the line also holds the hash of the line before it (`Chain`).
    """
    append_all(path, [value], salvage=salvage, chained=chained)


def append_all(path: Path | str, values: Iterable[Any], *, salvage: Path | None = None, chained: bool = False) -> None:
    """As `append`, several lines by one write: after a crash the first so many of them are there, whole."""
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
    """Every whole line; [] where there is no file; a torn last line is left out.

    Raises ContractError naming file and line for a damaged line anywhere else.
    """
    return read_since(path, 0, 0)[0]


def read_since(path: Path | str, start: int, lines: int) -> tuple[list[dict[str, Any]], int]:
    """As `read`, from byte `start`, before which stand `lines` whole lines; and the byte that the last one ends at."""
    found, end = _whole_lines(Path(path), start, lines)
    return [_parse(line, location) for line, location in found], end


def read_chained(path: Path | str, start: int, lines: int, chain: Chain) -> tuple[list[dict[str, Any]], int, Chain]:
    """As `read_since`, following the hash chain from where it stood; and where it stands after the last line."""
    found, end = _whole_lines(Path(path), start, lines)
    values = []
    for line, location in found:
        values.append(_parse(line, location))
        chain = chain.follow(line, values[-1], location)
    return values, end, chain


def _whole_lines(path: Path, start: int, lines: int) -> tuple[list[tuple[bytes, str]], int]:
    """The whole lines from byte `start`, each with its place, and the byte that the last one ends at."""
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
    numbered = enumerate(complete.split(b"\n")[:-1], start=lines + 1)
    return [(line, f"{path}:{number}") for number, line in numbered], start + len(complete)


def is_torn(path: Path | str) -> bool:
    """Whether the last line was never written out."""
    path = Path(path)
    if not path.is_file():
        return False
    with atomic.storage_errors(path), path.open("rb") as stream:
        return bool(_torn_tail(_last_lines(stream.fileno(), os.fstat(stream.fileno()).st_size)))


def repair(path: Path | str, *, salvage: Path) -> None:
    """Move a torn tail of a file that is there to `salvage`, as the next `append` would."""
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
    """Cut a torn tail off, its bytes kept; returns the size that is whole."""
    size = os.fstat(fd).st_size
    torn = _torn_tail(_last_lines(fd, size))
    if not torn:
        return size
    keep = size - len(torn)
    atomic.make_dir(salvage)
    # The name is a function of place and bytes: healing that is killed and repeated saves the same file.
    name = f"{path.name}.{keep}.{hashlib.sha256(torn).hexdigest()[:12]}.torn"
    atomic.write_bytes(salvage / name, torn)
    os.ftruncate(fd, keep)
    os.fsync(fd)
    return keep


def _chained(lines: list[bytes], previous: str) -> list[bytes]:
    """JSON objects with the hash of the line before each as their last key."""
    chained = []
    for line in lines:
        chained.append(line[:-1] + f',"{CHAIN_KEY}":"{previous}"}}'.encode())
        previous = hashlib.sha256(chained[-1]).hexdigest()
    return chained


def _last_sha256(fd: int, size: int) -> str:
    """SHA-256 of the last line of a file that ends in a newline; of an empty file, zeros."""
    data = _last_lines(fd, size).removesuffix(b"\n")
    return hashlib.sha256(data[data.rfind(b"\n") + 1 :]).hexdigest() if size else _GENESIS


def _last_lines(fd: int, size: int) -> bytes:
    """The end of the file, long enough to hold its last line and the newline before it."""
    data = b""
    while len(data) < size and data.count(b"\n", 0, max(len(data) - 1, 0)) == 0:
        start = max(0, size - len(data) - _BLOCK)
        data = os.pread(fd, size - len(data) - start, start) + data
    return data


def _torn_tail(data: bytes) -> bytes:
    """What follows the last whole line. JSON holds no raw NUL: a last line with one was never written out."""
    if not data:
        return b""
    end = len(data) - 1 if data.endswith(b"\n") else len(data)
    last = data[data.rfind(b"\n", 0, end) + 1 :]
    return last if not last.endswith(b"\n") or b"\0" in last else b""


def _parse(line: bytes, location: str) -> dict[str, Any]:
    try:
        value = json.loads(line, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise ContractError(f"the line is damaged: {error}", location=location) from error
    if not isinstance(value, dict):
        raise ContractError("the line holds no JSON object", location=location)
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")
