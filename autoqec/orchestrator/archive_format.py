"""File format of archives: an uncompressed tar, which the manifest, its first member, determines but for the contents.

Equal members give equal bytes: there are no times and owners, and members are in the order of their paths. So a reader
knows every byte between the contents of members, and accepts no other; it parses only the size of the manifest.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from autoqec.contracts.base import sha256_bytes
from autoqec.contracts.provenance import MAX_BYTES, ArchiveFile, ArchiveManifest
from autoqec.errors import ContractError, UsageError
from autoqec.store import atomic

MANIFEST, SEAL = "archive.json", "archive.sha256"
_MAX_MANIFEST = 64 * 2**20
_BLOCK, _CHUNK = tarfile.BLOCKSIZE, 2**20
_GZIP = b"\x1f\x8b"


def pack(manifest: ArchiveManifest, members: Mapping[str, bytes]) -> bytes:
    """Return the bytes of the archive."""
    text = json.dumps(manifest.dump(), indent=1, ensure_ascii=False).encode()
    ordered = {name: members[name] for name in sorted(members, key=_position)}
    raw = io.BytesIO()
    for name, data in {MANIFEST: text, SEAL: _seal(text), **ordered}.items():
        raw.write(_header(name, len(data)) + data + _padding(len(data)))
    raw.write(_end(raw.tell()))
    return raw.getvalue()


def unpack(archive: Path, into: Path) -> ArchiveManifest:
    """Write the members of an archive below `into`, an empty private directory, and check every byte on the way.

    Args:
        archive: An archive from an untrusted source.
        into: Receives `branches.bundle` and `run/`. Its content after an exception must not be used.

    Returns:
        The manifest of the archive.

    Raises:
        UsageError: The file does not exist or cannot be read.
        ContractError: The archive is damaged, or a name, hash, size or field in it is not allowed; names the place.
    """
    try:
        with atomic.open_regular(archive) as stream:
            size = os.fstat(stream.fileno()).st_size
            if size > MAX_BYTES:
                raise ContractError(f"is larger than {MAX_BYTES} bytes", location=str(archive))
            if stream.peek(2).startswith(_GZIP):
                hint = "gunzip it first; a model of the package: autoqec models verify NAME"
                raise UsageError("is compressed (gzip)", location=str(archive), hint=hint)
            return _Reader(stream, size, str(archive)).unpack(into)
    except FileNotFoundError as error:
        raise UsageError("the file does not exist", location=str(archive), hint="autoqec package-run RUN") from error
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", location=str(archive)) from error


class _Reader:
    """Sequential reader of an archive."""

    def __init__(self, stream: BinaryIO, size: int, location: str) -> None:
        self._stream, self._size, self._location = stream, size, location

    def unpack(self, into: Path) -> ArchiveManifest:
        manifest = self._manifest()
        for entry in sorted(manifest.files, key=lambda entry: _position(entry.name)):
            self._expect(_header(entry.name, entry.bytes), entry.name)
            self._extract(entry, into)
            self._expect(_padding(entry.bytes), entry.name)
        self._expect(_end(self._stream.tell()), "its end")
        if self._stream.read(1):
            raise self._damaged("has more bytes than its manifest lists", "its end")
        atomic.sync_directories(into)
        return manifest

    def _manifest(self) -> ArchiveManifest:
        """Read the manifest and its seal, which are the first two members."""
        start = self._stream.read(_BLOCK)
        try:
            length = tarfile.TarInfo.frombuf(start, "utf-8", "surrogateescape").size
        except (tarfile.HeaderError, ValueError):
            length = -1
        if not 0 <= length <= _MAX_MANIFEST or start != _header(MANIFEST, length):
            raise ContractError("is not an archive of a run", location=self._location)
        text = self._stream.read(length)
        seal = _seal(text)
        self._expect(_padding(length) + _header(SEAL, len(seal)) + seal + _padding(len(seal)), MANIFEST)
        location = f"{self._location}, {MANIFEST}"
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ContractError(f"is damaged ({error})", location=location) from error
        return ArchiveManifest.read(data, location=location)

    def _extract(self, entry: ArchiveFile, into: Path) -> None:
        digest, left = hashlib.sha256(), entry.bytes
        with atomic.new_file(into, entry.name) as fd:
            while left and (chunk := self._stream.read(min(left, _CHUNK))):
                left -= len(chunk)
                digest.update(chunk)
                with atomic.storage_errors(into / entry.name):
                    atomic.write_all(fd, chunk)
        if left or digest.hexdigest() != entry.sha256:
            raise self._damaged(f"was changed: its SHA-256 is not {entry.sha256}", entry.name)

    def _expect(self, expected: bytes, name: str) -> None:
        """Read these bytes. Raises ContractError if the archive has others here."""
        at, found = self._stream.tell(), self._stream.read(len(expected))
        if found != expected:
            at += len(os.path.commonprefix([expected, found]))
            message = f"is damaged, changed or missing: byte {at} of {self._size} is not what the manifest implies"
            raise self._damaged(message, name)

    def _damaged(self, message: str, name: str) -> ContractError:
        return ContractError(message, location=f"{self._location}, {name}", hint="fetch the archive again")


def _position(name: str) -> list[str]:
    """Return the sort key of a member."""
    return name.split("/")


def _header(name: str, size: int) -> bytes:
    entry = tarfile.TarInfo(name)
    entry.size = size
    return entry.tobuf(tarfile.PAX_FORMAT)


def _padding(size: int) -> bytes:
    return bytes(-size % _BLOCK)


def _end(at: int) -> bytes:
    """Return the end of an archive after `at` bytes: two empty blocks, filled up to a whole record."""
    return bytes(2 * _BLOCK + -(at + 2 * _BLOCK) % tarfile.RECORDSIZE)


def _seal(manifest: bytes) -> bytes:
    return sha256_bytes(manifest).encode() + b"\n"
