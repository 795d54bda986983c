"""A run in one file: every branch as a git bundle, the run's directory, and the hash of every byte of it."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from autoqec.contracts.archive import BUNDLE, EXCLUDED_FILES, MAX_BYTES, RUN, ArchiveManifest
from autoqec.contracts.base import first_validation_error, sha256_bytes
from autoqec.contracts.events import OnEvent
from autoqec.contracts.history import HistoryRow, RunInfo
from autoqec.contracts.names import RUN_REF
from autoqec.contracts.provenance import Manifest
from autoqec.errors import AutoqecError, ContractError, UsageError
from autoqec.orchestrator import verify_round
from autoqec.orchestrator.archive_format import MANIFEST, pack, unpack
from autoqec.orchestrator.gc import removed_files
from autoqec.orchestrator.hold import hold_run
from autoqec.orchestrator.memory import RunMemory
from autoqec.orchestrator.recovery import inspect
from autoqec.orchestrator.recovery.plan import plan_recovery
from autoqec.orchestrator.secret import read_published_secret
from autoqec.store import atomic, files
from autoqec.store.history import History
from autoqec.store.layout import RoundLayout, RunLayout, runs_dir
from autoqec.store.run_state import fold
from autoqec.system import machine, sandbox
from autoqec.system.git import GitError, Repo
from autoqec.system.git.trees import check_trees, largest_checkout
from autoqec.system.scratch import scratch

ENTRY_OVERHEAD_BYTES = 2**12  # at most, of headers and padding round a member, and of its line in the manifest


@dataclass(frozen=True)
class Plan:
    """What a replay is about to do.

    Attributes:
        manifest: What the archive says about itself; its names and sizes were checked, its origin was not.
        into: Where the repository will be.
        rounds: Rows of the run's history.
        judgements: How many verdicts are drawn again, for which code of the run's branches may run.
        sandbox: The sandbox backend that confines that code; None if none of it runs.
    """

    manifest: ArchiveManifest
    into: Path
    rounds: int
    judgements: int
    sandbox: str | None


@dataclass(frozen=True)
class RestoredRun:
    """What became of an archive. verdicts: round -> what was found; damage is raised, never listed."""

    layout: RunLayout
    verdicts: dict[int, str]
    agrees: bool


def package_run(layout: RunLayout, repo: Repo, out: Path, *, shots: bool = True) -> ArchiveManifest:
    """Write the archive, whole or not at all. The secret of a run that is not closed stays behind.

    shots: of a closed run, include the verification shots, for machines that sample others. The run is held
    meanwhile, so that its files belong together. Raises UsageError where another process holds it (named), a crash
    left it with work for recovery, it has no branch yet, `out` exists, or the archive would be larger than one that
    can be read back.
    """
    info = History(layout).info()
    if out.exists():
        raise UsageError("is there already", location=str(out), hint=f"name another file, or rm {out}")
    with hold_run(layout):
        pending_actions = plan_recovery(inspect.inspect_run(repo, layout))
        if pending_actions:
            what = f"the run is not in line with its history ({pending_actions[0].kind}: {pending_actions[0].why})"
            raise UsageError(
                what, location=str(layout.root), hint=pending_actions[0].hint or f"autoqec reconcile {info.run_id}"
            )
        manifest, packed = _build_archive(layout, repo, info, shots)
    atomic.write_bytes(out, packed)
    return manifest


def _build_archive(layout: RunLayout, repo: Repo, info: RunInfo, shots: bool) -> tuple[ArchiveManifest, bytes]:
    refs = {
        ref: sha
        for prefix in (f"refs/heads/exp/{info.run_id}", f"refs/heads/quarantine/{info.run_id}", layout.pin_prefix)
        for ref, sha in repo.refs(prefix).items()
    }
    if not refs:
        raise UsageError(
            "the run has no branch to carry away", location=info.run_id, hint="let it finish a round first"
        )
    with scratch("archive") as directory:
        bundle = directory / BUNDLE
        repo.bundle_create(bundle, sorted(refs))
        check_trees(repo, sorted({info.baseline_sha, *refs.values()}), max_bytes=largest_checkout(bundle))
        members = {BUNDLE: bundle.read_bytes()}
        _add_members(members, _run_files(layout), hint=f"autoqec gc {layout.run_id}")
    if shots and layout.secret_hex.exists():
        _add_members(members, _shot_files(layout), hint=f"autoqec package-run {layout.run_id} --no-shots")
    files = [{"name": name, "bytes": len(data), "sha256": sha256_bytes(data)} for name, data in sorted(members.items())]
    verdict_prefix = {"run_id": info.run_id, "closed": layout.secret_hex.exists(), "refs": refs, "files": files}
    verdict_prefix |= {key: getattr(info, key) for key in ("baseline_sha", "baseline_ref", "code_sha256")}
    try:
        manifest = ArchiveManifest.model_validate(verdict_prefix)
    except ValidationError as error:  # a file or branch of the user's own among the run's
        hint = "move it out of the run"
        raise UsageError(
            f"cannot be archived: {first_validation_error(error)}", location=info.run_id, hint=hint
        ) from error
    return manifest, pack(manifest, members)


def _add_members(members: dict[str, bytes], found: Iterator[tuple[str, bytes]], *, hint: str) -> None:
    """Take files of the run in for as long as the archive can be read back; UsageError where it could not be."""
    size = sum(len(data) + ENTRY_OVERHEAD_BYTES for data in members.values())
    for name, data in found:
        size += len(data) + ENTRY_OVERHEAD_BYTES
        if size > MAX_BYTES:
            what = f"the archive would be larger than the {MAX_BYTES} bytes that `autoqec replay` takes"
            raise UsageError(what, location=f"{RUN}/{name}", hint=hint)
        members[f"{RUN}/{name}"] = data


def _run_files(layout: RunLayout) -> Iterator[tuple[str, bytes]]:
    for path in sorted(layout.root.rglob("*")):
        name = path.relative_to(layout.root)
        if path.is_file() and not path.is_symlink() and name.parts[0] not in EXCLUDED_FILES:
            yield name.as_posix(), path.read_bytes()


def _shot_files(layout: RunLayout) -> Iterator[tuple[str, bytes]]:
    """Every judgement's shots, drawn once more from the published secret; those that an archive brought are there."""
    from autoqec.verification import report, shot_cache

    secret = read_published_secret(layout)
    env = files.load_env(layout.env)[0]
    for round_state in History(layout).state().rounds.values():
        found = report.read(layout.round(round_state.row.round))
        if found is not None:
            for digest, data in shot_cache.redraw_chunks(found, env, secret):
                path = layout.shots / shot_cache.file_name(digest)
                yield path.relative_to(layout.root).as_posix(), data


def replay_archive(
    archive: Path,
    into: Path,
    *,
    on_event: OnEvent,
    on_plan: Callable[[Plan], None] = lambda plan_recovery: None,
) -> RestoredRun:
    """Restore an archive into a new repository at `into` and verify it again, offline.

    Every file against its hash, every pointer against its branch, every checkpoint against its round's manifest, the
    views against history; and where the run is closed, every judgement drawn again from the published secret. All of
    it happens in a private directory beside `into`, which becomes `into` by one rename at the end.

    Args:
        archive: An archive that anyone may have written.
        into: A directory that does not exist, or is empty.
        on_event: Gets the verifier's progress.
        on_plan: Gets what will be checked out and run, after the hashes were checked and before any of it happens.

    Raises:
        ContractError: Names the first byte range or file that is not as it was packed, or not allowed.
        UsageError: There is no such archive, or `into` is taken.
    """
    into = into.resolve()
    _check_vacant(into)
    ancestor = next(path for path in into.parents if path.is_dir())
    with _private_directory(into, ancestor) as private:
        members, root = private / "members", private / "repository"
        members.mkdir()
        root.mkdir()
        manifest = unpack(archive, members)
        layout = RunLayout(root, manifest.run_id)
        with _named_after(archive, layout):
            _place_run(members / RUN, layout)
            rows = _check_run(manifest, layout)
            on_plan(_planned(manifest, into, rows))
            repo = _restore_branches(manifest, members / BUNDLE, layout, rows)
            found = dict(_verify_rounds(layout, repo, on_event))
        with atomic.storage_errors(into):
            into.parent.mkdir(parents=True, exist_ok=True)
            os.rename(root, into)
        atomic.fsync_dir(into.parent)
    agrees = all(not outcome.startswith("differs") for outcome in found.values())
    return RestoredRun(RunLayout(into, manifest.run_id), found, agrees)


def _check_vacant(into: Path) -> None:
    if into.exists() and (not into.is_dir() or any(into.iterdir())):
        raise UsageError("is not an empty directory", location=str(into), hint="name a new one with --into")


@contextmanager
def _private_directory(into: Path, ancestor: Path) -> Iterator[Path]:
    """A new directory on the file system of `into` that only this user may enter; removed at the end."""
    with atomic.storage_errors(ancestor):
        made = tempfile.TemporaryDirectory(prefix=f".{into.name}.", suffix=".partial", dir=ancestor)
    with made as name:
        yield Path(name)


@contextmanager
def _named_after(archive: Path, layout: RunLayout) -> Iterator[None]:
    """Let errors name the archive's members: the private directory is gone by the time anyone reads them."""
    names = {str(layout.root): f"{archive}, {RUN}", str(layout.repo_root): f"{archive}, {BUNDLE}"}
    try:
        yield
    except AutoqecError as error:
        for path, name in names.items():
            error.message, error.location = (
                error.message.replace(path, name),
                (error.location or name).replace(path, name),
            )
        if error.hint and str(layout.repo_root) in error.hint:
            error.hint = "fetch the archive again"
        raise


def _place_run(run: Path, layout: RunLayout) -> None:
    """Move the run's directory to its place in a repository directory that holds nothing else."""
    with atomic.storage_errors(layout.root):
        run.mkdir(exist_ok=True)
        runs_dir(layout.repo_root).mkdir()
        os.rename(run, layout.root)


def _check_run(manifest: ArchiveManifest, layout: RunLayout) -> list[HistoryRow]:
    """The run's rows. ContractError where its files tell of another run than the manifest does."""
    info, where = History(layout).info(), str(layout.run_info)
    for field in ("run_id", "baseline_sha", "baseline_ref", "code_sha256"):
        if getattr(info, field) != getattr(manifest, field):
            raise ContractError(f"`{field}` is not the one in {MANIFEST}", location=where)
    if manifest.closed != layout.secret_hex.exists():
        raise ContractError(f"`closed` in {MANIFEST} does not fit the run's files", location=str(layout.secret_hex))
    rows = History(layout).rows()
    for row in rows:
        ref = f"refs/heads/{row.branch}"
        if row.branch is not None and not (re.fullmatch(RUN_REF, ref) and ref.split("/")[3] == manifest.run_id):
            raise ContractError(f"branch {row.branch!r} is not a branch of the run", location=f"round {row.round}")
    return rows


def _planned(manifest: ArchiveManifest, into: Path, rows: list[HistoryRow]) -> Plan:
    replayed = sum(
        round_state.row.status == "ok" and round_state.row.verify_verdict is not None
        for round_state in fold(rows).rounds.values()
    )
    replayed = replayed if manifest.closed else 0
    return Plan(manifest, into, len(rows), replayed, sandbox.probe() if replayed else None)


def _restore_branches(manifest: ArchiveManifest, bundle: Path, layout: RunLayout, rows: list[HistoryRow]) -> Repo:
    """A repository with the archive's branches, the baseline checked out in it: no links, hooks or filters."""
    repo = Repo.init(layout.repo_root, symlinks=False)
    try:
        repo.unbundle(bundle, manifest.refs)
        named = sorted({row.commit_sha for row in rows if row.commit_sha})
        kept = [sha for sha, there in zip(named, repo.sizes(named), strict=True) if there]  # `gc` may have taken some
        check_trees(repo, [manifest.baseline_sha, *kept], max_bytes=largest_checkout(bundle))
        inside = layout.root.relative_to(layout.repo_root).as_posix()
        if repo.ls_tree(manifest.baseline_sha, inside):
            raise GitError(f"the baseline holds {inside} itself")
        repo.check_out(manifest.baseline_ref or "main", manifest.baseline_sha)
    except GitError as error:
        raise ContractError(f"cannot be read ({error.message})", location=str(layout.repo_root)) from error
    return repo


def _verify_rounds(layout: RunLayout, repo: Repo, on_event: OnEvent) -> Iterator[tuple[int, str]]:
    memory = RunMemory(layout.root)
    try:
        stale = memory.rebuild_views()
    except ValueError as error:
        what = first_validation_error(error) if isinstance(error, ValidationError) else str(error)
        raise ContractError(f"no views follow from it: {what}", location=str(layout.history)) from error
    # An older version worded its views otherwise; their bytes are held by the archive's hashes all the same.
    if stale and memory.history.info().package_sha256 == machine.package_sha256():
        names = ", ".join(sorted(path.name for path in stale))
        raise ContractError(f"does not follow from history: {names}", location=str(layout.root))
    closed = layout.secret_hex.exists()
    for round_state in memory.state.rounds.values():
        row, place = round_state.row, layout.round(round_state.row.round)
        if row.status != "ok" or row.commit_sha is None:
            continue
        if repo.rev_parse(row.commit_sha) is None:
            raise ContractError(f"the bundle lacks commit {row.commit_sha}", location=f"round {row.round}")
        missing = _check_artifacts(layout, place)
        if missing:
            verdict_prefix = f"{row.verify_verdict}; " if row.verify_verdict else ""
            yield row.round, f"{verdict_prefix}removed by `autoqec gc` before it was packed: {', '.join(missing)}"
        elif row.verify_verdict is None:
            yield row.round, "measured, never judged; files whole"
        elif not closed:
            yield row.round, f"{row.verify_verdict}; files whole; the run is not closed, so its shots stay secret"
        else:
            replayed = verify_round.replay(layout, repo, row.round, on_event)
            message = f"{row.verify_verdict} again on the same shots ({replayed.source})"
            yield row.round, message if replayed.agrees else f"differs: {'; '.join(replayed.differences)}"


def _check_artifacts(layout: RunLayout, place: RoundLayout) -> list[str]:
    """Every artifact against the hash in its round's manifest; a round without manifest has nothing to hold.

    Returns those that were removed on purpose, on record with the same hash; any other that is missing is damage.
    """
    if not place.manifest.is_file():
        return []
    try:
        recorded: dict[str, Any] = json.loads(place.manifest.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ContractError(f"is damaged ({error})", location=str(place.manifest)) from error
    removal_log, removed_names = removed_files(layout), []
    for artifact in Manifest.read(recorded, location=str(place.manifest)).artifacts:
        path = place.dir / artifact.name
        name = path.relative_to(layout.root).as_posix()
        if not path.is_file() and removal_log.get(name) == artifact.sha256:
            removed_names.append(artifact.name)
        elif not path.is_file():
            raise ContractError("the file is missing", location=str(path), hint="restore it, then pack the run again")
        elif sha256_bytes(path.read_bytes()) != artifact.sha256:
            raise ContractError("is not the file its manifest names", location=str(path))
    return removed_names
