"""Reading of large files of recorded shots: progress reports, and intermediate results that survive an interruption.

Intermediate results are kept in the user's cache directory, per directory of shots, until a command has finished. They
are used again only by the same code, and if every file that they were computed from has the same size, times and inode.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np

from autoqec.contracts.base import canonical_json
from autoqec.contracts.events import OnEvent, ShotsRead
from autoqec.errors import StorageError
from autoqec.store import atomic
from autoqec.store.run_log import LOGGER
from autoqec.system import machine

SEGMENT = 1 << 28  # bytes between two saves; larger files are hashed in segments of this size
SMALLEST_SAVED = 1 << 24  # bytes; shorter readings are repeated rather than saved
HASHED = 1 << 20  # bytes read at a time
DIGEST = 32  # bytes

OnRead = Callable[[str, int, int | None], None]  # what is read, how much so far, and in all if that is known
Part = TypeVar("Part")


def as_events(on_event: OnEvent) -> OnRead:
    """Return a callback for a reading that reports it as events."""

    def on_read(what: str, done: int, total: int | None) -> None:
        on_event(ShotsRead(what=what, done=done, total=total))

    return on_read


class Reading:
    """How the reading of files is reported and resumed.

    Use it as a context manager: intermediate results remain only if the block is interrupted.

    Attributes:
        on_read: Called when another hundredth of a file has been read.
        state: Directory of intermediate results; None keeps none.
    """

    def __init__(self, on_read: OnRead = lambda label, done, total: None, state: Path | None = None) -> None:
        self.on_read, self.state = on_read, state
        self._reported: tuple[str, int] | None = None

    @classmethod
    def resumable(cls, directory: Path, on_read: OnRead = lambda label, done, total: None) -> Reading:
        """Return a reading of the files in `directory` that a later command can resume."""
        root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        key = hashlib.sha256(str(directory.resolve()).encode()).hexdigest()[:16]
        return cls(on_read, root / "autoqec" / "recorded" / key)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if error is None or not issubclass(error, KeyboardInterrupt):
            self.finish()

    def report(self, label: str, done: int, total: int | None) -> None:
        """Report an amount that was read, if it is another hundredth."""
        share = (label, done // SMALLEST_SAVED if total is None else 100 * done // max(total, 1))
        if share != self._reported:
            self._reported = share
            self.on_read(label, done, total)

    def watch(
        self, label: str, parts: Iterable[Part], total: int | None, size: Callable[[Part], int]
    ) -> Iterator[Part]:
        """Yield parts unchanged and report how much of `total` they are together."""
        done = 0
        for part in parts:
            yield part
            done += size(part)
            self.report(label, done, total)

    def saved(self, name: str, sources: Iterable[Path], **inputs: Any) -> Saved:
        """Return the place of intermediate results that are computed from files and other inputs.

        Args:
            name: Tells the results in one directory of shots apart.
            sources: The files.
            inputs: What else they depend on, as JSON can hold it; results of other inputs are not used.
        """
        path = None if self.state is None else self.state / f"{name}.npz"
        return Saved(path, tuple(sources), canonical_json(inputs))

    def finish(self) -> None:
        """Delete all intermediate results."""
        if self.state is not None:
            shutil.rmtree(self.state, ignore_errors=True)
            with suppress(OSError):
                self.state.parent.rmdir()


SILENT = Reading()  # reports nothing, and reads every file from its start


@dataclass(frozen=True)
class Saved:
    """Place of arrays that an interrupted command saves for the next one.

    Attributes:
        path: File of the arrays; None saves nothing.
        sources: Files that they are computed from.
        inputs: Everything else that they are computed from but the code, as JSON.
    """

    path: Path | None
    sources: tuple[Path, ...]
    inputs: str
    began: list[bytes] = field(default_factory=list, compare=False)  # identity of the files when reading began

    def load(self, **shapes: tuple[int, ...]) -> dict[str, np.ndarray]:
        """Return the saved arrays; empty if there are none, they are not plausible, or an input has changed since.

        Args:
            shapes: Shape of each array, -1 for any length. All values must be finite and not negative.
        """
        if self.path is None:
            return {}
        try:
            self.began[:] = [self._made_from()]
            with np.load(io.BytesIO(atomic.read_bytes(self.path)), allow_pickle=False) as stored:
                arrays = dict(stored)
            if [arrays.pop("made_from").tobytes()] == self.began and _plausible(arrays, shapes):
                return arrays
        except Exception as error:  # not there, or damaged: an npz file raises many types
            LOGGER.debug("no saved reading %s: %s", self.path, error)
        return {}

    def save(self, **arrays: np.ndarray) -> None:
        """Replace the saved arrays; a cache that cannot be written saves nothing."""
        if self.path is None:
            return
        stream = io.BytesIO()
        try:
            made_from = self._made_from()
            if [made_from] != (self.began or [made_from]):
                LOGGER.info("reading cannot be resumed: a file has changed since it began")
                return
            np.savez(stream, made_from=np.frombuffer(made_from, np.uint8), **arrays)  # type: ignore[arg-type]
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            atomic.write_bytes(self.path, stream.getvalue(), mode=0o600)
        except (OSError, StorageError) as error:
            LOGGER.info("reading cannot be resumed: %s", error)

    def _made_from(self) -> bytes:
        files = []
        for path in self.sources:
            status = path.stat()
            files.append([str(path), status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino])
        return json.dumps([_code_sha256(), self.inputs, files]).encode()


@cache
def _code_sha256() -> str:
    return machine.code_sha256()


def _plausible(arrays: dict[str, np.ndarray], shapes: dict[str, tuple[int, ...]]) -> bool:
    """Return whether the arrays have the expected shapes (-1: any length) and hold counts or flags."""
    if arrays.keys() != shapes.keys():
        return False
    for name, array in arrays.items():
        expected = shapes[name]
        if array.ndim != len(expected):
            return False
        if any(length not in (-1, actual) for length, actual in zip(expected, array.shape, strict=True)):
            return False
        if array.dtype != bool and not (np.isfinite(array) & (array >= 0)).all():
            return False
    return True


def hash_file(path: Path, name: str, segment_bytes: int | None, reading: Reading) -> str:
    """Return the SHA-256 of a file, or with segments that of the SHA-256 digests of its segments, one after the other.

    Args:
        path: The file.
        name: Its name in reports.
        segment_bytes: Size of a segment; None hashes the content as a whole, which cannot be resumed.
        reading: Reports progress and keeps the digests of finished segments.
    """
    total = path.stat().st_size
    saved = reading.saved(f"hash-{hashlib.sha256(name.encode()).hexdigest()[:16]}", [path], segment_bytes=segment_bytes)
    digests = bytearray()
    if segment_bytes is not None and (found := saved.load(digests=(-1, DIGEST))):
        digests += found["digests"].astype(np.uint8).tobytes()
    with path.open("rb") as stream:
        done = len(digests) // DIGEST * (segment_bytes or 0)
        stream.seek(done)
        while True:
            digest, size = hashlib.sha256(), 0
            while part := stream.read(HASHED if segment_bytes is None else min(HASHED, segment_bytes - size)):
                digest.update(part)
                size += len(part)
                reading.report(f"hashing {name}", done + size, total)
            if segment_bytes is None:
                return digest.hexdigest()
            if size == 0:
                return hashlib.sha256(digests).hexdigest()
            digests += digest.digest()
            done += size
            if size >= SMALLEST_SAVED:
                LOGGER.info("%s: %d MiB hashed", name, done >> 20)
                saved.save(digests=np.frombuffer(bytes(digests), np.uint8).reshape(-1, DIGEST))
