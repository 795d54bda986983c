"""Freeze an artifact, hash it, and check it against the round's manifest."""

from __future__ import annotations

import os
import shutil
import stat
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

from autoqec.contracts.base import sha256_bytes
from autoqec.contracts.dsl import PredecoderDSL
from autoqec.contracts.provenance import Manifest
from autoqec.errors import ContractError, UsageError
from autoqec.installation import PACKAGE_DIR
from autoqec.store.layout import EDITABLE_CONFIG
from autoqec.system import sandbox
from autoqec.verification.shot_stream import artifact_sha256

ZIP_ENTRY_BYTES, MAX_ZIP_ENTRIES = 256, 64  # zip overhead per tensor in a torch archive; tensors that it is granted to


@dataclass(frozen=True)
class FrozenArtifact:
    """A private copy of the artifact: later changes to the round's files have no effect."""

    dir: Path
    checkpoint: Path
    modules_dir: Path | None
    sha256: str
    sandbox_backend: sandbox.SandboxBackend
    hidden_paths: tuple[Path, ...] = ()


def freeze(
    checkpoint: Path,
    dsl: PredecoderDSL,
    branch_modules: Path | None,
    directory: Path,
    hidden_paths: tuple[Path, ...] = (),
) -> FrozenArtifact:
    """Copy checkpoint and editable modules into `directory` and hash the copy.

    Args:
        checkpoint: The round's weights.
        dsl: The round's config, which is hashed with them.
        directory: Receives the copy in `artifact/`.
        branch_modules: The branch's editable modules; None if only trusted code runs.
        hidden_paths: Paths that no candidate process may see.

    Raises:
        ContractError: A file is missing or is not a regular file.
        UsageError: The branch has code of its own and no sandbox is available.
    """
    inside = directory / "artifact"
    inside.mkdir()
    copy = inside / "checkpoint.pt"
    _copy_file(checkpoint, copy)
    modules = None
    if branch_modules is not None:
        modules = inside / "modules"
        _copy_tree(branch_modules, modules)
    sandbox_backend = sandbox.probe()
    if modules is not None and sandbox_backend == "none":
        raise UsageError(
            "branch code is not verified without a sandbox, and none is available",
            location="sandbox",
            hint=f"{sandbox.INSTALL} (a branch that changes only predecoder.yaml needs no sandbox)",
        )
    return FrozenArtifact(inside, copy, modules, artifact_sha256(copy, dsl, modules), sandbox_backend, hidden_paths)


def _copy_file(source: Path, target: Path) -> None:
    try:
        fd = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as stream:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise ContractError("not a regular file", location=str(source), hint="run the round again")
            with target.open("xb") as out:
                shutil.copyfileobj(stream, out, 2**20)
    except OSError as error:
        raise ContractError(
            f"cannot be read ({error.strerror})", location=str(source), hint="run the round again"
        ) from error


def _copy_tree(source: Path, target: Path) -> None:
    """Copy regular files only: symbolic links and byte code are left out, as in the hash."""
    if not source.is_dir():
        raise ContractError(
            "the editable modules are not a directory", location=str(source), hint="check out the branch"
        )
    for where, folders, names in os.walk(source):
        folders[:] = [name for name in folders if name != "__pycache__"]
        here = target / Path(where).relative_to(source)
        here.mkdir()
        for name in names:
            path = Path(where, name)
            if path.is_file() and not path.is_symlink() and path.suffix != ".pyc":
                _copy_file(path, here / name)


def stored_bytes(checkpoint: Path) -> int:
    """Return the bytes of tensors in a torch archive, from its zip directory alone; 0 if it is not an archive."""
    try:
        with zipfile.ZipFile(checkpoint) as archive:
            return sum(item.file_size for item in archive.infolist() if "/data/" in item.filename)
    except (zipfile.BadZipFile, NotImplementedError, UnicodeDecodeError, OSError):
        return 0


def uncounted_bytes(frozen: FrozenArtifact) -> int:
    """Return the bytes in which branch code could store weights other than as tensors; 0 for a branch without code.

    Counted are the compressed bytes of its files beyond the trusted files of the same names, and the bytes of the
    checkpoint file beyond tensors and the overhead of a torch archive. Code compresses well; weights written into it
    do not, in any encoding.
    """
    if frozen.modules_dir is None:
        return 0
    try:
        with zipfile.ZipFile(frozen.checkpoint) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, NotImplementedError, UnicodeDecodeError, OSError):
        entries = []  # not a torch archive: all of its bytes count
    # Either size in a zip directory can be false: only bytes that `stored_bytes` counted are tensors here.
    tensors = sum(min(item.compress_size, item.file_size) for item in entries if "/data/" in item.filename)
    rest = frozen.checkpoint.stat().st_size - tensors - ZIP_ENTRY_BYTES * min(len(entries), MAX_ZIP_ENTRIES)
    return max(0, rest) + _code_bytes(frozen.modules_dir)


def _code_bytes(modules_dir: Path) -> int:
    own, total = PACKAGE_DIR / "decoders" / "modules", 0
    for path in modules_dir.rglob("*"):
        if path.is_file() and path.name != Path(EDITABLE_CONFIG).name:
            trusted = own / path.relative_to(modules_dir)
            trusted_size = len(zlib.compress(trusted.read_bytes(), 9)) if trusted.is_file() else 0
            total += max(0, len(zlib.compress(path.read_bytes(), 9)) - trusted_size)
    return total


def check_manifest(manifest: Manifest | None, env_sha256: str, frozen: FrozenArtifact, where: str) -> None:
    """Check env and checkpoint against those that the round recorded.

    Raises:
        ContractError: They differ; the message names both hashes.
    """
    if manifest is None:
        return
    if manifest.environment.env_yaml_sha256 != env_sha256:
        raise ContractError(
            f"the round was run on env {manifest.environment.env_yaml_sha256}, this env is {env_sha256}",
            location=where,
            hint="verify it with the env.yaml of its own run",
        )
    weights = sha256_bytes(frozen.checkpoint.read_bytes())
    recorded_sha256 = {artifact.name: artifact.sha256 for artifact in manifest.artifacts}.get("checkpoint.pt")
    if recorded_sha256 not in (None, weights):
        raise ContractError(
            f"the round recorded checkpoint {recorded_sha256}, this one is {weights}",
            location=where,
            hint="run the round again",
        )
