"""A run in one file: every branch as a git bundle, the run's directory, and the hash of every byte of it."""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from autoqec.contracts.archive import ArchiveFile, ArchiveManifest
from autoqec.contracts.base import sha256_bytes
from autoqec.contracts.history import RunInfo
from autoqec.contracts.provenance import Manifest
from autoqec.errors import ContractError, InputError
from autoqec.orchestrator import verify_round
from autoqec.orchestrator.attempts import standings
from autoqec.orchestrator.gc import removed
from autoqec.orchestrator.memory import RunMemory
from autoqec.orchestrator.publish_secret import published_secret
from autoqec.orchestrator.recovery import inspect
from autoqec.orchestrator.recovery.plan import plan
from autoqec.store import atomic, files
from autoqec.store.history import History
from autoqec.store.layout import RoundLayout, RunLayout
from autoqec.system import machine, run_lock
from autoqec.system.git import GitFailed, Repo
from autoqec.system.scratch import scratch

MANIFEST, SEAL, BUNDLE, RUN = "archive.json", "archive.sha256", "branches.bundle", "run"
MAX_BYTES = 8 * 2**30
ENTRY_BYTES = 2**12  # at most, of headers and padding round a member, and of its line in the manifest
LEFT_BEHIND = ("owner.json", "live.json", "logs", "secret", "history.jsonl.lock", "attempts.jsonl.lock")


@dataclass(frozen=True)
class Restored:
    """What became of an archive. verdicts: round -> what was found; damage is raised, never listed."""

    layout: RunLayout
    verdicts: dict[int, str]
    agrees: bool


def package_run(layout: RunLayout, repo: Repo, out: Path, *, shots: bool = True) -> ArchiveManifest:
    """Write the archive, whole or not at all. The secret of a run that is not closed stays behind.

    shots: of a closed run, the judge's shots too, for whoever can't draw them alike. The run is held meanwhile, so that
    its files belong together. Raises InputError where another process holds it (named), a crash left it with work for
    recovery, it has no branch yet, `out` exists, or the archive would be larger than one that can be read back.
    """
    info = History(layout).info()
    if out.exists():
        raise InputError("is there already", where=str(out), mend=f"name another file, or rm {out}")
    with run_lock.hold(layout.root):
        undone = plan(inspect.gather(repo, layout))
        if undone:
            what = f"the run is not in line with its history ({undone[0].kind}: {undone[0].why})"
            raise InputError(what, where=str(layout.root), mend=undone[0].mend or f"autoqec reconcile {info.run_id}")
        manifest, packed = _archived(layout, repo, info, shots)
    atomic.write_bytes(out, packed)
    return manifest


def _archived(layout: RunLayout, repo: Repo, info: RunInfo, shots: bool) -> tuple[ArchiveManifest, bytes]:
    refs = {
        ref: sha
        for prefix in (f"refs/heads/exp/{info.run_id}", f"refs/heads/quarantine/{info.run_id}", layout.pin_prefix)
        for ref, sha in repo.refs(prefix).items()
    }
    if not refs:
        raise InputError("the run has no branch to carry away", where=info.run_id, mend="let it finish a round first")
    with scratch("archive") as directory:
        bundle = directory / BUNDLE
        repo.bundle_create(bundle, sorted(refs))
        members = {BUNDLE: bundle.read_bytes()}
        _add(members, _run_files(layout), mend=f"autoqec gc {layout.run_id}")
    if shots and layout.published.exists():
        _add(members, _drawn(layout), mend=f"autoqec package-run {layout.run_id} --no-shots")
    manifest = ArchiveManifest(
        run_id=info.run_id,
        closed=layout.published.exists(),
        baseline_sha=info.baseline_sha,
        baseline_ref=info.baseline_ref,
        code_sha256=info.code_sha256,
        refs=refs,
        files=tuple(
            ArchiveFile(name=name, bytes=len(data), sha256=sha256_bytes(data)) for name, data in sorted(members.items())
        ),
    )
    text = json.dumps(manifest.dump(), indent=1, ensure_ascii=False).encode()
    return manifest, _packed({MANIFEST: text, SEAL: _seal(text), **members})


def _add(members: dict[str, bytes], found: Iterator[tuple[str, bytes]], *, mend: str) -> None:
    """Take files of the run in for as long as the archive can be read back; InputError where it could not be."""
    size = sum(len(data) + ENTRY_BYTES for data in members.values())
    for name, data in found:
        size += len(data) + ENTRY_BYTES
        if size > MAX_BYTES:
            what = f"the archive would be larger than the {MAX_BYTES} bytes that `autoqec replay` takes"
            raise InputError(what, where=f"{RUN}/{name}", mend=mend)
        members[f"{RUN}/{name}"] = data


def _run_files(layout: RunLayout) -> Iterator[tuple[str, bytes]]:
    for path in sorted(layout.root.rglob("*")):
        name = path.relative_to(layout.root)
        if path.is_file() and not path.is_symlink() and name.parts[0] not in LEFT_BEHIND:
            yield name.as_posix(), path.read_bytes()


def _drawn(layout: RunLayout) -> Iterator[tuple[str, bytes]]:
    """Every judgement's shots, drawn once more from the published secret; those that an archive brought are there."""
    from autoqec.verification import report, shot_cache

    secret = published_secret(layout)
    env = files.load_env(layout.env)[0]
    for one in standings(History(layout).rows()):
        found = report.read(layout.round(one.row.round))
        if found is not None:
            for digest, data in shot_cache.draw(found, env, secret):
                path = layout.shots / shot_cache.file_name(digest)
                yield path.relative_to(layout.root).as_posix(), data


def _seal(manifest: bytes) -> bytes:
    return sha256_bytes(manifest).encode() + b"\n"


def _packed(members: dict[str, bytes]) -> bytes:
    """The same members give the same bytes: no times, no owners, no compression that another library does otherwise."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, data in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return raw.getvalue()


def replay_archive(archive: Path, into: Path, *, on_event: verify_round.OnEvent) -> Restored:
    """Restore an archive into a new repository at `into` and verify it again, offline.

    Every file against its hash, every pointer against its branch, every checkpoint against its round's manifest, the
    views against history; and where the run is closed, every judgement drawn again from the published secret. Raises
    ContractError naming the first byte-range or file that is not as it was packed, InputError where `into` is taken.
    """
    manifest, members = read_archive(archive)
    if into.exists() and (not into.is_dir() or any(into.iterdir())):
        raise InputError("is not an empty directory", where=str(into), mend="name a new one with --into")
    into.mkdir(parents=True, exist_ok=True)
    repo = Repo.init(into)
    with scratch("archive") as directory:
        bundle = directory / BUNDLE
        bundle.write_bytes(members.pop(BUNDLE))
        try:
            repo.bundle_fetch(bundle, manifest.refs)
        except GitFailed as error:
            raise ContractError(f"cannot be read ({error.what})", where=f"{archive}, {BUNDLE}") from error
    repo.check_out(manifest.baseline_ref or "main", manifest.baseline_sha)
    layout = RunLayout(repo.root, manifest.run_id)
    for name, data in members.items():
        target = layout.root / PurePosixPath(name).relative_to(RUN)
        target.parent.mkdir(parents=True, exist_ok=True)
        atomic.write_bytes(target, data)
    found = dict(_verified_again(layout, repo, on_event))
    return Restored(layout, found, all(not words.startswith("differs") for words in found.values()))


def read_archive(archive: Path) -> tuple[ArchiveManifest, dict[str, bytes]]:
    """The manifest and every member it names, each checked. ContractError names what was tampered with."""
    where = str(archive)
    try:
        members = _members(archive)
    except FileNotFoundError as error:
        raise InputError("there is no such archive", where=where, mend="autoqec package-run RUN") from error
    except (OSError, EOFError, tarfile.TarError, ValueError) as error:
        raise ContractError(f"is damaged ({error})", where=where, mend="fetch the archive again") from error
    if MANIFEST not in members:
        raise ContractError(f"holds no {MANIFEST}: it is no archive of a run", where=where)
    try:
        text, seal = members.pop(MANIFEST), members.pop(SEAL, b"")
        data = json.loads(text)
    except ValueError as error:
        raise ContractError(f"is damaged ({error})", where=f"{where}, {MANIFEST}") from error
    if seal != _seal(text):
        raise ContractError(f"is damaged (its SHA-256 is not the one in {SEAL})", where=f"{where}, {MANIFEST}")
    manifest = ArchiveManifest.read(data, where=f"{where}, {MANIFEST}")
    listed = {entry.name: entry for entry in manifest.files}
    for name in sorted({*listed, *members}):
        if name not in listed or name not in members:
            raise ContractError("is missing" if name in listed else "was added", where=f"{where}, {name}")
        if sha256_bytes(members[name]) != listed[name].sha256:
            raise ContractError(
                f"was changed: SHA-256 was {listed[name].sha256}, is {sha256_bytes(members[name])}",
                where=f"{where}, {name}",
                mend="fetch the archive again",
            )
    whole, raw = _packed({MANIFEST: text, SEAL: _seal(text), **members}), archive.read_bytes()
    if whole != raw:
        place = len(os.path.commonprefix([whole, raw]))
        what = f"was changed between its members, first at byte {place} of {len(raw)}"
        raise ContractError(what, where=where, mend="fetch the archive again")
    return manifest, members


def _members(archive: Path) -> dict[str, bytes]:
    if archive.stat().st_size > MAX_BYTES:
        raise ValueError(f"larger than {MAX_BYTES} bytes")
    raw = archive.read_bytes()
    found: dict[str, bytes] = {}
    with tarfile.open(fileobj=io.BytesIO(raw), mode="r:") as tar:
        for entry in tar:
            parts = PurePosixPath(entry.name).parts
            if not entry.isreg() or entry.name in found or not parts or ".." in parts or entry.name.startswith("/"):
                raise ValueError(f"member {entry.name!r} is not a plain file with a plain name")
            member = tar.extractfile(entry)
            found[entry.name] = member.read() if member else b""
        # tarfile takes a header that it cannot read for the archive's end.
        if raw[tar.offset :].strip(b"\0"):
            raise ValueError(f"what stands at byte {tar.offset} of {len(raw)} is no member's header")
    return found


def _verified_again(layout: RunLayout, repo: Repo, on_event: verify_round.OnEvent) -> Iterator[tuple[int, str]]:
    memory = RunMemory(layout.root)
    stale = memory.rebuild_views()
    # An older version worded its views otherwise; their bytes are held by the archive's hashes all the same.
    if stale and memory.history.info().package_sha256 == machine.package_sha256():
        names = ", ".join(sorted(path.name for path in stale))
        raise ContractError(f"does not follow from history: {names}", where=str(layout.root))
    closed = layout.published.exists()
    for one in standings(memory.history.rows()):
        row, place = one.row, layout.round(one.row.round)
        if row.status != "ok" or row.commit_sha is None:
            continue
        if repo.rev_parse(row.commit_sha) is None:
            raise ContractError(f"the bundle lacks commit {row.commit_sha}", where=f"round {row.round}")
        lost = _artifacts_hold(layout, place)
        if lost:
            told = f"{row.verify_verdict}; " if row.verify_verdict else ""
            yield row.round, f"{told}removed by `autoqec gc` before it was packed: {', '.join(lost)}"
        elif row.verify_verdict is None:
            yield row.round, "measured, never judged; files whole"
        elif not closed:
            yield row.round, f"{row.verify_verdict}; files whole; the run is not closed, so its shots stay secret"
        else:
            again = verify_round.replay(layout, repo, row.round, on_event)
            same = f"{row.verify_verdict} again on the same shots ({again.source})"
            yield row.round, same if again.agrees else f"differs: {'; '.join(again.differences)}"


def _artifacts_hold(layout: RunLayout, place: RoundLayout) -> list[str]:
    """Every artifact against the hash in its round's manifest; a round without manifest has nothing to hold.

    Returns those that were removed on purpose, on record with the same hash; any other that is missing is damage.
    """
    if not place.manifest.is_file():
        return []
    recorded: dict[str, Any] = json.loads(place.manifest.read_bytes())
    on_record, gone = removed(layout), []
    for artifact in Manifest.read(recorded, where=str(place.manifest)).artifacts:
        path = place.dir / artifact.name
        name = path.relative_to(layout.root).as_posix()
        if not path.is_file() and on_record.get(name) == artifact.sha256:
            gone.append(artifact.name)
        elif not path.is_file():
            raise ContractError("is missing, and nobody removed it on purpose", where=str(path))
        elif sha256_bytes(path.read_bytes()) != artifact.sha256:
            raise ContractError("is not the file its manifest names", where=str(path))
    return gone
