"""The search surface that a recorded round ran on, for those who use its checkpoint later."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from autoqec.errors import InputError
from autoqec.orchestrator import worktree
from autoqec.store.history import History
from autoqec.store.layout import SURFACE, RunLayout
from autoqec.system.git import Repo
from autoqec.system.scratch import scratch


@contextmanager
def own_surface(layout: RunLayout, number: int) -> Iterator[Path | None]:
    """The round's surface, checked out for as long as the context lasts; None where this package's own computes the
    same, the config apart. InputError where the commit is not to be had: nobody could then say what the net computes.
    """
    shas = [row.commit_sha for row in History(layout).rows() if row.round == number and row.commit_sha]
    repo = Repo.discover(layout.repo_root)
    if not shas or repo.rev_parse(shas[-1]) is None:
        what = f"git has no code commit of round {number}, so the net can't be built as it was trained"
        raise InputError(what, where=f"run {layout.run_id}", mend=f"autoqec show {layout.run_id}")
    with scratch("surface") as directory:
        surface = directory / "modules"
        repo.extract(shas[-1], SURFACE, surface)
        yield None if worktree.is_config_only(surface) else surface
