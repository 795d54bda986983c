"""Checks that a repository can hold a run: what would make every round fail is found before the first one."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from autoqec.errors import UsageError
from autoqec.system.git.reader import GitReader

_BRANCH_DIRECTORIES = ("exp", "quarantine")


def check_repository(repo: GitReader, written: Sequence[str]) -> None:
    """Check that branches can be created, checked out and committed to.

    Args:
        repo: The repository.
        written: Paths, from its top, of files that rounds commit.

    Raises:
        UsageError: A round could not run here; the hint names the command that changes this.
    """
    for name in _BRANCH_DIRECTORIES:
        if repo.rev_parse(f"refs/heads/{name}") is not None:
            message = f"the branch `{name}` exists, so git cannot create branches below {name}/"
            raise UsageError(message, location=str(repo.root), hint=f"git branch -m {name} {name}-old")
    if repo.config("core.sparseCheckout") == "true":
        message = "the checkout is sparse, so files of a round cannot be committed"
        raise UsageError(message, location=str(repo.root), hint="git sparse-checkout disable")
    attributes = repo.attributes(("filter", "working-tree-encoding"), written)
    for path, attribute, value in attributes:
        if attribute == "working-tree-encoding" or repo.filter_commands(value):
            message = f"the attribute {attribute}={value} changes what git stores of {path}"
            hint = f"add to .gitattributes and commit: {path} -{attribute}"
            raise UsageError(message, location=str(repo.root / ".gitattributes"), hint=hint)
    for driver, path in _missing_programs(repo):
        message = f"the program of the filter `{driver}` is not on the PATH, so {path} cannot be checked out"
        hint = "install git-lfs" if driver == "lfs" else f"git config --remove-section filter.{driver}"
        raise UsageError(message, location=str(repo.root), hint=hint)


def linked_worktree_note(repo: GitReader, worktree: Path | None, baseline: str) -> str | None:
    """Return the note for a start inside a linked worktree: a run uses the commit of the main one."""
    if worktree is None:
        return None
    return (
        f"{worktree} is a linked worktree: the baseline is commit {baseline[:12]}, checked out in {repo.root}; "
        "to start from another commit, check it out there"
    )


def _missing_programs(repo: GitReader) -> Iterator[tuple[str, str]]:
    """Yield (filter driver, one tracked path that it applies to) for drivers whose program is missing."""
    checked: set[str] = set()
    for path, _, driver in repo.attributes(("filter",), repo.tracked_paths()):
        if driver in checked:
            continue
        checked.add(driver)
        for command in repo.filter_commands(driver):
            program = (_split(command) or [""])[0]
            if not os.path.isabs(program) and shutil.which(program) is None:
                yield driver, path
                break


def _split(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:
        return command.split()
