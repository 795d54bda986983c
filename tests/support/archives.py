"""Archives as an attacker could write them: consistent hashes over arbitrary contents."""

from __future__ import annotations

import copy
import hashlib
import io
import json
import os
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autoqec.contracts.provenance import ArchiveManifest
from autoqec.orchestrator.archive_format import unpack

MEASURED = Path(__file__).parents[1] / "data" / "run.tar"
GIT_ENV = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    **{f"GIT_{role}_{field}": "x" for role in ("AUTHOR", "COMMITTER") for field in ("NAME", "EMAIL")},
}


@dataclass
class Archive:
    """The parts of an archive, which tests change; `pack` writes them with matching hashes and seal."""

    manifest: dict[str, Any]
    members: dict[str, bytes]
    entries: list[tarfile.TarInfo] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path = MEASURED) -> Archive:
        with tarfile.open(path, "r:") as tar:
            members = {entry.name: tar.extractfile(entry).read() for entry in tar}  # type: ignore[union-attr]
        del members["archive.sha256"]
        return cls(json.loads(members.pop("archive.json")), members)

    def copy(self) -> Archive:
        return Archive(copy.deepcopy(self.manifest), dict(self.members), list(self.entries))

    @property
    def run_id(self) -> str:
        return str(self.manifest["run_id"])

    def pack(self, target: Path) -> Path:
        """Write the archive. `entries` are members that are not plain files; they follow the others."""
        self.manifest["files"] = [
            {"name": name, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            for name, data in sorted(self.members.items())
        ]
        return self.seal(target, json.dumps(self.manifest, indent=1, ensure_ascii=False).encode())

    def seal(self, target: Path, manifest: bytes) -> Path:
        """Write the archive with these bytes as its manifest."""
        seal = hashlib.sha256(manifest).hexdigest().encode() + b"\n"
        ordered = {name: self.members[name] for name in sorted(self.members, key=lambda name: name.split("/"))}
        members = {"archive.json": manifest, "archive.sha256": seal, **ordered}
        return write_tar(target, members.items(), self.entries)


def write_tar(target: Path, members: Iterable[tuple[str, bytes]], entries: Iterable[tarfile.TarInfo] = ()) -> Path:
    with tarfile.open(target, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, data in members:
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
        for entry in entries:
            tar.addfile(entry, io.BytesIO(bytes(entry.size)) if entry.isreg() else None)
    return target


def unpacked(path: Path) -> tuple[ArchiveManifest, dict[str, bytes]]:
    """Return manifest and members of an archive as `replay` reads them."""
    with tempfile.TemporaryDirectory() as name:
        manifest = unpack(path, Path(name))
        return manifest, {entry.name: (Path(name) / entry.name).read_bytes() for entry in manifest.files}


def special(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    """Return a member that is a link, a device, a pipe or a directory."""
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = kind, target
    return entry


def git(root: Path, *argv: str, stdin: bytes | None = None) -> str:
    done = subprocess.run(["git", *argv], cwd=root, env=GIT_ENV, input=stdin, capture_output=True, check=True)
    return done.stdout.decode().strip()


def with_baseline(archive: Archive, scratch: Path, build: Callable[[Path], str]) -> Archive:
    """Return the archive with one more commit on its baseline; `build` writes its tree and returns the id."""
    repo = scratch / "repo"
    repo.mkdir(parents=True)
    git(repo, "init", "-q")
    (scratch / "in.bundle").write_bytes(archive.members["branches.bundle"])
    refs: Mapping[str, str] = archive.manifest["refs"]
    git(repo, "fetch", "-q", str(scratch / "in.bundle"), *(f"{ref}:{ref}" for ref in refs))
    commit = git(repo, "commit-tree", "-m", "x", "-p", archive.manifest["baseline_sha"], build(repo))
    changed = archive.copy()
    extra = f"refs/heads/exp/{archive.run_id}/90-extra"
    git(repo, "update-ref", extra, commit)
    changed.manifest["refs"][extra] = commit
    changed.manifest["baseline_sha"] = commit
    info = json.loads(changed.members["run/run.json"])
    changed.members["run/run.json"] = json.dumps({**info, "baseline_sha": commit}).encode()
    git(repo, "bundle", "create", "-q", str(scratch / "out.bundle"), *changed.manifest["refs"])
    changed.members["branches.bundle"] = (scratch / "out.bundle").read_bytes()
    return changed


def tree_of(repo: Path, entries: Iterable[tuple[str, str, bytes]]) -> str:
    """Write a tree object of (mode, name, content); the content of a `40000` entry is the id of a tree."""
    raw = b""
    for mode, name, content in entries:
        oid = content.decode() if mode == "40000" else git(repo, "hash-object", "-w", "--stdin", stdin=content)
        raw += f"{mode} {name}\0".encode() + bytes.fromhex(oid)
    return git(repo, "hash-object", "-w", "-t", "tree", "--literally", "--stdin", stdin=raw)


def snapshot(root: Path) -> dict[str, tuple[int, bytes]]:
    """Return mode and content (or link target) of everything below `root`."""
    found = {}
    for path in sorted(root.rglob("*")):
        content = os.readlink(path).encode() if path.is_symlink() else path.read_bytes() if path.is_file() else b""
        found[str(path.relative_to(root))] = (path.lstat().st_mode, content)
    return found
