"""Freezing an artifact, and starting the process that answers for it."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import stat
import sys
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import autoqec
from autoqec.contracts.base import sha256_bytes
from autoqec.contracts.dsl import PredecoderDSL
from autoqec.contracts.profiles import Profile
from autoqec.contracts.provenance import Manifest
from autoqec.errors import ContractError, UsageError
from autoqec.store.layout import EDITABLE_CONFIG, RoundLayout
from autoqec.system import sandbox
from autoqec.system.process import child
from autoqec.verification.candidate import decoder_libraries
from autoqec.verification.candidate.client import CandidateClient
from autoqec.verification.shot_stream import artifact_sha256

MAX_PROCESS_S = 14 * 24 * 3600.0
ZIP_ENTRY_BYTES, MAX_ZIP_ENTRIES = 256, 64  # what torch writes round a tensor, for as many as are let pass
DISK_MB = 16.0  # the size limit of a candidate's log, and of its scratch directory
ANSWER_TIMEOUT_S = 300.0  # the longest wait for one chunk, however much time is left


@dataclass(frozen=True)
class FrozenArtifact:
    """The judge's own copy of what is judged: nothing that happens to the round's files matters any more."""

    dir: Path
    checkpoint: Path
    modules_dir: Path | None
    sha256: str
    sandbox_backend: sandbox.SandboxBackend
    hidden_paths: tuple[Path, ...] = ()


def freeze(
    checkpoint: Path, dsl: PredecoderDSL, surface: Path | None, directory: Path, hidden_paths: tuple[Path, ...] = ()
) -> FrozenArtifact:
    """Copy checkpoint and surface into `directory`. closed: what no candidate may see.

    ContractError where one is missing or no regular file; UsageError for branch code where nothing confines it.
    """
    inside = directory / "artifact"
    inside.mkdir()
    copy = inside / "checkpoint.pt"
    _copy_file(checkpoint, copy)
    modules = None
    if surface is not None:
        modules = inside / "modules"
        _copy_tree(surface, modules)
    sandbox_backend = sandbox.probe()
    if modules is not None and sandbox_backend == "none":
        raise UsageError(
            "a branch's own code is not judged without a sandbox, and none runs here",
            location="sandbox",
            hint=f"{sandbox.INSTALL} (a branch that changes predecoder.yaml alone can be judged without)",
        )
    return FrozenArtifact(inside, copy, modules, artifact_sha256(copy, dsl, modules), sandbox_backend, hidden_paths)


def _copy_file(source: Path, target: Path) -> None:
    try:
        fd = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as stream:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise ContractError("no regular file", location=str(source), hint="run the round again")
            with target.open("xb") as out:
                shutil.copyfileobj(stream, out, 2**20)
    except OSError as error:
        raise ContractError(
            f"can't be read ({error.strerror})", location=str(source), hint="run the round again"
        ) from error


def _copy_tree(source: Path, target: Path) -> None:
    """Regular files only: links and byte code stay behind, as they do in the hash."""
    if not source.is_dir():
        raise ContractError("the search surface is no directory", location=str(source), hint="check out the branch")
    for where, folders, names in os.walk(source):
        folders[:] = [name for name in folders if name != "__pycache__"]
        here = target / Path(where).relative_to(source)
        here.mkdir()
        for name in names:
            path = Path(where, name)
            if path.is_file() and not path.is_symlink() and path.suffix != ".pyc":
                _copy_file(path, here / name)


def stored_bytes(checkpoint: Path) -> int:
    """Bytes of tensors in a torch archive, read from its zip directory alone: nothing is unpickled. 0: no archive."""
    try:
        with zipfile.ZipFile(checkpoint) as archive:
            return sum(item.file_size for item in archive.infolist() if "/data/" in item.filename)
    except (zipfile.BadZipFile, NotImplementedError, UnicodeDecodeError, OSError):
        return 0


def uncounted_bytes(frozen: FrozenArtifact) -> int:
    """Where a branch's own code could keep weights that are no tensor: compressed bytes of its files beyond the trusted
    files of the same names, and of the checkpoint's file beyond tensors and a torch archive's own bookkeeping. Code
    compresses, weights that are written into it do not, whatever they are written as. 0 for a branch without code."""
    if frozen.modules_dir is None:
        return 0
    try:
        with zipfile.ZipFile(frozen.checkpoint) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, NotImplementedError, UnicodeDecodeError, OSError):
        entries = []  # no torch archive: all of it is loose
    # A directory can lie about either size: what `stored_bytes` did not count is no tensor here.
    tensors = sum(min(item.compress_size, item.file_size) for item in entries if "/data/" in item.filename)
    rest = frozen.checkpoint.stat().st_size - tensors - ZIP_ENTRY_BYTES * min(len(entries), MAX_ZIP_ENTRIES)
    return max(0, rest) + _code_bytes(frozen.modules_dir)


def _code_bytes(modules_dir: Path) -> int:
    own, total = Path(autoqec.__file__).parent / "decoders" / "modules", 0
    for path in modules_dir.rglob("*"):
        if path.is_file() and path.name != Path(EDITABLE_CONFIG).name:
            trusted = own / path.relative_to(modules_dir)
            trusted_size = len(zlib.compress(trusted.read_bytes(), 9)) if trusted.is_file() else 0
            total += max(0, len(zlib.compress(path.read_bytes(), 9)) - trusted_size)
    return total


def start(frozen: FrozenArtifact, env_text: str, dsl: PredecoderDSL, name: str, profile: Profile) -> CandidateClient:
    """A candidate process under the profile's limits, its spec sent. `name` tells two of one judgement apart.

    UsageError where the sandbox can't keep the run out of its sight.
    """
    argv = [sys.executable, "-P", "-s", "-m", "autoqec.verification.candidate.process"]
    # Each process has a copy of the artifact and a scratch directory of its own, below a name that cannot be guessed:
    # Landlock lets a process stat any path that it knows, so a shared or guessable one would carry notes to another.
    private = frozen.dir.parent / secrets.token_hex(16)
    artifact, scratch = private / "artifact", private / "scratch"
    shutil.copytree(frozen.dir, artifact)
    scratch.mkdir()
    policy = sandbox.SandboxPolicy(
        read_only=(artifact,),
        hidden_paths=frozen.hidden_paths,
        scratch=scratch,
        hidden=decoder_libraries.files(),
        fork=False,  # CPU time of a process that its parent does not wait for is in no account
        tmp_mb=int(DISK_MB),
        cwd=artifact,
        env={"PYTHONPATH": str(Path(autoqec.__file__).resolve().parents[1])},  # this package, not another installed one
    )
    wrapped = sandbox.wrap(argv, policy, sandbox_backend=frozen.sandbox_backend)
    # The link counts the time that the judge waits; the judge's own decoding is not the candidate's to answer for.
    limits = child.Limits(
        wallclock_s=MAX_PROCESS_S, memory_gb=profile.memory_gb, disk_mb=DISK_MB, disk_dir=scratch, processes=64
    )
    log = frozen.dir.parent / f"{name}.log"
    process = child.start(wrapped.argv, cwd=artifact, env=wrapped.env, limits=limits, stderr=log)
    client = CandidateClient(process, answer_s=ANSWER_TIMEOUT_S, total_s=profile.judge_wallclock_s)
    client.send_spec(
        {
            "env_text": env_text,
            "checkpoint": str(artifact / frozen.checkpoint.name),
            "dsl_config": dsl.config(),
            "modules_dir": str(artifact / frozen.modules_dir.name) if frozen.modules_dir else None,
        }
    )
    return client


def load_manifest(round_dir: RoundLayout) -> Manifest | None:
    """The round's manifest, where it has one."""
    try:
        return Manifest.read(json.loads(round_dir.manifest.read_text()), location=str(round_dir.manifest))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise ContractError(f"no JSON ({error})", location=str(round_dir.manifest)) from error


def check_manifest(manifest: Manifest | None, env_sha256: str, frozen: FrozenArtifact, where: str) -> None:
    """Refuse an env or a checkpoint other than the round recorded; ContractError names both hashes."""
    if manifest is None:
        return
    if manifest.environment.env_yaml_sha256 != env_sha256:
        raise ContractError(
            f"the round was run on env {manifest.environment.env_yaml_sha256}, this env is {env_sha256}",
            location=where,
            hint="judge it with the env.yaml of its own run",
        )
    weights = sha256_bytes(frozen.checkpoint.read_bytes())
    recorded_sha256 = {artifact.name: artifact.sha256 for artifact in manifest.artifacts}.get("checkpoint.pt")
    if recorded_sha256 not in (None, weights):
        raise ContractError(
            f"the round left checkpoint {recorded_sha256}, this one is {weights}",
            location=where,
            hint="run the round again",
        )
