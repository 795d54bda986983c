"""Invariants of a run after recovery, shared by all crash tests."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autoqec.contracts.history import HistoryRow
from autoqec.contracts.pareto import non_dominated
from autoqec.contracts.provenance import Pointer
from autoqec.store.history import History
from autoqec.store.layout import RunLayout, pointer_on_branch
from autoqec.store.run_state import fold
from autoqec.system.git import Repo


def git(workspace: Path, *arguments: str) -> str:
    """Run git as the user does."""
    identity = ["-c", "user.name=a user", "-c", "user.email=user@example.org"]
    done = subprocess.run(["git", *identity, *arguments], cwd=workspace, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def run_ids(workspace: Path) -> list[str]:
    return sorted(path.name for path in (workspace / "runs").glob("[0-9]*"))


@dataclass(frozen=True)
class Before:
    """State that a crash must not change: the user's files and branches, and the history so far."""

    workspace: Path
    head: list[str]
    status: str
    branches: dict[str, str]
    histories: dict[str, bytes] = field(default_factory=dict)

    @classmethod
    def of(cls, workspace: Path) -> Before:
        histories = {name: _bytes(RunLayout(workspace, name).history) for name in run_ids(workspace)}
        return cls(
            workspace,
            head(workspace),
            git(workspace, "status", "--porcelain"),
            _users(workspace),
            histories,
        )


def _bytes(path: Path) -> bytes:
    """Return the complete lines of an append-only file."""
    data = path.read_bytes() if path.is_file() else b""
    return data[: data.rfind(b"\n") + 1]


def _users(workspace: Path) -> dict[str, str]:
    return {name: sha for name, sha in refs(workspace).items() if not name.startswith(("exp/", "quarantine/"))}


def head(workspace: Path) -> list[str]:
    """Return the commit of HEAD and the full name of its branch."""
    return git(workspace, "rev-parse", "HEAD", "--symbolic-full-name", "HEAD").splitlines()


def refs(workspace: Path) -> dict[str, str]:
    lines = git(workspace, "for-each-ref", "--format=%(refname:lstrip=2) %(objectname)", "refs/heads").splitlines()
    return dict(line.split(" ") for line in lines)  # type: ignore[misc]


def check(before: Before, run_id: str) -> list[HistoryRow]:
    """Assert every invariant of a recovered run and return its rows."""
    workspace, layout = before.workspace, RunLayout(before.workspace, run_id)
    assert all(_lines(path) for path in (layout.history, layout.attempts) if path.is_file()), "no torn line"
    history = History(layout)  # which also follows the hash chain
    rows, attempts = history.rows(), history.attempts()
    _rows_and_attempts(rows, [line.round_attempt_id for line in attempts if line.kind == "begun"])
    _rows_and_branches(workspace, layout, rows, checked_out=before.head[1])
    _views(layout, rows)
    _nothing_left(workspace, layout)
    assert _bytes(layout.history).startswith(before.histories.get(run_id, b"")), "history was rewritten"
    assert _users(workspace) == before.branches and head(workspace) == before.head
    assert git(workspace, "status", "--porcelain") == before.status
    assert git(workspace, "fsck", "--no-dangling") == ""
    return rows


def _lines(path: Path) -> list[str]:
    if not path.is_file():
        return []
    text = path.read_text(encoding="utf-8")
    assert not text or text.endswith("\n"), f"{path} ends in a torn line"
    return text.splitlines()


def _rows_and_attempts(rows: list[HistoryRow], begun: list[str]) -> None:
    attempt_ids = [row.round_attempt_id for row in rows if row.refers_to_attempt is None]
    assert sorted(map(str, attempt_ids)) == sorted(begun), "one row an attempt, and no row without one"
    numbers = [row.round for row in rows if row.refers_to_attempt is None]
    assert len(set(numbers)) == len(numbers), "a round number was used twice"
    follow_ups = [(row.refers_to_attempt, row.status) for row in rows if row.refers_to_attempt is not None]
    assert len(set(follow_ups)) == len(follow_ups), "a follow-up stands twice"


def _rows_and_branches(workspace: Path, layout: RunLayout, rows: list[HistoryRow], *, checked_out: str) -> None:
    form = "%(refname) %(objectname) %(parent)"
    lines = git(workspace, "for-each-ref", f"--format={form}", "refs/heads", "refs/autoqec").splitlines()
    tips = {name: parents for name, *parents in map(str.split, lines)}
    pointers: dict[str, Pointer] = {}
    for summary in [*fold(rows).rounds.values()]:
        row = summary.row
        assert layout.round(row.round).dir.is_dir(), f"round {row.round} has no directory"
        if row.branch is None or summary.gone:
            continue
        tip, *parents = tips[f"refs/heads/{row.branch}"]
        assert row.commit_sha in parents[:1] or (row.status != "ok" and row.commit_sha == tip), (
            f"{row.branch} is not its row's"
        )
        assert tips[layout.pin(summary.attempt_id)][0] == tip
        if row.status == "ok":
            data = layout.round(row.round).pointer.read_bytes()
            pointer = pointers[f"{tip}:{pointer_on_branch(row.round)}"] = Pointer.model_validate(json.loads(data))
            assert (pointer.round_attempt_id, pointer.commit_sha) == (summary.attempt_id, row.commit_sha)
    _pointers_on_branches(workspace, layout, pointers)
    prefixes = (f"refs/heads/exp/{layout.run_id}/", f"refs/heads/quarantine/{layout.run_id}/")
    ours = {name.removeprefix("refs/heads/") for name in tips if name.startswith(prefixes)}
    named = {summary.row.branch for summary in [*fold(rows).rounds.values()] if summary.row.branch}
    without_row = ours - named - {checked_out.removeprefix("refs/heads/")}  # recovery keeps a branch that is in use
    assert not without_row, f"branches without a row: {without_row}"


def _pointers_on_branches(workspace: Path, layout: RunLayout, pointers: dict[str, Pointer]) -> None:
    """Assert that files on a round's branch equal those in its directory."""
    found = Repo.discover(workspace).objects([*pointers]) if pointers else []
    for (name, pointer), stored in zip(pointers.items(), found, strict=True):
        assert stored is not None and stored[1] == layout.round(pointer.round_idx).pointer.read_bytes(), name


def _views(layout: RunLayout, rows: list[HistoryRow]) -> None:
    verified = [entry.dump() for entry in [*fold(rows).front]]
    assert _json(layout.pareto) == verified
    assert len(non_dominated([*fold(rows).front])) == len(verified)
    assert _json(layout.preview) == verified[:5]
    assert {node["id"] for node in _json(layout.fork_graph)["nodes"]} == {
        "baseline",
        *(s.attempt_id for s in [*fold(rows).rounds.values()]),
    }
    text = layout.log.read_text(encoding="utf-8")
    assert text.count("\n## Round ") == len(rows)


def _json(path: Path) -> Any:
    return json.loads(path.read_bytes())


def _nothing_left(workspace: Path, layout: RunLayout) -> None:
    admin = workspace / ".git" / "worktrees"
    assert not admin.is_dir() or not any(admin.iterdir()), "a worktree was left"
    roots = [layout.root, workspace / ".worktrees", workspace / ".git"]
    leftovers = [
        path
        for root in roots
        if root.is_dir()
        for path in root.rglob("*")
        if path.name.endswith((".tmp", ".lock"))
        and path.name not in ("autoqec.lock", "owner.lock")
        and not {"objects", "salvage"} & set(path.relative_to(workspace).parts[:-2])
    ]
    assert not leftovers, f"left behind: {leftovers}"
    worktrees = workspace / ".worktrees"
    assert not worktrees.is_dir() or not any(worktrees.iterdir())
    for path in layout.root.rglob("*.json"):
        if not path.is_relative_to(layout.salvage):  # unchanged: git does not sync files that it checks out
            json.loads(path.read_bytes())
