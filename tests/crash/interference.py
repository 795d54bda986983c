"""Actions of a user during a round: each case happens between measurement and verification."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from typing import Any

from autoqec.contracts.views import AnalystView
from autoqec.store.layout import RunLayout
from tests.crash.invariants import git


def round_of(view: AnalystView) -> tuple[RunLayout, int]:
    directory = view.round_dir
    return RunLayout(directory.parents[2], directory.parent.name), int(directory.name.removeprefix("round_"))


def branch_of(layout: RunLayout, number: int) -> str:
    names = git(layout.repo_root, "for-each-ref", "--format=%(refname:lstrip=2)", "refs/heads/exp").splitlines()
    return next(name for name in names if f"/{number:02d}-" in name)


def deletes_branch(layout: RunLayout, number: int) -> None:
    git(layout.repo_root, "update-ref", "-d", f"refs/heads/{branch_of(layout, number)}")


def deletes_older_branch(layout: RunLayout, number: int) -> None:
    git(layout.repo_root, "branch", "-D", branch_of(layout, 1))


def deletes_worktree(layout: RunLayout, number: int) -> None:
    shutil.rmtree(layout.worktree(branch_of(layout, number)))


def deletes_round(layout: RunLayout, number: int) -> None:
    shutil.rmtree(layout.round(number).dir)


def deletes_metrics(layout: RunLayout, number: int) -> None:
    layout.round(number).metrics.unlink()


def deletes_history(layout: RunLayout, number: int) -> None:
    layout.history.unlink()


def renames_runs(layout: RunLayout, number: int) -> None:
    layout.root.parent.rename(layout.repo_root / "elsewhere")


def commits(layout: RunLayout, number: int) -> None:
    (layout.repo_root / "note.md").write_text("mine")
    git(layout.repo_root, "add", "note.md")
    git(layout.repo_root, "commit", "-q", "-m", "mine")


def moves_the_clock(layout: RunLayout, number: int) -> None:
    time.time = lambda: 86_400.0
    time.time_ns = lambda: 86_400 * 10**9


CASES: dict[str, Callable[[RunLayout, int], None]] = {
    action.__name__: action
    for action in (
        deletes_branch, deletes_older_branch, deletes_worktree, deletes_round, deletes_metrics, deletes_history,
        renames_runs, commits, moves_the_clock,
    )
}  # fmt: skip


def with_interference(analyst: Callable[[AnalystView], Any], cases: set[str]) -> Callable[[AnalystView], Any]:
    """Wrap the analyst so that the actions of `cases` follow its response for the third round."""

    def analyse_with_interference(view: AnalystView) -> Any:
        response = analyst(view)
        for name in sorted(cases & set(CASES)):
            layout, number = round_of(view)
            if number == 3:
                CASES[name](layout, number)
        return response

    return analyse_with_interference
