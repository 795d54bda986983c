"""File format of archives: an uncompressed tar with one canonical encoding, and a reader that accepts no other."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import stat
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from autoqec.contracts.base import sha256_bytes
from autoqec.contracts.names import plain_path
from autoqec.contracts.provenance import MAX_BYTES, MAX_MEMBERS, ArchiveFile, ArchiveManifest
from autoqec.errors import ContractError, UsageError
from autoqec.store import atomic

MANIFEST, SEAL = "archive.json", "archive.sha256"
_MAX_MANIFEST = 64 * 2**20
_BLOCK, _CHUNK = tarfile.BLOCKSIZE, 2**20
_MAX_EXTENDED = 2**13  # an extended header holds a path only
_PATH = re.compile(rb"\A\d+ path=(.*)\n\Z", re.DOTALL)
_GZIP = b"\x1f\x8b"
_AGAIN = "fetch the archive again"


def pack(manifest: ArchiveManifest, members: Mapping[str, bytes]) -> bytes:
    """Return the bytes of the archive. Without times, owners or compression, equal members give equal bytes."""
    text = json.dumps(manifest.dump(), indent=1, ensure_ascii=False).encode()
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, data in {MANIFEST: text, SEAL: _seal(text), **members}.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
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
        fd = os.open(archive, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise UsageError("the file does not exist", location=str(archive), hint="autoqec package-run RUN") from error
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", location=str(archive)) from error
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        os.close(fd)
        raise UsageError("is not a regular file", location=str(archive))
    with os.fdopen(fd, "rb") as stream:
        if status.st_size > MAX_BYTES:
            raise ContractError(f"is larger than {MAX_BYTES} bytes", location=str(archive))
        if stream.peek(2).startswith(_GZIP):
            hint = "gunzip it first; a model of the package: autoqec models verify NAME"
            raise UsageError("is compressed (gzip)", location=str(archive), hint=hint)
        return _unpack(_Reader(stream, status.st_size, str(archive)), into)


def _unpack(reader: _Reader, into: Path) -> ArchiveManifest:
    manifest = _manifest(reader)
    listed = {entry.name: entry for entry in manifest.files}
    found: set[str] = set()
    while (header := reader.header()) is not None:
        name, size = header
        if name in found or name in (MANIFEST, SEAL):
            raise reader.damaged(f"member {name!r} occurs twice")
        if name not in listed:
            raise reader.changed("was added", name)
        found.add(name)
        _extract(reader, listed[name], size, into)
    for name in sorted(listed.keys() - found):
        raise reader.changed("is missing", name)
    reader.end()
    atomic.sync_directories(into)
    return manifest


def _manifest(reader: _Reader) -> ArchiveManifest:
    """Read the manifest and its seal, which are the first two members."""
    parts = []
    for expected in (MANIFEST, SEAL):
        header = reader.header()
        if header is None or header[0] != expected:
            raise ContractError(f"does not contain {expected}: not an archive of a run", location=reader.location)
        if header[1] > _MAX_MANIFEST:
            raise reader.damaged(f"{expected} is larger than {_MAX_MANIFEST} bytes")
        parts.append(reader.take(header[1]))
        reader.padding(header[1])
    location = f"{reader.location}, {MANIFEST}"
    if parts[1] != _seal(parts[0]):
        raise ContractError(f"is damaged (its SHA-256 is not the one in {SEAL})", location=location)
    try:
        data = json.loads(parts[0])
    except (ValueError, RecursionError) as error:
        raise ContractError(f"is damaged ({error})", location=location) from error
    return ArchiveManifest.read(data, location=location)


def _extract(reader: _Reader, expected: ArchiveFile, size: int, into: Path) -> None:
    if size != expected.bytes:
        raise reader.changed(f"was changed: {expected.bytes} bytes are listed, {size} are present", expected.name)
    digest, left = hashlib.sha256(), size
    with atomic.new_file(into, expected.name) as fd:
        while left:
            chunk = reader.take(min(left, _CHUNK))
            left -= len(chunk)
            digest.update(chunk)
            with atomic.storage_errors(into / expected.name):
                atomic.write_all(fd, chunk)
    if digest.hexdigest() != expected.sha256:
        message = f"was changed: its SHA-256 is {digest.hexdigest()}, expected {expected.sha256}"
        raise reader.changed(message, expected.name)
    reader.padding(size)


class _Reader:
    """Sequential reader of an archive. Every header must equal, byte for byte, what `pack` writes for name and size.

    `tarfile` accepts more (sparse files, other tar variants, headers of any size), so it only parses single blocks.
    """

    def __init__(self, stream: BinaryIO, size: int, location: str) -> None:
        self.location = location
        self._stream, self._size, self._at, self._members = stream, size, 0, 0

    def damaged(self, what: str) -> ContractError:
        return ContractError(f"is damaged ({what})", location=self.location, hint=_AGAIN)

    def changed(self, what: str, name: str) -> ContractError:
        return ContractError(what, location=f"{self.location}, {name}", hint=_AGAIN)

    def take(self, size: int) -> bytes:
        data = self._stream.read(size)
        if len(data) != size:
            raise self.damaged(f"it ends at byte {self._at + len(data)}, inside a member")
        self._at += size
        return data

    def header(self) -> tuple[str, int] | None:
        """Return name and size of the next member; None at the end of the archive."""
        start, raw = self._at, self.take(_BLOCK)
        if not raw.strip(b"\0"):
            return None
        entry = self._entry(raw, start)
        name = entry.name
        if entry.type == tarfile.XHDTYPE and 0 < entry.size <= _MAX_EXTENDED:
            extended = self.take(_rounded(entry.size))
            block = self.take(_BLOCK)
            path = _PATH.match(extended[: entry.size])
            raw, entry = raw + extended + block, self._entry(block, start)
            name = path[1].decode("utf-8", "replace") if path else ""
        self._members += 1
        if self._members > MAX_MEMBERS:
            raise self.damaged(f"it has more than {MAX_MEMBERS} members")
        if not 0 <= entry.size <= self._size - self._at:
            raise self.damaged(f"member {name!r} claims {entry.size} bytes")
        self._check_spelling(name, entry, raw, start)
        return name, entry.size

    def _entry(self, block: bytes, start: int) -> tarfile.TarInfo:
        try:
            return tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except (tarfile.HeaderError, ValueError) as error:
            raise self.damaged(f"byte {start} of {self._size} does not start the header of a member") from error

    def _check_spelling(self, name: str, entry: tarfile.TarInfo, raw: bytes, start: int) -> None:
        try:
            if entry.type != tarfile.REGTYPE:
                raise ValueError("it is not a file")
            plain_path(name)
        except ValueError as error:
            raise self.damaged(f"member {name!r} is not a plain file with a plain name: {error}") from error
        only = tarfile.TarInfo(name)
        only.size = entry.size
        whole = only.tobuf(tarfile.PAX_FORMAT)
        if whole != raw:
            raise self._between(start + len(os.path.commonprefix([whole, raw])))

    def padding(self, size: int) -> None:
        """Read the padding after a member of `size` bytes."""
        start, fill = self._at, self.take(_rounded(size) - size)
        if fill.strip(b"\0"):
            raise self._between(start + len(fill) - len(fill.lstrip(b"\0")))

    def end(self) -> None:
        """Read the end of the archive: zeros up to a whole record."""
        start, length = self._at, -(-(self._at + _BLOCK) // tarfile.RECORDSIZE) * tarfile.RECORDSIZE
        rest = self._stream.read(length - start + 1)
        if rest.strip(b"\0") or start + len(rest) != length or self._size != length:
            raise self._between(start + len(rest) - len(rest.lstrip(b"\0")))

    def _between(self, at: int) -> ContractError:
        message = f"was changed between its members, first at byte {at} of {self._size}"
        return ContractError(message, location=self.location, hint=_AGAIN)


def _rounded(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK


def _seal(manifest: bytes) -> bytes:
    return sha256_bytes(manifest).encode() + b"\n"
