"""Archives of runs: publishing the secret, packing branches and run directory, and replaying an archive offline."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePath

from pydantic import ValidationError

from autoqec.contracts.base import first_validation_error, sha256_bytes
from autoqec.contracts.env import EnvSpec
from autoqec.contracts.events import OnEvent
from autoqec.contracts.history import HistoryRow, RunInfo
from autoqec.contracts.names import RUN_REF
from autoqec.contracts.provenance import BUNDLE, EXCLUDED_FILES, MAX_BYTES, RUN, ArchiveManifest, Manifest
from autoqec.contracts.verdict import VerifyReport
from autoqec.errors import AutoqecError, ContractError, UsageError
from autoqec.orchestrator import verify_round
from autoqec.orchestrator.archive_format import MANIFEST, pack, unpack
from autoqec.orchestrator.gc import removed_files
from autoqec.orchestrator.hold import hold_run
from autoqec.orchestrator.memory import RunMemory
from autoqec.orchestrator.recovery import inspect
from autoqec.orchestrator.recovery.apply import recover
from autoqec.orchestrator.recovery.plan import plan_recovery
from autoqec.orchestrator.secret import is_closed, read_published_secret, read_secret
from autoqec.qec import decoder_trust
from autoqec.store import atomic, files, run_log
from autoqec.store.history import History
from autoqec.store.layout import VERIFICATION, RoundLayout, RunLayout, recorded_location, runs_dir
from autoqec.store.round_files import read_contract
from autoqec.store.run_state import fold
from autoqec.system import machine, sandbox
from autoqec.system.git import GitError, Repo
from autoqec.system.git.trees import check_trees, largest_checkout
from autoqec.system.scratch import scratch


def publish_secret(layout: RunLayout, repo: Repo) -> str:
    """Publish the secret of a run; a closed run is not changed.

    If the process is killed meanwhile, the run counts as closed once the published secret exists; closing it again
    completes the work.

    Returns:
        The secret as hex.

    Raises:
        UsageError: The run does not exist, another process holds it, or a job of a cluster still measures a round.
        ManualInterventionRequired: Recovery needs a decision of the user, or the secret is lost or wrong.
    """
    info = History(layout).info()
    if is_closed(layout) and not layout.secret.exists():
        return read_published_secret(layout, info).hex()
    with hold_run(layout, "close"):
        recover(layout, repo, run_log.logged(None))
        _require_no_cluster_job(layout)
        secret = read_published_secret(layout, info) if is_closed(layout) else read_secret(layout, info)
        atomic.write_text(layout.secret_hex, secret.hex() + "\n")
        with atomic.storage_errors(layout.secret):
            layout.secret.unlink(missing_ok=True)
        atomic.fsync_dir(layout.root)
    return secret.hex()


def _require_no_cluster_job(layout: RunLayout) -> None:
    """Raise UsageError if a job of a cluster still measures a round, whose result could no longer be verified."""
    history = History(layout)
    recorded = history.state().rounds
    for attempt in history.attempt_state().attempts.values():
        if attempt.id not in recorded:
            message = f"a job of a cluster still measures round {attempt.round}"
            hint = f"`autoqec run --resume {layout.run_id}` waits for it; press Ctrl-C twice to cancel it"
            raise UsageError(message, location=f"run {layout.run_id}", hint=hint)


ENTRY_OVERHEAD_BYTES = 2**12  # upper bound per member: tar headers, padding and its line in the manifest


def package_run(layout: RunLayout, repo: Repo, out: Path, *, shots: bool = True) -> ArchiveManifest:
    """Write the archive of a run atomically, while holding the run. The secret of an open run is left out.

    Args:
        layout: The run.
        repo: The repository that holds its branches.
        out: The archive to write; it must not exist.
        shots: Include the verification shots of a closed run, so that a replay need not sample the same shots.

    Returns:
        The manifest of the archive.

    Raises:
        UsageError: Another process holds the run, a crash left work for recovery, the run has no branch yet, `out`
            exists, or the archive would exceed the size that `replay_archive` accepts.
    """
    info = History(layout).info()
    if out.exists():
        raise UsageError("the file exists already", location=str(out), hint=f"name another file, or rm {out}")
    with hold_run(layout, "package-run"):
        pending_actions = plan_recovery(inspect.inspect_run(repo, layout))
        if pending_actions:
            action = pending_actions[0]
            message = f"the run's files and branches do not match its history ({action.kind}: {action.why})"
            hint = action.hint or f"autoqec reconcile {info.run_id}"
            raise UsageError(message, location=str(layout.root), hint=hint)
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
        hint = f"complete a round first: autoqec run --resume {info.run_id}"
        raise UsageError("the run has no branch yet", location=info.run_id, hint=hint)
    with scratch("archive") as directory:
        bundle = directory / BUNDLE
        repo.bundle_create(bundle, sorted(refs))
        check_trees(repo, sorted({info.baseline_sha, *refs.values()}), max_bytes=largest_checkout(bundle))
        members = {BUNDLE: bundle.read_bytes()}
        _add_members(members, _run_files(layout), hint=f"autoqec gc {layout.run_id}")
    if shots and layout.secret_hex.exists():
        _add_members(members, _shot_files(layout), hint=f"autoqec package-run {layout.run_id} --no-shots")
    files = [{"name": name, "bytes": len(data), "sha256": sha256_bytes(data)} for name, data in sorted(members.items())]
    fields = {"run_id": info.run_id, "closed": layout.secret_hex.exists(), "refs": refs, "files": files}
    fields |= {key: getattr(info, key) for key in ("baseline_sha", "baseline_ref", "code_sha256")}
    try:
        manifest = ArchiveManifest.model_validate(fields)
    except ValidationError as error:  # a file or branch of the user in the namespace of the run
        hint = "move it out of the run directory, or rename the branch"
        raise UsageError(
            f"cannot be archived: {first_validation_error(error)}", location=info.run_id, hint=hint
        ) from error
    return manifest, pack(manifest, members)


def _add_members(members: dict[str, bytes], found: Iterator[tuple[str, bytes]], *, hint: str) -> None:
    """Add files of the run to the members. Raises UsageError if the archive could not be read back."""
    size = sum(len(data) + ENTRY_OVERHEAD_BYTES for data in members.values())
    for name, data in found:
        size += len(data) + ENTRY_OVERHEAD_BYTES
        if size > MAX_BYTES:
            message = f"the archive would be larger than the {MAX_BYTES} bytes that `autoqec replay` accepts"
            raise UsageError(message, location=f"{RUN}/{name}", hint=hint)
        members[f"{RUN}/{name}"] = data


def _run_files(layout: RunLayout) -> Iterator[tuple[str, bytes]]:
    for path in sorted(layout.root.rglob("*")):
        name = path.relative_to(layout.root)
        if path.is_file() and not path.is_symlink() and not _is_private(name):
            yield name.as_posix(), path.read_bytes()


def _is_private(name: PurePath) -> bool:
    """Return whether a file of the run stays out of archives: locks, secrets, and seeds of an unfinished job."""
    return name.parts[0] in EXCLUDED_FILES or VERIFICATION in name.parts[1:-1]


def _shot_files(layout: RunLayout) -> Iterator[tuple[str, bytes]]:
    """Sample the shots of every verification again from the published secret; shots of an archive are in `shots`."""
    from autoqec.verification import shot_stream

    secret = read_published_secret(layout)
    env = files.load_env(layout.env)[0]
    for round_state in History(layout).state().rounds.values():
        saved_report = read_contract(layout.round(round_state.row.round).report_json, VerifyReport)
        if saved_report is not None:
            for digest, data in shot_stream.redraw_chunks(saved_report, env, secret):
                path = layout.shots / shot_stream.chunk_file_name(digest)
                yield path.relative_to(layout.root).as_posix(), data


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
                verify_round.note_moved_shots(layout, recorded, on_event)
            repeatable = manifest.closed and (not env.code.own_shots or recorded is not None)
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
    shots_missing = env.code.own_shots and not recorded_location(layout.round(1).dir).exists()
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
