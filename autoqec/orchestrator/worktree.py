"""Creates a round's branch and worktree, checks its edits, and salvages what an interrupted round left."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from autoqec.contracts.base import sha256_json
from autoqec.contracts.history import Planned
from autoqec.contracts.messages import CoderResponse, FileEdit
from autoqec.errors import RoundError
from autoqec.installation import PACKAGE_DIR
from autoqec.orchestrator.failpoint import failpoint
from autoqec.store import atomic
from autoqec.store.layout import EDITABLE_MODULES, RunLayout, pointer_on_branch
from autoqec.system.git import GitError, RefUpdate, Repo

TRAILER = "Autoqec-Attempt"
RELEASED_MODULES = PACKAGE_DIR / "data" / "released_modules.yaml"
MAX_FILE_BYTES, MAX_MODULES_BYTES, MAX_FILES = 256 * 1024, 2 * 2**20, 64
# Excludes hidden files and names that Python, pytest or git treat specially.
_ALLOWED_NAME = re.compile(r"([a-z0-9_]+/){0,2}[a-z0-9_]+\.(py|yaml)")
_RESERVED_NAMES = ("sitecustomize.py", "usercustomize.py", "conftest.py")


def create(repo: Repo, layout: RunLayout, planned: Planned, tips: Sequence[str], edits: CoderResponse) -> str:
    """Create branch and worktree of a round, merge the parents of a composition and commit the edits.

    Args:
        repo: The repository.
        layout: The run.
        planned: The plan of the attempt; its id becomes a trailer of the commit.
        tips: Commits of the further parents of a composition, in order.
        edits: The Coder's response.

    Returns:
        The code commit.

    Raises:
        MergeConflictError: The parents cannot be merged; nothing was created.
        RoundError: An edit is not allowed; the branch may exist already.
    """
    path, trailers = layout.worktree(planned.branch), {TRAILER: planned.round_attempt_id}
    for edit in edits.edits:
        if problem := edit_problem(edit):
            raise RoundError("compile_error", f"edit of `{edit.path}` rejected: {problem}")
    base = repo.merge([planned.base_sha, *tips], edits.commit_message, trailers) if tips else planned.base_sha
    repo.worktree_add(path, planned.branch, base)
    failpoint("branched")
    if tips and not edits.edits:
        return base
    for edit in edits.edits:
        target = path / EDITABLE_MODULES / edit.path
        atomic.make_dir(target.parent)
        atomic.write_text(target, edit.text)
    failpoint("edited")
    names = [f"{EDITABLE_MODULES}/{edit.path}" for edit in edits.edits] or [EDITABLE_MODULES]
    sha = repo.commit(path, planned.branch, names, edits.commit_message, trailers)
    failpoint("coded")
    check_commit(repo, base, sha)
    return sha


def edit_problem(edit: FileEdit) -> str | None:
    """Return why a file is not allowed in the editable modules; None if it is."""
    return _name_problem(edit.path) or (_size_problem(len(edit.text.encode())))


def check_commit(repo: Repo, base: str, tip: str) -> None:
    """Check that a commit changes only the editable modules. Raises RoundError with the first other path."""
    for entry in repo.diff_entries(base, tip):
        if not entry.path.startswith(f"{EDITABLE_MODULES}/"):
            problem: str | None = "it is outside the editable modules"
        elif entry.status == "D":
            problem = None
        elif entry.new_mode != "100644":
            problem = f"it is not a regular file (mode {entry.new_mode})"
        else:
            problem = _name_problem(entry.path.removeprefix(f"{EDITABLE_MODULES}/"))
        if problem:
            raise RoundError("compile_error", f"edit of `{entry.path}` rejected: {problem}")
    files = repo.ls_tree(tip, EDITABLE_MODULES)
    for file in files:
        kind_problem = None if file.regular else f"it is not a regular file (mode {file.mode})"
        if problem := kind_problem or _size_problem(file.size):
            raise RoundError("compile_error", f"edit of `{file.path}` rejected: {problem}")
    if len(files) > MAX_FILES or sum(file.size for file in files) > MAX_MODULES_BYTES:
        raise RoundError(
            "compile_error", f"editable modules rejected: over {MAX_FILES} files or {MAX_MODULES_BYTES} bytes"
        )


def _name_problem(name: str) -> str | None:
    if not _ALLOWED_NAME.fullmatch(name) or name.rsplit("/", 1)[-1] in _RESERVED_NAMES:
        return "only .py and .yaml files with names of lower-case letters, digits and _ are allowed"
    return None


def _size_problem(size: int) -> str | None:
    return f"it has {size} bytes, at most {MAX_FILE_BYTES} are allowed" if size > MAX_FILE_BYTES else None


def commit_pointer(
    repo: Repo, layout: RunLayout, planned: Planned, code_sha: str | None = None, *, branch: str | None = None
) -> str:
    """Commit the pointer that the Runner wrote.

    Args:
        repo: The repository.
        layout: The run.
        planned: The plan of the attempt.
        code_sha: The code commit; a branch that was deleted during the measurement is restored there first.
        branch: What the branch is called now; default: its planned name.

    Returns:
        The new tip of the branch.

    Raises:
        UsageError: Another branch is checked out in the worktree.
    """
    branch = branch or planned.branch
    ref = f"refs/heads/{branch}"
    if code_sha is not None and repo.rev_parse(ref) is None:
        repo.update_refs([RefUpdate(ref, code_sha, None)])
    message, trailers = f"Pointer of round {planned.round}", {TRAILER: planned.round_attempt_id}
    return repo.commit(layout.worktree(planned.branch), branch, [pointer_on_branch(planned.round)], message, trailers)


def recommit_pointer(repo: Repo, layout: RunLayout, planned: Planned, branch: str | None = None) -> None:
    """Commit the pointer of a measured round whose process died, from the copy in the round directory.

    The branch must exist; a missing checkout is created again.

    Args:
        repo: The repository.
        layout: The run.
        planned: The plan of the attempt.
        branch: What the branch is called now; default: its planned name.
    """
    path, name = layout.worktree(planned.branch), pointer_on_branch(planned.round)
    if not (path / ".git").is_file() or all(entry.path != path for entry in repo.worktrees()):
        salvage_and_remove_worktree(repo, layout, path)
        repo.worktree_add(path, branch or planned.branch, None)
    atomic.make_dir((path / name).parent)
    atomic.write_bytes(path / name, layout.round(planned.round).pointer.read_bytes())
    commit_pointer(repo, layout, planned, branch=branch)


def branches_in_use(repo: Repo, layout: RunLayout, branches: Iterable[str]) -> frozenset[str]:
    """Return the branches that are checked out elsewhere than in the worktrees of the rounds of `branches`."""
    return frozenset(repo.checked_out_branches(except_worktrees=map(layout.worktree, branches)))


def is_config_only(modules_dir: Path) -> bool:
    """Return whether checked-out modules are those of the installed package or of an earlier version.

    The config (predecoder.yaml) is not compared. In both cases the round runs the modules of the installed package.
    """
    package_modules = PACKAGE_DIR.resolve() / EDITABLE_MODULES.removeprefix("autoqec/")
    found = modules_sha256(modules_dir)
    return found == modules_sha256(package_modules) or found in released_modules()


def modules_sha256(modules_dir: Path) -> str:
    """Return one hash of all files of editable modules except the config."""
    return sha256_json(_code_hashes(modules_dir))


@cache
def released_modules() -> frozenset[str]:
    """Return `modules_sha256` of the editable modules of earlier versions."""
    from autoqec.store import files

    return frozenset(files.load_yaml(RELEASED_MODULES.read_text(encoding="utf-8"), location=str(RELEASED_MODULES)))


def _code_hashes(modules_dir: Path) -> dict[str, str]:
    """Return the hash of every regular file except the config; for anything else a constant."""
    found = {}
    for where, folders, names in os.walk(modules_dir):
        folders[:] = [name for name in folders if name != "__pycache__"]
        for path in (Path(where, name) for name in (*names, *folders)):
            if path.is_file() and not path.is_symlink():
                found[path.relative_to(modules_dir).as_posix()] = hashlib.sha256(path.read_bytes()).hexdigest()
            elif path.is_symlink() or not path.is_dir():
                found[path.relative_to(modules_dir).as_posix()] = "not a regular file"
    found.pop("predecoder.yaml", None)
    return found


def leftovers(repo: Repo, layout: RunLayout, branches: Iterable[str]) -> tuple[Path, ...]:
    """Return the checkouts that planned rounds left: those that git records, and directories without a record."""
    worktrees_dir = layout.worktree("any").parent
    found = {entry.path.name for entry in repo.worktrees() if entry.path.parent == worktrees_dir}
    found |= {path.name for directory in (worktrees_dir, repo.common / "worktrees") for path in directory.glob("*")}
    return tuple(path for path in map(layout.worktree, branches) if path.name in found) if found else ()


def salvage_and_remove_worktree(repo: Repo, layout: RunLayout, path: Path) -> Path | None:
    """Remove the checkout of a dead round; uncommitted changes are saved under salvage/, whose path is returned."""
    saved = _salvage(repo, layout, path) if path.exists() else None
    repo.worktree_remove(path)
    return saved


def _salvage(repo: Repo, layout: RunLayout, path: Path) -> Path | None:
    record = next((entry for entry in repo.worktrees() if entry.path == path), None)
    if record is not None and (record.admin / "locked").exists():
        return None  # git was still checking it out, so it contains no edits
    if record is not None:
        try:
            patch = repo.uncommitted_patch(path)
        except GitError:
            return _salvage_directory(layout, path)
        return _save_patch(layout, path, patch) if patch else None
    if any(path.iterdir()):
        return _salvage_directory(layout, path)
    with atomic.storage_errors(path):
        path.rmdir()
    return None


def _save_patch(layout: RunLayout, path: Path, patch: bytes) -> Path:
    """Save a patch under a name that depends on its bytes, so that a repeated salvage writes the same file."""
    atomic.make_dir(layout.salvage)
    target = layout.salvage / f"{path.name}.{hashlib.sha256(patch).hexdigest()[:12]}.patch"
    atomic.write_bytes(target, patch)
    return target


def _salvage_directory(layout: RunLayout, path: Path) -> Path:
    """Move a checkout that git cannot read to salvage/."""
    atomic.make_dir(layout.salvage)
    number = 1
    while (target := layout.salvage / f"{path.name}.{number}").exists():
        number += 1
    with atomic.storage_errors(target):
        os.rename(path, target)
    atomic.fsync_dir(layout.salvage)
    return target
