"""Restores an archive of a run in a new repository and verifies it again, offline."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from autoqec.contracts.archive import BUNDLE, RUN, ArchiveManifest
from autoqec.contracts.base import first_validation_error, sha256_bytes
from autoqec.contracts.env import EnvSpec
from autoqec.contracts.events import OnEvent
from autoqec.contracts.history import HistoryRow
from autoqec.contracts.names import RUN_REF
from autoqec.contracts.provenance import Manifest
from autoqec.errors import AutoqecError, ContractError, UsageError
from autoqec.orchestrator import recorded_place, verify_round
from autoqec.orchestrator.archive_format import MANIFEST, unpack
from autoqec.orchestrator.gc import removed_files
from autoqec.orchestrator.memory import RunMemory
from autoqec.qec import decoder_trust
from autoqec.store import atomic, files
from autoqec.store.history import History
from autoqec.store.layout import RunLayout, runs_dir
from autoqec.store.recorded_layout import recorded_location
from autoqec.store.round_files import read_contract
from autoqec.store.round_layout import RoundLayout
from autoqec.store.run_state import fold
from autoqec.system import machine, sandbox
from autoqec.system.git import GitError, Repo
from autoqec.system.git.trees import check_trees, largest_checkout


@dataclass(frozen=True)
class ReplayPlan:
    """What a replay is about to do.

    Attributes:
        manifest: The manifest of the archive; names and sizes were checked, its origin was not.
        into: Directory of the repository to be created.
        rounds: Number of rows in the run's history.
        verifications: Number of verifications to repeat; they may execute code of the run's branches.
        sandbox: The sandbox backend that confines this code; None if no code is executed.
    """

    manifest: ArchiveManifest
    into: Path
    rounds: int
    verifications: int
    sandbox: str | None


@dataclass(frozen=True)
class RestoredRun:
    """The result of a replay; a damaged archive raises an error instead.

    Attributes:
        layout: The restored run.
        verdicts: Result of the check of each round, by round number.
        agrees: Whether every repeated verification gave the recorded result.
    """

    layout: RunLayout
    verdicts: dict[int, str]
    agrees: bool


def replay_archive(
    archive: Path,
    into: Path,
    *,
    on_event: OnEvent,
    on_plan: Callable[[ReplayPlan], None] = lambda plan_recovery: None,
    recorded: Path | None = None,
) -> RestoredRun:
    """Restore an archive into a new repository at `into` and verify it again, offline.

    Compares every file with its hash, every pointer with its branch, every checkpoint with the manifest of its round,
    and the views with the history. For a closed run, every verification is repeated on shots sampled from the
    published secret. The work is done in a private directory beside `into`, which is renamed to `into` at the end.

    Args:
        archive: An archive from an untrusted source.
        into: A directory that does not exist or is empty.
        on_event: Receives the progress of hashing the recorded shots and of the verifications.
        on_plan: Receives the plan after the hashes were checked and before anything is checked out or executed.
        recorded: Directory of the run's recorded shots, which an archive does not hold; without it their verdicts are
            not repeated.

    Returns:
        The restored run and the result of each round.

    Raises:
        ContractError: The archive is damaged or changed, or holds something that is not allowed; names the place.
        UsageError: The archive does not exist, `into` is not empty, or `recorded` does not hold the run's shots.
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
            env = files.parse_env(files.read_text(layout.env), location=str(layout.env))
            if recorded is not None:
                shots = recorded_place.check_place(env, recorded, str(layout.env), on_event)
                recorded_place.note_place(layout, shots.directory)
            repeatable = manifest.closed and (env.recorded is None or recorded is not None)
            plan = _planned(manifest, into, rows, repeatable=repeatable)
            if plan.verifications:
                _require_trusted_decoders(env)
            on_plan(plan)
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
    """Yield a new directory on the file system of `into` that only this user may enter; it is removed at the end."""
    with atomic.storage_errors(ancestor):
        made = tempfile.TemporaryDirectory(prefix=f".{into.name}.", suffix=".partial", dir=ancestor)
    with made as name:
        yield Path(name)


@contextmanager
def _named_after(archive: Path, layout: RunLayout) -> Iterator[None]:
    """Make errors name the archive's members: the private directory no longer exists when they are read."""
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
            error.hint = "download the archive again"
        raise


def _place_run(run: Path, layout: RunLayout) -> None:
    """Move the run directory to its place in an otherwise empty repository directory."""
    with atomic.storage_errors(layout.root):
        run.mkdir(exist_ok=True)
        runs_dir(layout.repo_root).mkdir()
        os.rename(run, layout.root)


def _check_run(manifest: ArchiveManifest, layout: RunLayout) -> list[HistoryRow]:
    """Return the run's rows. Raises ContractError if its files do not match the manifest."""
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


def _require_trusted_decoders(env: EnvSpec) -> None:
    """Raise UsageError if the env names an external decoder that is not trusted or not installed."""
    for name in env.baselines:
        if (spec := decoder_trust.external_decoder(name)) is not None:
            decoder_trust.locate(name, spec, location=f"env `{env.name}`, field `baselines`")


def _planned(manifest: ArchiveManifest, into: Path, rows: list[HistoryRow], *, repeatable: bool) -> ReplayPlan:
    replayed = sum(
        round_state.row.status == "ok" and round_state.row.verify_verdict is not None
        for round_state in fold(rows).rounds.values()
    )
    replayed = replayed if repeatable else 0
    return ReplayPlan(manifest, into, len(rows), replayed, sandbox.probe() if replayed else None)


def _restore_branches(manifest: ArchiveManifest, bundle: Path, layout: RunLayout, rows: list[HistoryRow]) -> Repo:
    """Create a repository with the archive's branches and the baseline checked out, without links, hooks or filters."""
    repo = Repo.init(layout.repo_root, symlinks=False)
    try:
        repo.unbundle(bundle, manifest.refs)
        shas = sorted({row.commit_sha for row in rows if row.commit_sha})
        existing = [sha for sha, size in zip(shas, repo.sizes(shas), strict=True) if size]  # `gc` may have removed some
        check_trees(repo, [manifest.baseline_sha, *existing], max_bytes=largest_checkout(bundle))
        run_path = layout.root.relative_to(layout.repo_root).as_posix()
        if repo.ls_tree(manifest.baseline_sha, run_path):
            raise GitError(f"the tree of the baseline commit contains {run_path}")
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
        raise ContractError(f"no views can be built from it: {what}", location=str(layout.history)) from error
    # Views of another version are worded differently; the archive's hashes protect their bytes in any case.
    if stale and memory.history.info().package_sha256 == machine.package_sha256():
        names = ", ".join(sorted(path.name for path in stale))
        raise ContractError(f"does not follow from history: {names}", location=str(layout.root))
    closed = layout.secret_hex.exists()
    env, _ = files.load_env(layout.env)
    shots_missing = env.recorded is not None and not recorded_location(layout.round(1).dir).exists()
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
            yield row.round, "measured, not verified; files intact"
        elif not closed:
            yield row.round, f"{row.verify_verdict}; files intact; the run is not closed, so its shots stay secret"
        elif shots_missing:
            outcome = "files intact; an archive has no recorded shots: give --recorded DIR to verify on them again"
            yield row.round, f"{row.verify_verdict}; {outcome}"
        else:
            replayed = verify_round.replay(layout, repo, row.round, on_event)
            message = f"{row.verify_verdict} again on the same shots ({replayed.source})"
            yield row.round, message if replayed.agrees else f"differs: {replayed.disagreement}"


def _check_artifacts(layout: RunLayout, place: RoundLayout) -> list[str]:
    """Compare every artifact of a round with the hash in its manifest, if the round has one.

    Returns:
        The artifacts that `autoqec gc` removed and recorded with the same hash.

    Raises:
        ContractError: An artifact differs, or is missing without such a record.
    """
    manifest = read_contract(place.manifest, Manifest)
    if manifest is None:
        return []
    removal_log, removed_names = removed_files(layout), []
    for artifact in manifest.artifacts:
        path = place.dir / artifact.name
        name = path.relative_to(layout.root).as_posix()
        if not path.is_file() and removal_log.get(name) == artifact.sha256:
            removed_names.append(artifact.name)
        elif not path.is_file():
            raise ContractError("the file is missing", location=str(path), hint="restore it, then pack the run again")
        elif sha256_bytes(path.read_bytes()) != artifact.sha256:
            raise ContractError("its hash differs from the one in the round's manifest", location=str(path))
    return removed_names
