"""The editable modules of a commit: as texts, and checked out for later use of a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from autoqec.errors import UsageError
from autoqec.orchestrator import worktree
from autoqec.store.history import History
from autoqec.store.layout import EDITABLE_MODULES, RunLayout
from autoqec.system.git import Repo
from autoqec.system.scratch import scratch


def read_modules(repo: Repo, commit: str) -> dict[str, str]:
    """Return name -> text of the editable modules of a commit, the config file included."""
    entries = [entry for entry in repo.ls_tree(commit, EDITABLE_MODULES) if entry.regular]
    blobs = repo.objects([entry.oid for entry in entries])
    return {
        entry.path.removeprefix(f"{EDITABLE_MODULES}/"): blob[1].decode("utf-8", "replace")
        for entry, blob in zip(entries, blobs, strict=True)
        if blob is not None
    }


@contextmanager
def checked_out_modules(layout: RunLayout, number: int) -> Iterator[Path | None]:
    """Check out the editable modules of a round for the duration of the context.

    Args:
        layout: The run.
        number: The round.

    Yields:
        The directory; None if the round changed only the config, so that the modules of this package are the same.

    Raises:
        UsageError: The commit is missing, so the code of the net is unknown.
    """
    shas = [row.commit_sha for row in History(layout).rows() if row.round == number and row.commit_sha]
    repo = Repo.discover(layout.repo_root)
    if not shas or repo.rev_parse(shas[-1]) is None:
        message = f"git has no code commit of round {number}, so the net cannot be built as it was trained"
        raise UsageError(message, location=f"run {layout.run_id}", hint=f"autoqec show {layout.run_id}")
    with scratch("modules") as directory:
        modules_dir = directory / "modules"
        repo.extract(shas[-1], EDITABLE_MODULES, modules_dir)
        yield None if worktree.is_config_only(modules_dir) else modules_dir
