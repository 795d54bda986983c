"""Archives of runs: a git bundle of the branches, the run directory, and the hash of every file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePath

from pydantic import ValidationError

from autoqec.contracts.archive import BUNDLE, EXCLUDED_FILES, MAX_BYTES, RUN, ArchiveManifest
from autoqec.contracts.base import first_validation_error, sha256_bytes
from autoqec.contracts.history import RunInfo
from autoqec.contracts.verdict import VerifyReport
from autoqec.errors import UsageError
from autoqec.orchestrator.archive_format import pack
from autoqec.orchestrator.hold import hold_run
from autoqec.orchestrator.recovery import inspect
from autoqec.orchestrator.recovery.plan import plan_recovery
from autoqec.orchestrator.secret import read_published_secret
from autoqec.store import atomic, files
from autoqec.store.history import History
from autoqec.store.layout import RunLayout
from autoqec.store.round_files import read_contract
from autoqec.store.round_layout import VERIFICATION
from autoqec.system.git import Repo
from autoqec.system.git.trees import check_trees, largest_checkout
from autoqec.system.scratch import scratch

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
    from autoqec.verification import shot_cache

    secret = read_published_secret(layout)
    env = files.load_env(layout.env)[0]
    for round_state in History(layout).state().rounds.values():
        saved_report = read_contract(layout.round(round_state.row.round).report_json, VerifyReport)
        if saved_report is not None:
            for digest, data in shot_cache.redraw_chunks(saved_report, env, secret):
                path = layout.shots / shot_cache.file_name(digest)
                yield path.relative_to(layout.root).as_posix(), data
